"""`trainband secret`: a secret for the tasks of a job on several machines."""

from __future__ import annotations

from pathlib import Path

import click

from trainband.cluster.credentials import new_secret, write_secret
from trainband.cluster.resolvers.credentials import SECRET_FILE


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("file", type=click.Path(path_type=Path))
def secret(file: Path) -> None:
    """Write a new secret to FILE, which only you can read.

    Give every task of a job the same secret: copy FILE to each machine (over ssh, or as a secret of your platform) and
    set TRAINBAND_SECRET_FILE to its path. Tasks without it are refused. `trainband run` on one machine makes one
    itself.
    """
    write_secret(file, new_secret())
    click.echo(f"wrote a new secret to {file}; set {SECRET_FILE}={file.absolute()} for every task of the job")
