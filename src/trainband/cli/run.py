"""`trainband run`: runs a script as all the tasks of a cluster."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from trainband.cli.options import pop_options
from trainband.cli.run_options import OutputOptions, ProgramOptions, SettingOptions, TaskOptions
from trainband.cli.run_output import Output, describe_failure, is_noise
from trainband.cli.task_logs import TaskLogs
from trainband.cli.tensorflow_script import for_strategy, with_version
from trainband.cluster.cluster import Cluster
from trainband.cluster.resolvers.joined import PAGE
from trainband.cluster.resolvers.local_jobs import environment_of, find_job_secret, is_decided
from trainband.cluster.task import Task
from trainband.cluster.transport_choice import TransportChoice
from trainband.launch.backend import Backend, Run, Watcher, drop
from trainband.launch.backends.choice import BACKENDS, choose, read_options
from trainband.launch.elastic_workers import LocalElasticWorkers
from trainband.launch.options import Restarts
from trainband.launch.request import JobRequest
from trainband.runtime.formatting import LINE_PREFIX, printable

LAST_LINES = 20


# Not run's docstring: click's \b, which keeps line breaks, does not work in a raw docstring.
_HELP = """Run SCRIPT as all the tasks of a cluster, on this machine or on the platform of --on.

Each task is a Python process that reads its role from TF_CONFIG. Arguments after SCRIPT go to the script.
A failed task is restarted up to --restarts times; then all tasks are ended, and its last lines and exit code are
shown. Ctrl-C ends all tasks.

Without ps, the job fails if any worker does: --restarts restarts all workers, with --min-workers without the one
that fails too often.

