"""Secrets as files, and what the environment says of security."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from trainband.cluster.credentials import Credentials, new_secret, read_secret, write_secret
from trainband.cluster.identity import Identity, Role
from trainband.cluster.resolvers.credentials import resolve_credentials
from trainband.errors import ClusterError


def test_a_secret_is_written_for_its_owner_only(tmp_path: Path) -> None:
    path, text = tmp_path / "secret", new_secret()
    write_secret(path, text)
    assert path.stat().st_mode & 0o777 == 0o600
    assert resolve_credentials({"TRAINBAND_SECRET_FILE": str(path)}) == Credentials(secret=text.encode())
    assert text not in repr(Credentials(secret=text.encode()))
    with pytest.raises(ClusterError, match="never overwrites a file"):
        write_secret(path, new_secret())
    assert new_secret() != text


def readable(path: Path) -> None:
    path.write_text(new_secret())
    path.chmod(0o644)


def short(path: Path) -> None:
    path.write_text("hunter2")
    path.chmod(0o600)


def long(path: Path) -> None:
    path.write_bytes(b"x" * 5000)
    path.chmod(0o600)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda _: None, "cannot be read"),
        (Path.mkdir, "not a regular file"),
        (os.mkfifo, "not a regular file"),
        (readable, r"every user of this machine.*chmod 600"),
        (short, "has 7 characters"),
        (long, "has 4097 characters"),
    ],
)
def test_a_file_that_holds_no_secret(tmp_path: Path, make: Callable[[Path], object], words: str) -> None:
    make(tmp_path / "secret")
    with pytest.raises(ClusterError, match=words):
        read_secret(tmp_path / "secret", "TRAINBAND_SECRET_FILE")


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"TRAINBAND_INSECURE": "yes"}, "write 1"),
        ({"TRAINBAND_INSECURE": "1", "TRAINBAND_SECRET_FILE": "x"}, "TRAINBAND_SECRET_FILE is set too"),
        ({"TRAINBAND_INSECURE": "1", "TRAINBAND_TLS": "x"}, "TRAINBAND_TLS is set too"),
    ],
)
def test_settings_that_contradict_each_other(environ: dict[str, str], words: str) -> None:
    with pytest.raises(ClusterError, match=words):
        resolve_credentials(environ)


def test_nothing_is_said() -> None:
    assert resolve_credentials({}) == Credentials()
    assert not Credentials().protect
    assert resolve_credentials({"TRAINBAND_INSECURE": "1"}).insecure


@pytest.mark.parametrize(
    "name", ["", "worker:-1", "worker:01", "worker:1:2", "root", "worker:\x1b[31m", "worker:9999999999", "worker:1\n"]
)
def test_a_name_that_no_task_has(name: str) -> None:
    with pytest.raises(ClusterError, match="is not the name of a task"):
        Identity(name)


def test_roles() -> None:
    assert Identity("worker:1").roles == Identity("chief:0").roles == {Role.WORKER, Role.OBSERVER}
    assert Identity("ps:0").roles == {Role.PS, Role.OBSERVER}
    assert Identity("evaluator:0").roles == Identity("observer").roles == {Role.OBSERVER}
    assert Identity("admin").roles == {Role.ADMIN, Role.OBSERVER}
