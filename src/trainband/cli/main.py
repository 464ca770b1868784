"""The program `trainband`: runs a command and reports its errors."""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Sequence
from typing import NoReturn

import click

from trainband.cluster.resolvers.log_level import FORMAT, VARIABLE, follow_environment
from trainband.errors import TrainbandError
from trainband.runtime.formatting import printable
from trainband.runtime.logs import FORMATS, LEVELS, NOBODY, event

COMMANDS = {
    "run": "Run a script as all the tasks of a cluster.",
    "status": "Show what a running job's tasks are doing.",
    "dashboard": "Show a job in the browser.",
    "top": "Show a running job in the terminal, like top.",
    "profile": "Record some steps of a running job as a trace.",
    "doctor": "Show what this machine has and what trainband would use.",
    "checkpoint": "List, show, verify, compare and export checkpoints.",
    "compress": "Compress a checkpoint.",
    "export": "Export a checkpoint and a function for other programs.",
    "serve": "Serve predictions over HTTP.",
    "kubernetes": "Write the manifest of a job for Kubernetes.",
    "secret": "Make a secret for the tasks of a job.",
    "certs": "Make certificates for the tasks of a job.",
}


class LazyGroup(click.Group):
    """A group whose commands are listed in `COMMANDS`.

    One command's imports (JAX takes a second) would otherwise slow down every other command, and with it
    each start of `trainband run`.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Imports a command; `None` if it does not exist."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(f"trainband.cli.{cmd_name}"), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Writes the summaries without importing the commands."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def _print_version(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted:
        from importlib import metadata  # 30 ms that no other command needs

        try:
            version = metadata.version("trainband")
        except metadata.PackageNotFoundError:
            version = "(not installed)"
        click.echo(f"trainband {version}")
        ctx.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_print_version, help="Show the version."
)
@click.option(
    "--log-level",
    type=click.Choice(LEVELS),
    help="Log the launcher and its tasks at this level and above to stderr.  [default: $TRAINBAND_LOG]",
)
@click.option(
    "--log-format",
    type=click.Choice(FORMATS),
    help="Write to stderr as text, or as one JSON object a line.  [default: $TRAINBAND_LOG_FORMAT, else text]",
)
def cli(log_level: str | None, log_format: str | None) -> None:
    """Train one model on whatever machines you have."""
    if log_level is not None:
        os.environ[VARIABLE] = log_level  # for the tasks that `run` starts, too
    if log_format is not None:
        os.environ[FORMAT] = log_format
    follow_environment()


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs the program and exits: 0 on success, 2 if its input cannot be used.

    Args:
      arguments: without the program's name; `sys.argv[1:]` when `None`.
    """
    try:
        cli.main(args=None if arguments is None else list(arguments), prog_name="trainband")
    except TrainbandError as exc:
        text = printable(f"error: {exc}", newline="\n    ")
        if os.environ.get(FORMAT, "").lower() == "json":
            text = event(when=time.time(), level="error", logger="trainband.cli", message=text, task=NOBODY)
        click.echo(text, err=True)
        sys.exit(2)
    sys.exit(0)


if __name__ == "__main__":
    main()