With --join, the tasks are elastic workers of a job that already runs, on this machine or another. Each joins as
worker:N with the next free N, and the job ends as it would have without them.

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
      logs: also records what each task prints.

    Raises:
      YourError: the backend cannot run the requested job.
    """
    if page:
        request = replace(request, environment={**request.environment, PAGE: "1"})
    run = backend.prepare(request, _watcher(output, logs))
    return _run_to_end(run, output, page_for=request.environment if page else None)


def _watcher(output: Output, logs: TaskLogs | None) -> Watcher:
    def line(task: Task, stream: str, text: str) -> None:
        if logs is not None:
            logs.line(task, text)
        output.line(task, text, stream)

    return Watcher(
        line=line,
        started=drop if logs is None else logs.started,
        report=lambda text: output.report(launcher_line(text)),
        keep_lines=LAST_LINES,
    )


def launcher_line(text: str) -> str:
    """A message of the launcher as a line."""
    return printable(f"{LINE_PREFIX}{text}", newline="\n    ")


def join(
    command: Sequence[str],
    *,
    workers: Sequence[Cluster],
    restarts: int = 0,
    threads: int | None,
    environ: Mapping[str, str],
    output: Output,
    logs: TaskLogs | None = None,
) -> int:
    """Runs elastic workers of a job to their end and shows them on `output`. Returns the exit code."""
    tasks = LocalElasticWorkers(
        command,
        workers=workers,
        environ=environ,
        restarts=Restarts(limit=restarts),
        threads=threads,
        watcher=_watcher(output, logs),
    )
    return _run_to_end(tasks, output)


ALONE = (
    "trainband: WARNING: no task joined the cluster; each ran the program alone. Pass a strategy that uses the "
    "cluster, such as trainband.ParameterServer(trainband.cluster.resolve()), to Trainer(strategy=...), or make a "
    "Keras model within `with strategy.scope():`."
)


NO_PAGE = (
    "there is no page of this job, because its tasks run elsewhere and this machine reaches none of its ps. To see it, "
    "run `trainband dashboard --checkpoint-dir DIR` on a machine that has the checkpoint_dir of the training."
)


def _run_to_end(cluster: Run, output: Output, page_for: Mapping[str, str] | None = None) -> int:
    """`page_for`: the environment of the process that serves a page of the job; `None` for no page."""
    with cluster:
        spec = cluster.spec
        with nullcontext() if spec is None else output.watching(spec), _page(cluster, page_for, output):
            outcome = cluster.wait()
        if outcome.failed is not None:
            width = min(100, shutil.get_terminal_size().columns)
            last_lines = [line for line in cluster.last_lines(outcome.failed) if not is_noise(line)]
            output.report(describe_failure(outcome.failed, outcome.reason, last_lines, width=width))
        elif outcome.kind == "succeeded" and not cluster.has_been_joined and spec and len(list(spec.tasks())) > 1:
            output.report(ALONE)
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
        output.report(launcher_line(NO_PAGE))
        return nullcontext()
    return PageProcess(find, environ, lambda text: output.report(launcher_line(text)))


class RunCommand(click.Command):
    """Command that explains where an option of the script belongs."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Also accepts `--tensorflow 2` and a bare `--tensorflow`."""
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
@click.option("--ps", type=click.IntRange(min=0), default=1, show_default=True, help="Number of parameter servers.")
@click.option(
    "--workers", type=click.IntRange(min=0), default=2, show_default="2, with --join 1", help="Number of workers."
)
@click.option("--join", "job", metavar="HOST:PORT", help="Join the running job of this ps with elastic workers.")
@click.option("--chief", is_flag=True, help="Add a chief; without one, worker:0 is the chief.")
@click.option("--evaluator", is_flag=True, help="Add a task that evaluates every checkpoint.")
@click.option(
    "--on",
    type=click.Choice(list(BACKENDS)),
    default="local",
    show_default=True,
    help="The platform to run the tasks on (docs/run).",
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
@click.option("--quiet", is_flag=True, help="Show only SCRIPT's own output, and failures.")
@click.option(
    "--restarts",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="How often to restart a failed task (without ps, the whole job).",
)
@click.option(
    "--min-workers",
    type=click.IntRange(min=1),
    metavar="M",
    help="Without ps: drop a worker that fails more often than --restarts allows, as long as M remain.  [default: all]",
)
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    help="Size of each task's XLA thread pool.  [default: the cores, shared out among the workers]",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address of this machine that tasks serve on.")
@click.option(
    "--tls",
    metavar="DIR|auto",
    help="Encrypt traffic with the certificates in DIR, or with new ones.  [default: $TRAINBAND_TLS]",
)
@click.option("--insecure", is_flag=True, help="Let anyone who reaches a ps read the model and take over the job.")
@click.option(
    "--transport",
    type=click.Choice([transport.value for transport in TransportChoice]),  # click takes the names of an enum
    help="Transport of the streams between tasks (docs/networks.md).  [default: $TRAINBAND_TRANSPORT, else auto]",
)
@click.option(
    "--tensorflow",
    type=click.Choice(["1", "2", "auto"]),
    metavar="[1|2]",
    help="Run SCRIPT as an unchanged TensorFlow script. Without a version, the names it uses decide.",
)
@click.option("--convert", is_flag=True, help="With --tensorflow: convert SCRIPT from Python 2 first, in memory.")
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Serve each task's Prometheus metrics: the first ps on PORT, each further task on the next; 0: free ports."
    "  [default: $TRAINBAND_METRICS_PORT, else none]",
)
@click.option(
    "--metrics-host",
    metavar="ADDRESS",
    help="Address of the metrics, such as 0.0.0.0 for every machine that reaches this one."
    "  [default: $TRAINBAND_METRICS_HOST, else 127.0.0.1]",
)
@click.option(
    "--log-dir",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Append each task's output to its own file in DIR, such as worker-1.log.",
)
@click.option("--plain", is_flag=True, hidden=True, help="The launcher writes text, whatever --log-format says.")
@click.option("-m", "as_module", is_flag=True, help="SCRIPT is the name of a module, as for python -m.")
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[--] [ARGS]...")
@click.pass_context
def run(
    ctx: click.Context, /, script: str, job: str | None, on: str, options: tuple[str, ...], host: str, **given: Any
) -> None:
    """The command; `_HELP` is its documentation."""
    program, tasks = pop_options(ProgramOptions, given), pop_options(TaskOptions, given)
    settings, shown = pop_options(SettingOptions, given), pop_options(OutputOptions, given)
    command = program.command(ctx, script)
    if program.tensorflow not in (None, "1") and job is None:
        ps, chief = for_strategy(ctx, script, ps=tasks.ps, chief=tasks.chief)
        tasks = replace(tasks, ps=ps, chief=chief)
    environ = settings.environment(ctx, os.environ)
    try:
        if job is not None:
            joining = _places(ctx, job, tasks.workers, environ)
            secret = None if is_decided(environ) else find_job_secret(job, environ)
            if secret is not None:
                environ = {**environ, **environment_of(secret)}
            output = shown.output([cluster.task for cluster in joining], environ)
            with _kept(shown.log_dir, output) as logs:
                code = join(
                    command,
                    workers=joining,
                    restarts=tasks.restarts,
                    threads=tasks.threads,
                    environ=environ,
                    output=output,
                    logs=logs,
                )
        else:
            if ctx.get_parameter_source("host") is not ParameterSource.DEFAULT:
                options = (*options, f"host={host}")
            request = tasks.request(command, environ, tls=settings.tls == "auto")
            output = shown.output(request.tasks(), environ)
            with _kept(shown.log_dir, output) as logs:
                backend, page = choose(on, read_options(on, options)), shown.wants_page(on)
                code = launch(backend, request, output, logs=logs, page=page)
    except KeyboardInterrupt:
        # Ctrl-C while the tasks were being started: they have been ended on the way out.
        code = 128 + signal.SIGINT
    ctx.exit(code)


def _kept(directory: Path | None, output: Output) -> AbstractContextManager[TaskLogs | None]:
    """The log files of the tasks if a directory was given for them."""
    return nullcontext() if directory is None else TaskLogs(directory, lambda text: output.report(launcher_line(text)))


def _places(ctx: click.Context, job: str, workers: int, environ: Mapping[str, str]) -> list[Cluster]:
    """Asks a job for places for `workers` workers, by default for one.

    Raises:
      click.UsageError: an option was given that only makes sense for a new job.
    """
    given = {
        name
        for name in ("ps", "workers", "chief", "evaluator", "host", "min_workers", "on", "options")
        if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT
    }
    for name in ("ps", "chief", "evaluator", "host", "min_workers", "on", "options"):
        if name in given:
            option = "-o" if name == "options" else f"--{name.replace('_', '-')}"
            raise click.UsageError(f"--join adds workers to a running job; leave {option} out.", ctx)
    if not workers:
        raise click.UsageError("--join with --workers 0 starts nothing; give at least 1.", ctx)
    from trainband.cli.join import (
        find_places,  # imports pyarrow, which takes a second and which no other way of running needs
    )

    return find_places(job, workers if "workers" in given else 1, environ=environ)
