"""`trainband run`: a script as all the tasks of a cluster."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

import click
from click.core import ParameterSource

from trainband.cli.json_output import JsonOutput
from trainband.cli.run_output import Output, StreamOutput, describe_failure, is_noise
from trainband.cli.task_logs import TaskLogs
from trainband.cli.tensorflow_script import for_strategy, with_version
from trainband.cli.transport_check import check_transport
from trainband.cluster.carrier import Carrier
from trainband.cluster.cluster import Cluster
from trainband.cluster.resolvers.credentials import (
    INSECURE,
    MEANING,
    TLS_DIRECTORY,
    without_security,
)
from trainband.cluster.resolvers.joined import PAGE
from trainband.cluster.resolvers.local_jobs import environment_of, find_job_secret, is_decided
from trainband.cluster.resolvers.log_level import log_format
from trainband.cluster.resolvers.metrics import HOST as METRICS_HOST
from trainband.cluster.resolvers.metrics import PORT as METRICS_PORT
from trainband.cluster.resolvers.transport import TRANSPORT
from trainband.cluster.task import Task
from trainband.errors import YourError
from trainband.launch.backends.base import Backend, Run, Watcher, drop
from trainband.launch.backends.choice import BACKENDS, choose, read_options
from trainband.launch.guests import LocalGuests
from trainband.launch.options import Restarts
from trainband.launch.request import JobRequest
from trainband.runtime.formatting import LINE_PREFIX, printable
from trainband.runtime.waiting import say_on_stderr

LAST_LINES = 20


# Not run's docstring, because click's mark \b for lines to leave as they are cannot stand in a raw one.
_HELP = """Run SCRIPT as all the tasks of a cluster, on this machine or where --on says.

Each task is a Python process that finds in TF_CONFIG who it is. What follows SCRIPT goes to it.
When a task fails, it is started again as often as --restarts says; then all are ended, and its last lines and exit
code are shown. Ctrl-C ends them all.

Without ps, the workers are one job that dies with any of them: --restarts starts them all again, and with
--min-workers, without the one that fails too often.

With --join, the tasks are workers that take part in a job which runs already, on this machine or another: nobody need
have planned them. They come as worker:N with the next free N, and the job ends as it would have without them.

\b
    trainband run train.py
    trainband run --ps 2 --workers 4 train.py -- --steps 1000
    trainband run -m my.trainer --steps 1000
    trainband run --on ssh -o hostfile=hosts.txt --workers 4 train.py
    trainband run --join 10.0.0.7:2222 train.py
    trainband run --tensorflow --ps 1 --workers 2 tensorflow_script.py
