"""The secret of a user's own, for tasks on loopback addresses that are given none."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from trainband.cluster.credentials import Credentials, new_secret, write_secret
from trainband.cluster.resolvers.user_secret import (
    credentials_at,
    private_directory,
    state_directory,
    user_secret,
)
from trainband.errors import ClusterError


def test_it_is_made_once_for_this_user_only(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:  # each as a process of its own, which has read nothing before
        (secret,) = set(pool.map(lambda _: user_secret.__wrapped__(tmp_path / "trainband"), range(32)))
    (path,) = (tmp_path / "trainband").iterdir()
    assert path.read_bytes().strip() == secret
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_it_outlives_the_session_that_made_it(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    environ = {"HOME": str(tmp_path / "home"), "XDG_RUNTIME_DIR": str(tmp_path / "run")}
    assert state_directory(environ) == tmp_path / "home" / ".local" / "state" / "trainband"
    secret = credentials_at("127.0.0.1:2222", environ).secret
    user_secret.cache_clear()  # as another process, after a logout, or from cron
    assert credentials_at("127.0.0.1:2222", {"HOME": environ["HOME"]}).secret == secret
    assert state_directory({**environ, "XDG_STATE_HOME": "/s"}) == Path("/s/trainband")


@pytest.mark.parametrize("address", ["127.0.0.1:2222", "localhost:2222", "[::1]:2222", "127.1.2.3:2222"])
def test_it_counts_on_loopback_addresses(tmp_path: Path, address: str) -> None:
    environ = {"XDG_RUNTIME_DIR": str(tmp_path)}
    assert credentials_at(address, environ) == Credentials(secret=user_secret(tmp_path / "trainband"))


@pytest.mark.parametrize("address", ["10.0.0.7:2222", "0.0.0.0:2222", "[::]:2222", "no-such-host.invalid:2222"])
def test_and_on_no_others(tmp_path: Path, address: str) -> None:
    assert credentials_at(address, {"XDG_RUNTIME_DIR": str(tmp_path)}) == Credentials()
    assert list(tmp_path.iterdir()) == []


def test_what_the_environment_says_goes_first(tmp_path: Path) -> None:
    write_secret(tmp_path / "given", text := new_secret())
    environ = {"XDG_RUNTIME_DIR": str(tmp_path), "TRAINBAND_SECRET_FILE": str(tmp_path / "given")}
    assert credentials_at("127.0.0.1:1", environ).secret == text.encode()
    assert credentials_at("127.0.0.1:1", {"TRAINBAND_INSECURE": "1"}) == Credentials(insecure=True)
    assert credentials_at("127.0.0.1:1", {"TRAINBAND_TLS": "ca"}) == Credentials(tls=Path("ca"))


def open_to_all(directory: Path) -> None:
    directory.mkdir(mode=0o755)


def of_another_user(directory: Path) -> None:
    if os.geteuid():
        pytest.skip("to make a directory of another user takes root")
    directory.mkdir(mode=0o700)
    os.chown(directory, 65534, 65534)


def link(directory: Path) -> None:
    (directory.parent / "elsewhere").mkdir(mode=0o700)
    directory.symlink_to(directory.parent / "elsewhere")


@pytest.mark.parametrize("make", [open_to_all, of_another_user, link, Path.touch])
def test_without_a_private_directory_nobody_serves(tmp_path: Path, make: Callable[[Path], object]) -> None:
    make(tmp_path / "trainband")
    with pytest.raises(ClusterError, match=r"TRAINBAND_SECRET_FILE=FILE.*TRAINBAND_INSECURE=1"):
        credentials_at("127.0.0.1:1", {"XDG_RUNTIME_DIR": str(tmp_path)})


def test_the_directory_of_another_user_s_session_is_not_taken(tmp_path: Path) -> None:
    """As `su` leaves it in the environment: what root made there would shut that user out."""
    if os.geteuid():
        pytest.skip("to make a directory of another user takes root")
    os.chown(tmp_path, 65534, 65534)
    own = Path(tempfile.gettempdir(), f"trainband-{os.getuid()}")
    assert private_directory({"XDG_RUNTIME_DIR": str(tmp_path)}) == own
