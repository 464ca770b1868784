"""`trainband status`: the tasks of a job, and its progress."""

from __future__ import annotations

import signal
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from trainband.cli.terminal import console_for_people
from trainband.cli.watch import watch
from trainband.job.statistics import PsStatus, TableStatus
from trainband.monitor.inquiry import Inquiry
from trainband.ps.rules.registry import describe_rule
from trainband.runtime.formatting import printable, printable_json, rate, size
from trainband.runtime.memory import PARTS, parts_text
from trainband.wire.messages.calls import UNLIMITED
from trainband.wire.messages.replication import NOBODY, ReplicaState

WATCH_S = 1.0
WIDE = 110
"""Fewest columns of a terminal on which workers' memory and devices are shown."""

ADVICE = "Give trainband status the address of a ps of a running job"


class StatusCommand(click.Command):
    """Makes the seconds of `--watch` optional; click alone would take the address for them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        following = [*args[1:], ""]
        given = [
            f"--watch={WATCH_S}" if name == "--watch" and not _is_number(value) else name
            for name, value in zip(args, following, strict=True)
        ]
        return super().parse_args(ctx, given)


@click.command(cls=StatusCommand)
@click.argument("address", metavar="HOST:PORT")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for programs.")
@click.option(
    "--watch",
    "every_s",
    type=click.FloatRange(min=0.1),
    metavar="[SECONDS]",
    help=f"Redraw every SECONDS until the job ends.  [default: {WATCH_S:g}]",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0, min_open=True),
    default=5.0,
    show_default=True,
    help="Seconds to wait for the answer.",
)
@click.pass_context
def status(ctx: click.Context, address: str, as_json: bool, every_s: float | None, timeout_s: float) -> None:
    """Shows the job of the ps at HOST:PORT: workers, global step, speed, staleness, placement, bytes."""
    if as_json and every_s is not None:
        raise click.UsageError("--watch and --json contradict each other: leave one out.", ctx)
    console = console_for_people()
    try:
        with Inquiry(address, timeout_s, advice=ADVICE) as inquiry:
            if every_s is not None:
                watch(inquiry.ask, show, console, every_s=every_s)
            elif as_json:
                click.echo(as_text(inquiry.ask()))
            else:
                show(inquiry.ask(), console)
    except KeyboardInterrupt:
        ctx.exit(128 + signal.SIGINT)


def as_text(answer: PsStatus) -> str:
    """The status as one JSON object; every record is an object with named fields, and NaN becomes null."""
    return printable_json(msgspec.json.format(msgspec.json.encode(_named(answer)), indent=2).decode())


def _named(value: Any) -> Any:
    """A record's values by name, even if it is sent as an array."""
    if isinstance(value, msgspec.Struct):
        return {name: _named(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, tuple | list):
        return [_named(one) for one in value]
    return value


def shown(value: Any) -> Any:
    """A record with all its texts made `printable`."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.replace(value, **{name: shown(getattr(value, name)) for name in value.__struct_fields__})
    if isinstance(value, tuple | list):
        return type(value)(map(shown, value))
    if isinstance(value, dict):
        return {shown(key): shown(one) for key, one in value.items()}
    return value


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def show(answer: PsStatus, console: Console) -> None:
    """Prints the status as tables, without control characters: any worker may have sent any text."""
    answer = shown(answer)
    _show_job(answer, console)
    console.print(_workers(answer, wide=console.width >= WIDE))
    if any(worker.memory_parts for worker in answer.workers):
        console.print(_memory(answer))
    _show_warnings(answer, console)
    variables = _table("variables", "name", "type", "where", right="size")
    for variable in answer.variables:
        where = [s.ps if len(variable.slices) == 1 else f"{s.ps}[{s.start}:{s.stop}]" for s in variable.slices]
        shape = ",".join(map(str, variable.shape))
        variables.add_row(variable.name, f"{variable.dtype}[{shape}]", ", ".join(where), size(variable.nbytes))
    console.print(variables)


def _of_table(table: TableStatus) -> str:
    looked_up, of_row = table.hits + table.misses, table.nbytes / max(table.rows, 1)
    return (
        f"table {table.name}: {table.rows:,} rows, {size(table.nbytes)} ({of_row:.0f} B a row)"
        + (f", {table.hits / looked_up:.1%} of lookups found a row" if looked_up else "")
        + f", {table.admitted:,} admitted, {table.refused:,} refused, {table.evicted:,} evicted"
    )


def _show_job(answer: PsStatus, console: Console) -> None:
    of = f" of {answer.last_version:,}" if 0 < answer.last_version < UNLIMITED else ""
    head = Text(answer.task, style="bold")
    head.append(f" at {answer.address}, up {answer.uptime_s:,.0f} s", style="not bold")
    if answer.trainband:
        head.append(f", trainband {answer.trainband}", style="not bold")
    console.print(head)
    console.print(
        f"global step {answer.version:,}{of}, {rate(answer.rate)} steps/s, loss "
        + ("not known yet" if answer.loss is None else f"{answer.loss:.4f}")
        + ("" if answer.learning_rate is None else f", learning rate {answer.learning_rate:.4g}"),
        highlight=False,
    )
    console.print(
        f"update rule {describe_rule(answer.rule) if answer.rule else 'not defined yet'}, staleness median "
        f"{answer.staleness_median:g}, p99 {answer.staleness_p99:g}, largest {answer.staleness_max}",
        highlight=False,
    )
    console.print(
        f"gradients in {size(answer.bytes_in)}"
        + (f" ({size(answer.bytes_saved)} saved)" if answer.bytes_saved else "")
        + f", params out {size(answer.bytes_out)}, shard {size(answer.shard_bytes)}"
        + (f", memory {size(answer.memory_bytes)}" if answer.memory_bytes else ""),
        highlight=False,
    )
    if answer.memory_parts:
        console.print(f"memory: {parts_text(answer.memory_parts)}", highlight=False)
    if answer.threads:
        console.print(f"{answer.threads:,} threads, {answer.descriptors:,} open descriptors", highlight=False)
    for table in answer.tables:
        console.print(_of_table(table), highlight=False)
    for replica in answer.replicas:
        if replica.term.number > 1 or replica.role not in ("primary", "empty"):
            console.print(_held(replica), highlight=False)
    if answer.waiting_for:
        console.print(f"waiting for {', '.join(answer.waiting_for)}", style="yellow")


def _workers(answer: PsStatus, *, wide: bool) -> Table:
    workers = _table("workers", "task", "state", right="pushes steps/s staleness loss dropped")
    for title in ("not\nfinite", "heard\nago"):
        workers.add_column(title, justify="right", no_wrap=True)
    divided = any(worker.share for worker in answer.workers)
    if divided:
        workers.add_column("share", justify="right", no_wrap=True)
    told = wide and any(worker.memory_bytes for worker in answer.workers)
    if told:
        workers.add_column("memory", justify="right", no_wrap=True)
        workers.add_column("device")
        workers.add_column("trainband", no_wrap=True)
    workers.add_column("process")
    for worker in answer.workers:
        workers.add_row(
            worker.task,
            worker.presence,
            f"{worker.pushes:,}",
            rate(worker.rate),
            f"{worker.staleness:.1f}",
            "" if worker.loss is None else f"{worker.loss:.4f}",
            f"{worker.dropped:,}",
            f"{worker.refused:,}",
            f"{worker.heard_s:.1f} s",
            *([f"{worker.share:.0%}"] if divided else []),
            *([worker.memory, worker.device, worker.version] if told else []),
            f"{worker.pid} on {worker.host}" + (f", {worker.transport}" if worker.transport else ""),
        )
    return workers


def _memory(answer: PsStatus) -> Table:
    memory = _table("memory of the workers", "task", right=" ".join(("whole", *PARTS)))
    for worker in answer.workers:
        if worker.memory_parts:
            parts = (size(worker.memory_parts.get(part, 0)) for part in PARTS)
            memory.add_row(worker.task, size(worker.memory_bytes), *parts)
    return memory


def _show_warnings(answer: PsStatus, console: Console) -> None:
    for worker in answer.workers:
        if worker.non_finite_losses:
            text = f"the loss of {worker.task} was NaN or infinite {worker.non_finite_losses:,} times"
            console.print(text, style="yellow", highlight=False)
        if worker.stalled_s:
            waits = "others wait for it" if worker.task in answer.waiting_for else "nothing waits for it"
            text = f"{worker.task} is alive but has pushed nothing for {worker.stalled_s:,.0f} s; {waits}"
            console.print(text, style="yellow", highlight=False)
        if worker.version != answer.trainband:
            text = f"{worker.task} runs trainband {worker.version or 'of an unknown version'}"
            console.print(text, style="yellow", highlight=False)
        if worker.failure:
            console.print(f"{worker.task} failed: {worker.failure}", style="red", highlight=False)


def _held(replica: ReplicaState) -> str:
    """Which ps holds a shard, and this ps's role in it."""
    term = replica.term
    if replica.role != "primary":
        return f"shard {replica.shard}: {replica.role} of ps:{term.primary}, at version {replica.version:,}"
    if term.standby == NOBODY:
        return f"shard {replica.shard}: held here, without a standby"
    over = f", {replica.transport}" if replica.transport else ""
    return f"shard {replica.shard}: held here, standby ps:{term.standby} ({replica.behind} records behind{over})"


def _table(title: str, *left: str, right: str) -> Table:
    """A table that is readable on a terminal of 80 columns: no lines, and only the longest texts fold."""
    table = Table(
        title=title, title_justify="left", title_style="bold", box=None, header_style="dim", padding=(0, 1, 0, 0)
    )
    for name in left:
        table.add_column(name, overflow="fold", no_wrap=name in ("task", "state", "type"))
    for name in right.split():
        table.add_column(name, justify="right", no_wrap=True)
    return table