"""


def launch(
    backend: Backend, request: JobRequest, output: Output, *, logs: TaskLogs | None = None, page: bool = False
) -> int:
    """Runs a job to its end and shows it on `output`. Returns the exit code.

    Args:
      logs: keeps what each task prints, beside that.
      page: whether to serve a page of it.

    Raises:
      YourError: the job cannot be run there as it was asked for.
    """
    if page:
        request = replace(request, environment={**request.environment, PAGE: "1"})
    run = backend.prepare(request, _watcher(output, logs))
    return _see_to_its_end(run, output, page_for=request.environment if page else None)


def _watcher(output: Output, logs: TaskLogs | None) -> Watcher:
    def line(task: Task, stream: str, text: str) -> None:
        if logs is not None:
            logs.line(task, text)
        output.line(task, text, stream)

    return Watcher(
        line=line,
        started=drop if logs is None else logs.started,
        note=lambda text: output.note(noted(text)),
        keep_lines=LAST_LINES,
    )


def noted(text: str) -> str:
    """What the launcher says, as a line of its own."""
    return printable(f"{LINE_PREFIX}{text}", newline="\n    ")


def join(
    command: Sequence[str],
    *,
    guests: Sequence[Cluster],
    restarts: int = 0,
    threads: int | None,
    environ: Mapping[str, str],
    output: Output,
    logs: TaskLogs | None = None,
) -> int:
    """Runs guests of a job to their end and shows them on `output`. Returns the exit code."""
    tasks = LocalGuests(
        command,
        guests=guests,
        environ=environ,
        restarts=Restarts(limit=restarts),
        threads=threads,
        on_line=(watcher := _watcher(output, logs)).line,
        on_note=watcher.note,
        on_start=watcher.started,
        keep_lines=LAST_LINES,
    )
    return _see_to_its_end(tasks, output)


ALONE = (
    "trainband: WARNING: no task joined the cluster: each ran the program by itself. Pass a strategy that knows the "
    "cluster, such as trainband.ParameterServer(trainband.cluster.resolve()), to Trainer(strategy=...), or make a "
    "Keras model within `with strategy.scope():`."
)


NO_PAGE = (
    "there is no page of this job, because its tasks run elsewhere and no ps of it can be asked from here. To see it, "
    "run `trainband dashboard --checkpoint-dir DIR` on a machine that has the checkpoint_dir of the training."
)


def _see_to_its_end(cluster: Run, output: Output, page_for: Mapping[str, str] | None = None) -> int:
    """`page_for`: the environment of the process that serves a page of the job; `None` for no page."""
    with cluster:
        spec = cluster.spec
        with nullcontext() if spec is None else output.watching(spec), _page(cluster, page_for, output):
            outcome = cluster.wait()
        if outcome.failed is not None:
            width = min(100, shutil.get_terminal_size().columns)
            last_lines = [line for line in cluster.last_lines(outcome.failed) if not is_noise(line)]
            output.note(describe_failure(outcome.failed, outcome.reason, last_lines, width=width))
        elif outcome.kind == "succeeded" and not cluster.has_been_joined and spec and len(list(spec.tasks())) > 1:
            output.note(ALONE)
    return outcome.exit_code


def _page(cluster: Run, environ: Mapping[str, str] | None, output: Output) -> AbstractContextManager[object]:
    if environ is None:
        return nullcontext()
    from trainband.cli.page_process import PageProcess, history_of, ps_of

    spec, shared = cluster.spec, cluster.shared_directory
    if spec is not None and spec.ps:
        find = ps_of(spec, shared)
    elif shared is not None:
        find = history_of(shared)
    else:
        output.note(noted(NO_PAGE))
        return nullcontext()
    return PageProcess(find, environ, lambda text: output.note(noted(text)))


def _wants_page(wanted: bool | None, on: str, *, quiet: bool) -> bool:
    """Whether to serve a page: where it was asked for, or of a local job that somebody looks at on a terminal.

    Raises:
      YourError: it was asked for, and the extra is missing.
    """
    if wanted is False or (wanted is None and (on != "local" or quiet or not sys.stderr.isatty())):
        return False
    from trainband.cli.page_process import can_show_page

    if wanted and not can_show_page():
        raise YourError("--dashboard needs Starlette and uvicorn: pip install 'trainband[serve]'.")
    return can_show_page()


class RunCommand(click.Command):
    """Tells somebody who gives an option of the script to trainband where it goes."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As `click.Command.parse_args`, with `--tensorflow 2` and a bare `--tensorflow`."""
        try:
            return super().parse_args(ctx, with_version(args))
        except click.NoSuchOption as exc:
            ours = [name for parameter in self.params for name in parameter.opts]
            alike = get_close_matches(exc.option_name, ours, cutoff=0.8)
            message = f"trainband run has no option {exc.option_name}."
            if exc.option_name == "--log-level":
                message += " Write it before the command: trainband --log-level info run ..."
            elif alike:
                message += f" Did you mean {' or '.join(alike)}?"
            else:
                message += f" If it is an option of the script, write it after SCRIPT: train.py {exc.option_name} ..."
            raise click.UsageError(message, ctx) from None


