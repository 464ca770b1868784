"""`trainband secret`, `trainband certs`, and the options of `trainband run` about security."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from trainband.cli.main import cli
from trainband.cluster.credentials import read_secret
from trainband.cluster.resolvers.local_jobs import credentials_for, find_job_secret
from trainband.errors import ClusterError, TrainbandError
from trainband.launch.job_secret import JobSecret


def said(*arguments: str) -> str:
    done = CliRunner().invoke(cli, arguments)
    if isinstance(done.exception, TrainbandError):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


def test_a_secret(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    told = said("secret", str(path))
    assert f"TRAINBAND_SECRET_FILE={path}" in told
    assert read_secret(path, "it").decode() not in told
    with pytest.raises(ClusterError, match="already exists"):
        said("secret", str(path))


def test_certificates(tmp_path: Path) -> None:
    ca = str(tmp_path / "ca")
    assert "keep" in said("certs", "init", ca)
    assert "for 90 days" in said("certs", "issue", ca, "ps:0", "10.0.0.7", "ps0.example.org")
    said("certs", "issue", ca, "worker:0", "--days", "0.001")
    assert oct(Path(ca, "worker-0.key").stat().st_mode & 0o777) == "0o600"
    assert "copy" in said("certs", "revoke", ca, "worker:0")
    ps, worker = said("certs", "list", ca).splitlines()
    assert ps.split()[:2] == ["ps:0", "valid"]
    assert "10.0.0.7" in ps
    assert worker.split()[:2] == ["worker:0", "revoked"]
    with pytest.raises(ClusterError, match="is not the name of a task"):
        said("certs", "issue", ca, "boss")
    with pytest.raises(ClusterError, match="`trainband certs init"):
        said("certs", "issue", str(tmp_path), "worker:0")


def test_tls_and_insecure_contradict_each_other() -> None:
    done = CliRunner().invoke(cli, ["run", "--tls", "auto", "--insecure", "-m", "x"])
    assert done.exit_code == 2
    assert "contradict" in done.output


@pytest.mark.parametrize("options", [[], ["--tls", "auto"]])
def test_ucx_and_security_do_not_go_together(options: list[str]) -> None:
    done = CliRunner().invoke(cli, ["run", *options, "--transport", "ucx", "-m", "x"])
    assert isinstance(done.exception, ClusterError)
    assert "TRAINBAND_TRUSTED_FABRIC=1" in str(done.exception)


def test_a_local_job_is_found_by_its_user_only(tmp_path: Path) -> None:
    environ = {"XDG_RUNTIME_DIR": str(tmp_path)}
    secret = JobSecret(environ)
    secret.publish(["127.0.0.1:2222"])
    found = find_job_secret("localhost:2222", environ)
    assert found is not None
    assert credentials_for("127.0.0.1:2222", environ).secret == read_secret(found, "it")
    assert credentials_for("127.0.0.1:2222", {**environ, "TRAINBAND_INSECURE": "1"}).secret == b""
    assert find_job_secret("127.0.0.1:2223", environ) is None
    directory = tmp_path / "trainband"
    directory.chmod(0o755)  # others could look in, or put their own there
    assert find_job_secret("127.0.0.1:2222", environ) is None
    directory.chmod(0o700)
    if os.geteuid() == 0:
        os.chown(directory, 12345, -1)
        assert find_job_secret("127.0.0.1:2222", environ) is None
        os.chown(directory, 0, -1)
    secret.close()
    assert not found.exists()
    assert list(directory.iterdir()) == []
