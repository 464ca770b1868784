"""`trainband checkpoint`: list, show, verify, compare and export checkpoints."""

from __future__ import annotations

import click

from trainband.cli.checkpoint.diff import diff
from trainband.cli.checkpoint.export import export
from trainband.cli.checkpoint.ls import ls
from trainband.cli.checkpoint.show import show
from trainband.cli.checkpoint.verify import verify


@click.group()
def checkpoint() -> None:
    """List, show, verify, compare and export checkpoints.

    DIR is a directory of checkpoints, or one checkpoint in it (DIR/step-000000001000). A training run that writes there
    is not disturbed. Exit code 2: the input cannot be used.
    """


for command in (ls, show, verify, diff, export):
    checkpoint.add_command(command)
