"""A job under random faults: what it still does, how soon it is back, and whether an update is lost or made twice.

2 ps and 4 workers, each a process under a supervisor that starts again what ends, 0.5 s later and under the same name.
The 784-100-10 network on the digits in the package, batches of 100, SGD; a worker waits 20 ms in each step in place of
computing, so that the throughput depends on how many there are, and not on the cores of this machine. As root, every
task has a network of its own, whose cable can be pulled (`--no-namespaces`: all on loopback, no cables).

Faults of all kinds come in turn, one at a time: the next only when the job is whole again, which is when every task
runs, every ps counts every worker, every worker has pushed since, and every shard has its standby (`--standbys 1`).
`--overlap` does not wait for that. Without standbys the job saves every 5 s, so that a ps that dies can be restored.

Before and after it, in the same sitting, the same job runs without faults, with 4 workers and then with 3: what the
surviving workers could give is that throughput, by how many there are at each moment. A worker is not there from when
it is hit until it continues (SIGSTOP, cable), or, if its process ended, until the next one has had its first push
applied. A ps that is hit takes no worker away. A machine's speed drifts in ten minutes, so the share is also
told by the job's own throughput in the stretches between its faults, when it was whole; that hides a job which does not
get as fast again as it was.

Whether an update is lost or made twice is counted by the params, see `bench.tasks.trainband_chaos`: what each life of
each worker was told, which it writes down after each step, is compared with what each ps has counted. Lost: a push that
a worker was told is applied, and that a ps has not counted. Twice: more were counted than that life has sent. A push
under way when its worker died may have been applied or not; so may one of which a worker was told that it is not in all
shards. Under Sync, where an update is a mean over workers, lost: the updates beyond a shard's last version that
a worker was told of; twice: updates that a shard has counted, beyond its version.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from rich.console import Console
from rich.table import Table
from tests.machines import Machines, connected

from bench import timeline
from bench.faults import KINDS, Fault, Faults, Kind
from bench.processes import CaseFailed
from bench.ps_mnist import RULES, write_data
from bench.tasks.trainband_chaos import LIVES
from bench.timeline import Absence, Floats
from bench.traced_job import MACHINES, PS, WORKER_TASKS, WORKERS, Ending, Plan, Steps, TracedJob

SETTLE_S = 3.0
"""After a start, or after a worker has gone, before anything is measured."""
REST_S = 1.0
"""Between a job that is whole and the next fault, at least."""
LIMIT_S = 60.0
"""For a job to be whole again; then it is left as it is, and that is said."""
QUIET_S = 15.0
"""Before the end, without a new fault."""

SHARE, WORKER_BACK_S, PS_BACK_S = 0.95, 3.0, 5.0
"""The targets."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Calm:
    """A run without faults.

    Attributes:
      rates: updates a second, by the number of workers.
      loss: on the test images, at the end.
      global_step: then.
    """

    rates: dict[int, float]
    loss: float
    global_step: int
    steps: Steps = field(repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Account:
    """The counters; lists are by shard.

    Attributes:
      told: pushes of which a worker was told that they are applied.
      lost: of those, pushes (under Sync: updates) that are not in the final params.
      twice: applied more often than sent.
      unsure: pushes that no worker was told all shards have applied, including those in flight at a death.
      counted: updates in the final params.
      versions: as each shard gives them.
    """

    told: int
    lost: list[int]
    twice: list[int]
    unsure: int
    counted: list[int]
    versions: list[int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Recovery:
    """The cost of one fault, in seconds; infinity for an event that did not happen.

    Attributes:
      moves_s: from the fault to the first update whose gradient was begun after it: all shards take pushes again.
      gap_s: the longest time without any update, until the job was whole again.
      back_s: of a worker: from the fault until it had a push applied.
      after_heal_s: the same from the start of its new process, the SIGCONT, or the cable's being back.
      whole_s: from the fault until the job was as before.
    """

    kind: str
    target: str
    at_s: float
    moves_s: float
    gap_s: float
    back_s: float | None
    after_heal_s: float | None
    whole_s: float


@dataclass(kw_only=True, slots=True)
class Storm:
    """The run with faults, as it happened."""

    begin_s: float
    end_s: float = 0.0
    faults: list[Fault] = field(default_factory=list)
    ending: Ending | None = None
    findings: list[str] = field(default_factory=list)


@click.command(help=__doc__.partition("\n")[0])
@click.option(
    "--minutes", type=click.FloatRange(0.5), default=10.0, show_default=True, help="Of training under faults."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the faults.")
@click.option("--standbys", type=click.IntRange(0, 1), default=1, show_default=True)
@click.option("--rule", type=click.Choice(RULES), default="async", show_default=True)
@click.option(
    "--mean", "mean_s", type=click.FloatRange(1), default=15.0, show_default=True, help="Seconds to the next."
)
@click.option("--compute-ms", type=click.FloatRange(0), default=20.0, show_default=True, help="Of every step.")
@click.option(
    "--calm",
    "calm_s",
    type=click.FloatRange(5),
    default=30.0,
    show_default=True,
    help="Seconds of each run without faults, with 4 and again with 3 workers.",
)
@click.option("--namespaces/--no-namespaces", default=None, help="A network for each task.  [default: if root]")
@click.option(
    "--fault",
    "names",
    type=click.Choice([kind.name for kind in KINDS]),
    multiple=True,
    help="May be repeated; all kinds if not given.",
)
@click.option("--overlap", is_flag=True, help="Faults do not wait until the job is whole again.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), default=Path("runs/chaos"), show_default=True)
@click.option("--deadline", "deadline_s", default=120.0, show_default=True, help="Seconds for a job's start or end.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of tables.")
def main(
    minutes: float,
    seed: int,
    standbys: int,
    rule: str,
    mean_s: float,
    compute_ms: float,
    calm_s: float,
    namespaces: bool | None,
    names: tuple[str, ...],
    overlap: bool,
    out: Path,
    deadline_s: float,
    as_json: bool,
) -> None:
    """Run the job calmly, under faults and calmly again; print what came out and draw it."""
    apart = can_be_apart() if namespaces is None else namespaces
    kinds = [kind for kind in KINDS if (not names or kind.name in names) and (apart or kind.act != "unplug")]
    if not kinds:
        raise click.ClickException(f"{', '.join(names)}: there are no cables without network namespaces.")
    with tempfile.TemporaryDirectory(prefix="trainband-bench-") as temporary:
        home = Path(temporary)
        plan = Plan(
            rule=rule,
            standbys=standbys,
            compute_ms=compute_ms,
            data=write_data(home / "digits.npz"),
            deadline_s=deadline_s,
        )
        try:
            click.echo(f"without faults: {calm_s:g} s with 4 workers, {calm_s:g} s with 3", err=True)
            calms = [run_calm(plan, calm_s, fresh(home / "before"), apart)]
            click.echo(f"under faults: {minutes:g} min, seed {seed}", err=True)
            with on_machines(apart) as machines, TracedJob(plan, fresh(home / "storm"), machines) as job:
                storm = run_storm(job, minutes, seed, mean_s, kinds, overlap=overlap)
            steps, logs = job.steps(), job.copy_logs(out / "logs")
            click.echo("without faults, again", err=True)
            calms.append(run_calm(plan, calm_s, fresh(home / "after"), apart))
        except CaseFailed as exc:
            raise click.ClickException(str(exc)) from exc
    setting = {"minutes": minutes, "seed": seed, "standbys": standbys, "rule": rule, "compute_ms": compute_ms}
    title = f"{PS} ps, {WORKERS} workers, {rule}, standbys={standbys}, {minutes:g} min, seed {seed}" + (
        ", a network each" if apart else ", loopback"
    )
    report(job, storm, steps, calms, title, out, setting, as_json=as_json)
    if storm.findings:
        click.echo(f"The output of all tasks: {logs}", err=True)


def can_be_apart() -> bool:
    """Say whether network namespaces can be made here."""
    return os.geteuid() == 0 and all(shutil.which(program) for program in ("ip", "tc", "ss"))


@contextmanager
def on_machines(apart: bool) -> Iterator[Machines | None]:
    """Return a machine for each task, or none."""
    if not apart:
        yield None
        return
    try:
        with connected(MACHINES) as machines:
            yield machines
    except pytest.skip.Exception as exc:
        raise click.ClickException(f"{exc}; try --no-namespaces.") from exc


def fresh(directory: Path) -> Path:
    """Make a directory."""
    directory.mkdir()
    return directory


def run_calm(plan: Plan, seconds: float, directory: Path, apart: bool) -> Calm:
    """Train for so long with all workers, and again with one less.

    Raises:
      CaseFailed: a task failed or was late.
    """
    spans: dict[int, tuple[float, float]] = {}
    with on_machines(apart) as machines, TracedJob(plan, directory, machines) as job:
        job.wait_for_start()
        for workers in (WORKERS, WORKERS - 1):
            job.wait_until(time.monotonic() + SETTLE_S)
            begin_s = time.monotonic()
            job.wait_until(begin_s + seconds)
            spans[workers] = (begin_s, begin_s + seconds)
            if workers == WORKERS:
                job.tasks.restarting = False
                job.tasks.end(WORKER_TASKS[-1], 9)
        ending = job.finish()
        if job.unasked():
            life = job.unasked()[0]
            raise CaseFailed(f"without faults, {life.task} ended with {life.code}:\n{life.shown()}")
    steps = job.steps()
    moments = timeline.update_moments(steps, plan.rule)
    rates = {workers: timeline.rate(moments, *span) for workers, span in spans.items()}
    return Calm(rates=rates, loss=ending.loss, global_step=ending.versions[0], steps=steps)


def run_storm(
    job: TracedJob, minutes: float, seed: int, mean_s: float, kinds: Sequence[Kind], *, overlap: bool
) -> Storm:
    """Train under faults, and end.

    Raises:
      CaseFailed: the job did not start.
    """
    job.wait_for_start()
    job.wait_until(time.monotonic() + SETTLE_S)
    storm = Storm(begin_s=time.monotonic())
    faults = Faults(job, seed, mean_s, kinds)
    end_s = storm.begin_s + 60 * minutes
    due_s = time.monotonic() + min(mean_s / 2, faults.pause_s())
    try:
        while (now := time.monotonic()) < end_s:
            job.poll()
            over = faults.poll()
            due_s = max(due_s, *(REST_S + (f.whole_s or 0.0) for f in faults.struck), 0.0)
            ready = (overlap or over) and now >= due_s and now < end_s - QUIET_S
            if ready and (fault := faults.strike()) is not None:
                click.echo(f"{now - storm.begin_s:6.1f} s  {fault}", err=True)
                due_s = now + faults.pause_s()
            stuck = [f for f in faults.struck if f.whole_s is None and now - (f.healed_s or now) > LIMIT_S]
            never = [f for f in faults.struck if f.healed_s is None and now - f.began_s > f.lasts_s + LIMIT_S]
            for fault in (*stuck, *never):
                what = job.missing(fault.healed_s) if fault.healed_s else f"{fault.target} has not ended"
                storm.findings.append(f"not whole {LIMIT_S:g} s after {fault}: {what}")
            if storm.findings:
                break
            time.sleep(0.02)
        storm.end_s = time.monotonic()
        limit_s = storm.end_s + LIMIT_S
        while not storm.findings and not faults.poll():
            job.poll()
            if time.monotonic() > limit_s:
                storm.findings.append(f"not whole {LIMIT_S:g} s after the time was over: {job.missing(storm.end_s)}")
            time.sleep(0.02)
        storm.ending = job.finish()
    except CaseFailed as exc:
        storm.end_s = storm.end_s or time.monotonic()
        storm.findings.append(str(exc))
    storm.faults = faults.struck
    storm.findings += [
        f"{life.task}, life {life.number}, ended by itself with {life.code} at "
        f"{(life.ended_s or 0.0) - storm.begin_s:.1f} s:\n{life.shown()}"
        for life in job.unasked()
    ]
    return storm


def recover(fault: Fault, steps: Steps, moments: Floats, storm: Storm) -> Recovery:
    """Return the cost of a fault."""
    whole_s = fault.whole_s if fault.whole_s is not None else float("inf")
    back_s: float | None = None
    after_heal_s: float | None = None
    if not fault.of_ps:
        healed_s = fault.healed_s if fault.healed_s is not None else float("inf")
        life = fault.life + (fault.act in ("kill", "terminate"))
        back = timeline.first_after(steps, healed_s, "ended_s", WORKER_TASKS.index(fault.target), life)
        back_s, after_heal_s = back - fault.began_s, back - healed_s
    return Recovery(
        kind=fault.kind,
        target=fault.target,
        at_s=fault.began_s - storm.begin_s,
        moves_s=timeline.first_after(steps, fault.began_s, "began_s") - fault.began_s,
        gap_s=timeline.longest_gap(moments, fault.began_s, min(whole_s, storm.end_s)),
        back_s=back_s,
        after_heal_s=after_heal_s,
        whole_s=whole_s - fault.began_s,
    )


def find_absences(job: TracedJob, storm: Storm, steps: Steps) -> list[Absence]:
    """Return the times at which each worker could not train."""
    found = []
    for fault in storm.faults:
        if not fault.of_ps and fault.act in ("stop", "unplug"):
            found.append(Absence(fault.target, fault.began_s, fault.healed_s or storm.end_s))
    for worker, task in enumerate(WORKER_TASKS):
        for life in job.tasks.lives[task]:
            if life.ended_s is not None and life.ended_s < storm.end_s:
                hit = [f.began_s for f in storm.faults if (f.target, f.life) == (task, life.number)]
                ended_s = min([life.ended_s, *(at for at in hit if at > life.ended_s - LIMIT_S)])
                back_s = timeline.first_after(steps, life.ended_s, "ended_s", worker, life.number + 1)
                found.append(Absence(task, ended_s, min(back_s, storm.end_s)))
    return found


def whole_spans(storm: Storm) -> list[tuple[float, float]]:
    """Return the intervals in which the job was whole, between the faults."""
    spans, whole_s = [], storm.begin_s
    for fault in storm.faults:
        if fault.began_s > whole_s:
            spans.append((whole_s, fault.began_s))
        whole_s = max(whole_s, float("inf") if fault.whole_s is None else fault.whole_s)
    if whole_s < storm.end_s:
        spans.append((whole_s, storm.end_s))
    return spans


def account(job: TracedJob, steps: Steps, ending: Ending, rule: str) -> Account:
    """Compare what the workers were told with what the ps have counted."""
    told = unsure = 0
    lost, twice = np.zeros(PS), np.zeros(PS)
    totals = ending.counters[:, -1]
    for worker, task in enumerate(WORKER_TASKS):
        for life in job.tasks.lives[task]:
            mine = steps[(steps["worker"] == worker) & (steps["life"] == life.number)]
            applied = int(np.count_nonzero(mine["applied"]))
            open_ones = len(mine) - applied + (life.code != 0)
            told, unsure = told + applied, unsure + open_ones
            if rule != "sync":
                counted = ending.counters[:, worker * LIVES + life.number]
                lost += np.maximum(0, applied - counted)
                twice += np.maximum(0, counted - applied - open_ones)
    if rule == "sync":
        lost = np.maximum(0, steps["global_step"].max(initial=0) - np.array(ending.versions))
        twice = np.maximum(0, totals - np.array(ending.versions))
    return Account(
        told=told,
        lost=[round(count) for count in lost],
        twice=[round(count) for count in twice],
        unsure=unsure,
        counted=[round(total) for total in totals],
        versions=list(ending.versions),
    )


def report(
    job: TracedJob,
    storm: Storm,
    steps: Steps,
    calms: Sequence[Calm],
    title: str,
    out: Path,
    setting: dict[str, Any],
    *,
    as_json: bool,
) -> None:
    """Make the figures of all runs, draw the picture, and print."""
    rule = job.plan.rule
    rates = {k: statistics.mean(calm.rates[k] for calm in calms) for k in (WORKERS, WORKERS - 1)}

    def rate_of(workers: int) -> float:
        return rates.get(workers, rates[WORKERS - 1] * workers / (WORKERS - 1))

    moments = timeline.update_moments(steps, rule)
    absences = find_absences(job, storm, steps)
    seconds = storm.end_s - storm.begin_s
    made = timeline.rate(moments, storm.begin_s, storm.end_s)
    could = timeline.possible(storm.begin_s, storm.end_s, absences, rate_of) / seconds
    spans = whole_spans(storm)
    whole_seconds = sum(end - begin for begin, end in spans)
    whole_rate = sum(timeline.rate(moments, *span) * (span[1] - span[0]) for span in spans) / whole_seconds
    recoveries = [recover(fault, steps, moments, storm) for fault in storm.faults]
    same = min(calms[0].global_step, int(steps["global_step"].max(initial=0)))
    losses: dict[str, Any] = {
        "update": same,
        "training_loss_calm": timeline.training_loss(calms[0].steps, same),
        "training_loss_faults": timeline.training_loss(steps, same),
        "test_loss_calm": calms[0].loss,
        "test_loss_calm_updates": calms[0].global_step,
        "test_loss_faults": storm.ending.loss if storm.ending else None,
        "test_loss_faults_updates": storm.ending.versions[0] if storm.ending else None,
    }
    accounted = account(job, steps, storm.ending, rule) if storm.ending is not None else None
    if accounted is not None and accounted.counted != accounted.versions:
        storm.findings.append(f"shards count {accounted.counted} updates, and say {accounted.versions}")
    picture = out / f"chaos-{rule}-{job.plan.standbys}.png"
    timeline.draw(moments, storm.begin_s, storm.end_s, storm.faults, absences, rate_of, title, picture)
    figures = {
        "setting": setting,
        "calm_updates_per_s": [calm.rates for calm in calms],
        "updates_per_s": made,
        "could_give_per_s": could,
        "share_of_survivors": made / could,
        "whole_seconds": whole_seconds,
        "whole_updates_per_s": whole_rate,
        "share_by_its_own_rate": made / could * rates[WORKERS] / whole_rate if whole_rate else 0.0,
        "share_of_calm": made / rates[WORKERS],
        "seconds": seconds,
        "recoveries": [_in_json(asdict(one)) for one in recoveries],
        "account": None if accounted is None else asdict(accounted),
        "losses": losses,
        "findings": storm.findings,
        "picture": str(picture),
    }
    (out / f"chaos-{rule}-{job.plan.standbys}.json").write_text(json.dumps(figures, indent=1))
    if as_json:
        click.echo(json.dumps(figures))
        return
    console = Console()
    console.width = max(console.width, 120)  # a pipe counts as 80 columns
    console.print(make_recovery_table(recoveries, title, seconds))
    console.print(make_targets_table(figures, recoveries, accounted, job.plan.standbys))
    console.print(
        f"Loss at update {same:,}: {losses['training_loss_faults']:.4f} under faults, "
        f"{losses['training_loss_calm']:.4f} without (training, mean of {timeline.LOSS_STEPS} updates). On the test "
        f"images at the end: {_number(losses['test_loss_faults'], 4)} after "
        f"{losses['test_loss_faults_updates'] or 0:,} updates, {calms[0].loss:.4f} after {calms[0].global_step:,}.",
        highlight=False,
    )
    console.print(f"picture: {picture}", highlight=False)
    for finding in storm.findings:
        console.print(f"FOUND: {finding}", style="red", markup=False, highlight=False)


def make_recovery_table(recoveries: Sequence[Recovery], title: str, seconds: float) -> Table:
    """Lay out what each kind of fault costs: median / p99, in seconds."""
    table = Table(
        title=title,
        caption="Seconds, median / p99. Moves: until the first update whose gradient was begun after the fault. Gap: "
        "the longest time without an update. Back: until the worker had a push applied, from the fault, and from when "
        "its process was restarted or continued. Whole: until the job was as before.",
        caption_justify="left",
    )
    table.add_column("fault")
    for column in ("count", "moves", "gap", "back from the fault", "back from the restart", "whole"):
        table.add_column(column, justify="right")
    for kind in sorted({one.kind for one in recoveries}):
        mine = [one for one in recoveries if one.kind == kind]
        table.add_row(
            kind,
            str(len(mine)),
            *(
                _quantiles([getattr(one, name) for one in mine])
                for name in ("moves_s", "gap_s", "back_s", "after_heal_s", "whole_s")
            ),
        )
    table.add_section()
    table.add_row("all", f"{len(recoveries)} ({60 * len(recoveries) / seconds:.1f} a minute)", *[""] * 5)
    return table


def make_targets_table(
    figures: dict[str, Any], recoveries: Sequence[Recovery], accounted: Account | None, standbys: int
) -> Table:
    """Lay out the figures that have targets."""
    calm = figures["calm_updates_per_s"]
    table = Table(title="under faults")
    for column in ("figure", "value", "target", ""):
        table.add_column(column)

    def row(name: str, value: str, target: str = "", met: bool | None = None) -> None:
        table.add_row(name, value, target, "" if met is None else "met" if met else "[bold red]missed[/]")

    for workers in calm[0]:
        values = "before {:.1f}, after {:.1f}".format(*(rates[workers] for rates in calm))
        row(f"updates/s without faults, {workers} workers", values)
    row("updates/s under faults", f"{figures['updates_per_s']:.1f}")
    row("share of 4 workers without faults", f"{100 * figures['share_of_calm']:.1f}%")
    share = figures["share_of_survivors"]
    given = f"{100 * share:.1f}% of {figures['could_give_per_s']:.1f}"
    row("share of what the survivors could give", given, f"at least {100 * SHARE:g}%", share >= SHARE)
    row("updates/s while it was whole, between faults", f"{figures['whole_updates_per_s']:.1f}")
    row("share of the survivors', by that rate", f"{100 * figures['share_by_its_own_rate']:.1f}%")
    back = [
        r.after_heal_s for r in recoveries if r.after_heal_s is not None and r.kind.endswith(("killed", "preempted"))
    ]
    if back:
        p99 = float(np.quantile(back, 0.99))
        row(
            "a worker is back after its restart, p99", f"{p99:.2f} s", f"under {WORKER_BACK_S:g} s", p99 < WORKER_BACK_S
        )
    moves = [r.moves_s for r in recoveries if r.kind in ("ps killed", "ps sleeps", "ps unplugged")]
    if moves:
        p99 = float(np.quantile(moves, 0.99))
        row("updates continue after a ps has gone, p99", f"{p99:.2f} s", f"under {PS_BACK_S:g} s", p99 < PS_BACK_S)
    if accounted is not None:
        row("pushes told to be applied", f"{accounted.told:,}, {accounted.unsure:,} others open")
        name = "of these lost, by shard" + ("" if standbys else " (since the last checkpoint)")
        row(name, _listed(accounted.lost), "0" if standbys else "", not any(accounted.lost) if standbys else None)
        row("applied twice, by shard", _listed(accounted.twice), "0", not any(accounted.twice))
        row("updates counted, by shard", _listed(accounted.counted))
    return table


def _quantiles(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return "/".join(f"{np.quantile(known, q, method='higher'):.2f}" for q in (0.5, 0.99)) if known else ""


def _in_json(values: dict[str, Any]) -> dict[str, Any]:
    """JSON knows no infinity: what did not come is null."""
    return {name: None if value == float("inf") else value for name, value in values.items()}


def _listed(counts: Sequence[int]) -> str:
    return " / ".join(f"{count:,}" for count in counts)


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


if __name__ == "__main__":
    main()
