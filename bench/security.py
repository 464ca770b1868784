"""The security with which a case runs, as the environment of its tasks."""

from __future__ import annotations

from pathlib import Path

from trainband.cluster.certificates import issue, make_authority
from trainband.cluster.credentials import new_secret, write_secret
from trainband.cluster.resolvers.credentials import SECRET_FILE, TLS_DIRECTORY


def environment(kind: str, directory: Path) -> dict[str, str]:
    """The credentials of a case's tasks: a `secret` or certificates (`tls`), made in a directory, or none."""
    if kind == "secret":
        path = directory / "secret"
        write_secret(path, new_secret())
        return {SECRET_FILE: str(path)}
    if kind == "tls":
        make_authority(directory / "certificates")
        for name in ("ps", "worker"):
            issue(directory / "certificates", name)
        return {TLS_DIRECTORY: str(directory / "certificates")}
    return {}
