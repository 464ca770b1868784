"""The program `trainband`: finds the command that was asked for and says plainly what was wrong with it."""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

import click

from trainband.cluster.resolvers.log_level import FORMAT, VARIABLE, follow_environment
from trainband.errors import TrainbandError
from trainband.runtime.formatting import printable
from trainband.runtime.logs import FORMATS, LEVELS, NOBODY, event


@dataclass(frozen=True, slots=True)
class LazyCommand:
    """Where a command is, so that it is imported when it is called and not before.

    Attributes:
      module: of the package `trainband.cli`.
      attribute: the click command in it.
      summary: for `trainband --help`, which thus imports no command.
    """

    module: str
    attribute: str
    summary: str


COMMANDS = {
    "run": LazyCommand("trainband.cli.run", "run", "Run a script as all the tasks of a cluster on this machine."),
    "status": LazyCommand("trainband.cli.status", "status", "Show what a running job's tasks are doing."),
    "dashboard": LazyCommand("trainband.cli.dashboard", "dashboard", "Show a job on a page in the browser."),
    "top": LazyCommand("trainband.cli.top", "top", "Show a running job in the terminal, like top."),
    "profile": LazyCommand("trainband.cli.profile", "profile", "Record some steps of a running job as a trace."),
    "doctor": LazyCommand(
        "trainband.cli.doctor", "doctor", "Show what this machine has and what trainband would use of it."
    ),
    "checkpoint": LazyCommand(
        "trainband.cli.checkpoint", "checkpoint", "List, look into, check, compare and export checkpoints."
    ),
    "compress": LazyCommand("trainband.cli.compress", "compress", "Write a checkpoint in fewer bytes."),
    "export": LazyCommand("trainband.cli.export", "export", "Export a checkpoint and a function for other programs."),
    "serve": LazyCommand("trainband.cli.serve", "serve", "Serve predictions over HTTP."),
    "kubernetes": LazyCommand("trainband.cli.kubernetes", "kubernetes", "Write the manifest of a job for Kubernetes."),
    "secret": LazyCommand("trainband.cli.secret", "secret", "Make a secret for the tasks of a job."),
    "certs": LazyCommand("trainband.cli.certs", "certs", "Make certificates for the tasks of a job."),
}


class LazyGroup(click.Group):
    """A group whose commands stand in `COMMANDS`.

    One command's imports (JAX takes a second) would otherwise slow down every other command, and with it
    each start of `trainband run`.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """The names of the commands."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Imports a command, `None` when there is no such one."""
        if cmd_name not in COMMANDS:
            return None
        lazy = COMMANDS[cmd_name]
        command = getattr(importlib.import_module(lazy.module), lazy.attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{lazy.module}.{lazy.attribute} is no click command but {command!r}.")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Writes the summaries without importing the commands."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, lazy.summary) for name, lazy in COMMANDS.items()])


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
    help="Print the log of the launcher and its tasks, from this level on, to stderr.  [default: $TRAINBAND_LOG]",
)
@click.option(
    "--log-format",
    type=click.Choice(FORMATS),
    help="How the launcher and its tasks write to stderr: as text, or one JSON object a line.  "
    "[default: $TRAINBAND_LOG_FORMAT, else text]",
)
def cli(log_level: str | None, log_format: str | None) -> None:
    """Train one model on whatever machines you have."""
    if log_level is not None:
        os.environ[VARIABLE] = log_level  # for the tasks that `run` starts, too
    if log_format is not None:
        os.environ[FORMAT] = log_format
    follow_environment()


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs the program and exits: 0 when all went well, 2 when what it was given cannot be used.

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