@click.command(
    cls=RunCommand,
    context_settings={"allow_interspersed_args": False, "help_option_names": ["-h", "--help"]},
    help=_HELP,
)
@click.option("--ps", type=click.IntRange(min=0), default=1, show_default=True, help="How many parameter servers.")
@click.option(
    "--workers", type=click.IntRange(min=0), default=2, show_default="2, with --join 1", help="How many workers."
)
@click.option(
    "--join", "job", metavar="HOST:PORT", help="Join the job of the ps there, with workers that nobody planned."
)
@click.option("--chief", is_flag=True, help="A chief beside the workers; without one, worker:0 is the chief.")
@click.option("--evaluator", is_flag=True, help="A task beside them that evaluates every checkpoint.")
@click.option(
    "--on",
    type=click.Choice(list(BACKENDS)),
    default="local",
    show_default=True,
    help="The platform that the tasks run on (docs/run).",
)
@click.option(
    "-o",
    "options",
    multiple=True,
    metavar="OPTION=VALUE",
    help="An option of that platform, such as -o hostfile=hosts.txt; may be given several times.",
)
@click.option(
    "--dashboard/--no-dashboard",
    "page",
    default=None,
    help="Serve a page of the job and print its address.  [default: on a terminal, for local jobs]",
)
@click.option("--quiet", is_flag=True, help="Show only what SCRIPT itself prints, and failures.")
@click.option(
    "--restarts",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="How often to restart a failed task, or without ps the whole job.",
)
@click.option(
    "--min-workers",
    type=click.IntRange(min=1),
    metavar="M",
    help="Without ps: leave out a worker that fails more often than --restarts allows, as long as M remain."
    "  [default: all]",
)
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    help="Size of each task's XLA thread pool.  [default: the cores, shared out among the workers]",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address of this machine to serve on.")
@click.option(
    "--tls",
    metavar="DIR|auto",
    help="Encrypt what tasks send, with the certificates in DIR or with new ones.  [default: $TRAINBAND_TLS]",
)
@click.option("--insecure", is_flag=True, help="Let anybody who reaches a ps read the model and take over the job.")
@click.option(
    "--transport",
    type=click.Choice([carrier.value for carrier in Carrier]),  # click takes the names of an enum
    help="What carries the streams between tasks (docs/networks.md).  [default: $TRAINBAND_TRANSPORT, else auto]",
)
@click.option(
    "--tensorflow",
    type=click.Choice(["1", "2", "auto"]),
    metavar="[1|2]",
    help="SCRIPT is one of TensorFlow, and is run unchanged. Without a version, what it uses decides.",
)
@click.option("--convert", is_flag=True, help="With --tensorflow: convert SCRIPT from Python 2 first, in memory.")
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Serve each task's metrics for Prometheus: the first ps at PORT, each further task at the next; 0: any ports."
    "  [default: $TRAINBAND_METRICS_PORT, else none]",
)
@click.option(
    "--metrics-host",
    metavar="ADDRESS",
    help="Where tasks serve them, such as 0.0.0.0 for whoever reaches the machine."
    "  [default: $TRAINBAND_METRICS_HOST, else 127.0.0.1]",
)
@click.option(
    "--log-dir",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Append what each task prints to a file of its own there, such as worker-1.log.",
)
@click.option("--plain", is_flag=True, hidden=True, help="The launcher writes text, whatever --log-format says.")
@click.option("-m", "as_module", is_flag=True, help="SCRIPT is the name of a module, as for python -m.")
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[--] [ARGS]...")
@click.pass_context
def run(
    ctx: click.Context,
    ps: int,
    workers: int,
    job: str | None,
    chief: bool,
    evaluator: bool,
    on: str,
    options: tuple[str, ...],
    page: bool | None,
    quiet: bool,
    restarts: int,
    min_workers: int | None,
    threads: int | None,
    host: str,
    tls: str | None,
    insecure: bool,
    transport: str | None,
    tensorflow: str | None,
    convert: bool,
    metrics_port: int | None,
    metrics_host: str | None,
    log_dir: Path | None,
    plain: bool,
    as_module: bool,
    script: str,
    arguments: tuple[str, ...],
) -> None:
    """The command; `_HELP` is its documentation."""
    arguments = script_arguments(ctx, script, arguments)
    if tensorflow and as_module:
        raise click.UsageError("--tensorflow runs a script, and not a module: leave -m out.", ctx)
    if convert and not tensorflow:
        raise click.UsageError("--convert is for scripts of TensorFlow: add --tensorflow.", ctx)
    if not as_module and not Path(script).exists():
        raise YourError(f"there is no script {script!r} in {Path.cwd()}.")
    version = ["--tensorflow", tensorflow] if tensorflow in ("1", "2") else []
    compat = ["-m", "trainband.compat", *version, *(["--convert"] if convert else [])]
    command = [*(["-m"] if as_module else compat if tensorflow else []), script, *arguments]
    if tensorflow not in (None, "1") and job is None:
        ps, chief = for_strategy(ctx, script, ps=ps, chief=chief)
    if tls is not None and insecure:
        raise click.UsageError("--tls and --insecure contradict each other.", ctx)
    environ: Mapping[str, str] = os.environ
    if insecure:
        environ = {**without_security(environ), INSECURE: "1"}
        say_on_stderr(f"WARNING: {MEANING}")
    elif tls not in (None, "auto"):
        environ = {**without_security(environ), TLS_DIRECTORY: str(tls)}
    if transport is not None:
        environ = {**environ, TRANSPORT: transport}
    environ = {**environ, **_metrics(ctx, metrics_port, metrics_host, environ)}
    check_transport(environ, encrypted=tls is not None or bool(environ.get(TLS_DIRECTORY)))

    def output_for(tasks: Sequence[Task]) -> Output:
        if log_format(environ) == "json" and not plain:
            return JsonOutput(stdout=sys.stdout, stderr=sys.stderr, quiet=quiet)
        return StreamOutput(tasks, stdout=sys.stdout, stderr=sys.stderr, environ=environ, quiet=quiet)

    try:
        if job is not None:
            guests = _places(ctx, job, workers, environ)
            secret = None if is_decided(environ) else find_job_secret(job, environ)
            if secret is not None:
                environ = {**environ, **environment_of(secret)}
            output = output_for([guest.task for guest in guests])
            with _kept(log_dir, output) as logs:
                code = join(
                    command,
                    guests=guests,
                    restarts=restarts,
                    threads=threads,
                    environ=environ,
                    output=output,
                    logs=logs,
                )
        else:
            _check_numbers(ps=ps, workers=workers, chief=chief, min_workers=min_workers)
            if ctx.get_parameter_source("host") is not ParameterSource.DEFAULT:
                options = (*options, f"host={host}")
            request = JobRequest(
                program=command,
                environment=environ,
                ps=ps,
                workers=workers,
                chief=chief,
                evaluator=evaluator,
                restarts=Restarts(limit=restarts),
                min_workers=min_workers,
                threads=threads,
                tls=tls == "auto",
            )
            output = output_for(request.tasks())
            with _kept(log_dir, output) as logs:
                code = launch(
                    choose(on, read_options(on, options)),
                    request,
                    output,
                    logs=logs,
                    page=_wants_page(page, on, quiet=quiet),
                )
    except KeyboardInterrupt:
        # Ctrl-C while the tasks were being started: they have been ended on the way out.
        code = 128 + signal.SIGINT
    ctx.exit(code)


