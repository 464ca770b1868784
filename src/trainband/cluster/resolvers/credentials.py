"""The credentials of a task, from the environment variables that its launcher, or whoever starts it, has set."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from trainband.cluster.credentials import Credentials, read_secret
from trainband.errors import ClusterError

SECRET_FILE = "TRAINBAND_SECRET_FILE"
"""The path of the file with the job's secret."""
TLS_DIRECTORY = "TRAINBAND_TLS"
"""The directory with the certificates of the job."""
INSECURE = "TRAINBAND_INSECURE"
"""`1`: serve without either, whoever may reach the port."""
MEANING = (
    "this job runs without security: whoever reaches the port of a ps can read the model, change it and end the job"
)
"""What `INSECURE` means, for those who ask for it."""


def without_security(environ: Mapping[str, str]) -> dict[str, str]:
    """An environment that says nothing of security."""
    return {name: value for name, value in environ.items() if name not in (SECRET_FILE, TLS_DIRECTORY, INSECURE)}


def resolve_credentials(environ: Mapping[str, str] | None = None) -> Credentials:
    """What the environment gives: a secret, certificates, both, or neither.

    Args:
      environ: the environment to look in; `os.environ` when `None`.

    Raises:
      ClusterError: a file or directory is not what it should be, or the settings contradict each other.
    """
    environ = os.environ if environ is None else environ
    secret_file, tls = environ.get(SECRET_FILE, ""), environ.get(TLS_DIRECTORY, "")
    asked = environ.get(INSECURE, "")
    if asked not in ("", "0", "1"):
        raise ClusterError(f"{INSECURE} = {asked!r}: write 1 to serve without security, or leave it out.")
    if asked == "1" and (secret_file or tls):
        raise ClusterError(
            f"{INSECURE} = 1, but {SECRET_FILE if secret_file else TLS_DIRECTORY} is set too; leave one of them out."
        )
    if tls:
        # gRPC writes a line on stderr for each TLS handshake that fails, and anybody may fail as often as he likes.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    return Credentials(
        secret=read_secret(Path(secret_file), SECRET_FILE) if secret_file else b"",
        tls=Path(tls) if tls else None,
        insecure=asked == "1",
    )
