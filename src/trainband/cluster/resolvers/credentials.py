"""The credentials of a task, from the environment."""

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
"""`1`: serve without either, to any client that reaches the port."""
MEANING = (
    "this job runs without security: anyone who reaches the port of a ps can read the model, change it and end the job"
)
"""The warning for users of `INSECURE`."""


def without_security(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment without security settings."""
    return {name: value for name, value in environ.items() if name not in (SECRET_FILE, TLS_DIRECTORY, INSECURE)}


def resolve_credentials(environ: Mapping[str, str] | None = None) -> Credentials:
    """Returns the credentials in the environment: a secret, certificates, both, or neither.

    Args:
      environ: the environment to read; `os.environ` when `None`.

    Raises:
      ClusterError: a file or directory is invalid, or the settings contradict each other.
    """
    environ = os.environ if environ is None else environ
    secret_file, tls = environ.get(SECRET_FILE, ""), environ.get(TLS_DIRECTORY, "")
    asked = environ.get(INSECURE, "")
    if asked not in ("", "0", "1"):
        raise ClusterError(f"{INSECURE} = {asked!r}: write 1 to serve without security, or leave it out.")
    if asked == "1" and (secret_file or tls):
        raise ClusterError(
            f"{INSECURE} = 1, but {SECRET_FILE if secret_file else TLS_DIRECTORY} is set too; unset one of them."
        )
    if tls:
        # gRPC writes a line on stderr for each failed TLS handshake, and any client can cause any number of them.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    return Credentials(
        secret=read_secret(Path(secret_file), SECRET_FILE) if secret_file else b"",
        tls=Path(tls) if tls else None,
        insecure=asked == "1",
    )