def _metrics(ctx: click.Context, port: int | None, host: str | None, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables by which tasks are told where to serve their metrics. They may share a machine."""
    if host is not None and port is None and not environ.get(METRICS_PORT):
        raise click.UsageError("--metrics-host needs --metrics-port, or no task serves metrics.", ctx)
    found = {} if port is None else {METRICS_PORT: f"{port}+" if port else "0"}
    return found if host is None else {**found, METRICS_HOST: host}


def _kept(directory: Path | None, output: Output) -> AbstractContextManager[TaskLogs | None]:
    """What keeps the tasks' lines, where somebody has named a directory for it."""
    return nullcontext() if directory is None else TaskLogs(directory, lambda text: output.note(noted(text)))


def _check_numbers(*, ps: int, workers: int, chief: bool, min_workers: int | None) -> None:
    """Refuses a cluster that cannot be, in words of the command line.

    Raises:
      YourError: no task would train, or `--min-workers` does not go with the others.
    """
    if not workers and not chief:
        raise YourError("--workers must be at least 1, or no task would train; with --chief, it may be 0.")
    if min_workers is not None and ps:
        raise YourError(
            f"--min-workers is for a job without ps, whose workers can only train together: add --ps 0. With "
            f"--ps {ps}, workers may come and go."
        )
    if min_workers is not None and min_workers > workers:
        raise YourError(f"--min-workers must be at most the number of workers, which is {workers}, got {min_workers}.")


def _places(ctx: click.Context, job: str, workers: int, environ: Mapping[str, str]) -> list[Cluster]:
    """The places that a job has for so many workers, for one where nobody has said how many.

    Raises:
      click.UsageError: an option was given that only makes sense for a job of one's own.
    """
    given = {
        name
        for name in ("ps", "workers", "chief", "evaluator", "host", "min_workers", "on", "options")
        if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT
    }
    for name in ("ps", "chief", "evaluator", "host", "min_workers", "on", "options"):
        if name in given:
            option = "-o" if name == "options" else f"--{name.replace('_', '-')}"
            raise click.UsageError(f"--join adds workers to a job that runs already; {option} cannot go with it.", ctx)
    if not workers:
        raise click.UsageError("--join with --workers 0 would start nothing.", ctx)
    from trainband.cli.join import (
        find_places,  # with pyarrow, which takes a second and which no other way of running needs
    )

    return find_places(job, workers if "workers" in given else 1, environ=environ)


def script_arguments(ctx: click.Context, script: str, arguments: Sequence[str]) -> tuple[str, ...]:
    """What follows SCRIPT, without the `--` that may stand before it.

    Raises:
      click.UsageError: without `--`, an option of ours stands among them: it may be meant for the script
        or for us, and to run two workers for somebody who wrote `train.py --workers 8` would be a bad guess.
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
                f"{name} after {script} may be meant for the script or for trainband: "
                f"write it before {script} for trainband, or after `--` for the script.",
                ctx,
            )
    return tuple(arguments)
