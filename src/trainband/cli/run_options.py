"""The options of `trainband run`, grouped by subject."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from trainband.cli.json_output import JsonOutput
from trainband.cli.run_output import Output, StreamOutput
from trainband.cluster.resolvers.credentials import INSECURE, MEANING, TLS_DIRECTORY, without_security
from trainband.cluster.resolvers.log_level import log_format
from trainband.cluster.resolvers.metrics import HOST as METRICS_HOST
from trainband.cluster.resolvers.metrics import PORT as METRICS_PORT
from trainband.cluster.resolvers.transport import TRANSPORT, resolve_transport, resolve_trusted_fabric
from trainband.cluster.task import Task
from trainband.cluster.transport_choice import TransportChoice
from trainband.errors import YourError
from trainband.launch.options import Restarts
from trainband.launch.request import JobRequest
from trainband.runtime.waiting import say_on_stderr


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramOptions:
    """The program that each task runs."""

    arguments: tuple[str, ...]
    as_module: bool
    tensorflow: str | None
    convert: bool

    def command(self, ctx: click.Context, script: str) -> list[str]:
        """The arguments of Python in each task.

        Raises:
          click.UsageError: options contradict each other.
          YourError: there is no such script.
        """
        arguments = script_arguments(ctx, script, self.arguments)
        if self.tensorflow and self.as_module:
            raise click.UsageError("--tensorflow runs a script, not a module: leave -m out.", ctx)
        if self.convert and not self.tensorflow:
            raise click.UsageError("--convert is for TensorFlow scripts: add --tensorflow.", ctx)
        if not self.as_module and not Path(script).exists():
            raise YourError(f"there is no script {script!r} in {Path.cwd()}.")
        version = ["--tensorflow", self.tensorflow] if self.tensorflow in ("1", "2") else []
        compat = ["-m", "trainband.compat", *version, *(["--convert"] if self.convert else [])]
        return [*(["-m"] if self.as_module else compat if self.tensorflow else []), script, *arguments]


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskOptions:
    """The number of tasks, and of their restarts."""

    ps: int
    workers: int
    chief: bool
    evaluator: bool
    restarts: int
    min_workers: int | None
    threads: int | None

    def request(self, command: Sequence[str], environ: Mapping[str, str], *, tls: bool) -> JobRequest:
        """The requested job; errors name the options of the command line.

        Raises:
          YourError: no task trains, or `--min-workers` contradicts the other options.
        """
        if not self.workers and not self.chief:
            raise YourError("--workers must be at least 1, or no task trains; with --chief, it may be 0.")
        if self.min_workers is not None and self.ps:
            raise YourError(
                f"--min-workers is for jobs without ps, whose workers train in lockstep: add --ps 0. With "
                f"--ps {self.ps}, workers may come and go."
            )
        if self.min_workers is not None and self.min_workers > self.workers:
            raise YourError(
                f"--min-workers must be at most the number of workers, which is {self.workers}, got {self.min_workers}."
            )
        return JobRequest(
            program=command,
            environment=environ,
            ps=self.ps,
            workers=self.workers,
            chief=self.chief,
            evaluator=self.evaluator,
            restarts=Restarts(limit=self.restarts),
            min_workers=self.min_workers,
            threads=self.threads,
            tls=tls,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class SettingOptions:
    """Settings that tasks read from their environment."""

    tls: str | None
    insecure: bool
    transport: str | None
    metrics_port: int | None
    metrics_host: str | None

    def environment(self, ctx: click.Context, environ: Mapping[str, str]) -> Mapping[str, str]:
        """`environ` with these settings.

        Raises:
          click.UsageError: options contradict each other.
          ClusterError: the transport must not be used with these settings.
          TransportUnavailable: the transport is not installed here.
        """
        if self.tls is not None and self.insecure:
            raise click.UsageError("--tls and --insecure contradict each other.", ctx)
        if self.metrics_host is not None and self.metrics_port is None and not environ.get(METRICS_PORT):
            raise click.UsageError("--metrics-host needs --metrics-port, or no task serves metrics.", ctx)
        if self.insecure:
            environ = {**without_security(environ), INSECURE: "1"}
            say_on_stderr(f"WARNING: {MEANING}")
        elif self.tls not in (None, "auto"):
            environ = {**without_security(environ), TLS_DIRECTORY: str(self.tls)}
        # Tasks may share a machine, so each takes the next port.
        port = f"{self.metrics_port}+" if self.metrics_port else "0" if self.metrics_port == 0 else None
        said = {TRANSPORT: self.transport, METRICS_PORT: port, METRICS_HOST: self.metrics_host}
        environ = {**environ, **{name: value for name, value in said.items() if value is not None}}
        transport = resolve_transport(environ)
        transport.require_trust(is_protected=not environ.get(INSECURE), trusted_fabric=resolve_trusted_fabric(environ))
        if transport is TransportChoice.UCX:  # if it is missing, one error here instead of one per task
            from trainband.wire.ucx import ucx

            ucx()
        return environ


@dataclass(frozen=True, kw_only=True, slots=True)
class OutputOptions:
    """Where the user sees the job."""

    page: bool | None
    quiet: bool
    log_dir: Path | None
    plain: bool

    def output(self, tasks: Sequence[Task], environ: Mapping[str, str]) -> Output:
        """The output for the tasks' lines."""
        if log_format(environ) == "json" and not self.plain:
            return JsonOutput(stdout=sys.stdout, stderr=sys.stderr, quiet=self.quiet)
        return StreamOutput(tasks, stdout=sys.stdout, stderr=sys.stderr, environ=environ, quiet=self.quiet)

    def wants_page(self, on: str) -> bool:
        """Whether to serve a page: if requested, or by default for a local job on a terminal.

        Raises:
          YourError: it was requested, and the extra is missing.
        """
        if self.page is False or (self.page is None and (on != "local" or self.quiet or not sys.stderr.isatty())):
            return False
        from trainband.cli.page_process import can_show_page

        if self.page and not can_show_page():
            raise YourError(
                "--dashboard needs Starlette and uvicorn, which are not installed: pip install 'trainband[dashboard]'."
            )
        return can_show_page()


def script_arguments(ctx: click.Context, script: str, arguments: Sequence[str]) -> tuple[str, ...]:
    """The arguments after SCRIPT, without a leading `--`.

    Raises:
      click.UsageError: there is no `--`, and one is an option of trainband. It may be meant for either: to run two
        workers for `train.py --workers 8` would be a bad guess.
    """
    if arguments and arguments[0] == "--":
        return tuple(arguments[1:])
    ours = {name for parameter in ctx.command.params for name in parameter.opts if name.startswith("--")}
    for argument in arguments:
        if argument == "--":
            break
        name = argument.partition("=")[0]
        if name in ours:
            raise click.UsageError(
                f"{name} after {script} could be for the script or for trainband: "
                f"write it before {script} for trainband, or after `--` for the script.",
                ctx,
            )
    return tuple(arguments)
