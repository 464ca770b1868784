"""The checks that need an accelerator: what trainband costs on a GPU, and who takes memory there.

- OneDevice: the steps/s of `Trainer.fit` beside those of a bare jitted optax loop, for a network of 784-2048-2048-10 in
  batches of 512 and one of 784-100-10 in batches of 100, both with Adam. Both take the same batches, which are on the
  device already. They alternate for some rounds in one process; the median of the rounds' ratios counts. Also with
  steps_per_execution=50, which is measured and not judged.
- A job of one ps and one worker, by `trainband run`: the ps must leave the cards alone, as nvidia-smi sees it. And how
  much of the worker's step is transfer between the card and its host.
- Mirrored over all cards beside OneDevice, each card with as large a batch, where there are two cards or more.
- Equal results: the params of small models after 8 steps, on the GPU and on the CPU.

Where there is no GPU, all of it runs on the CPU, which shows only that it runs: nothing is judged then. Where there
is a card, but this Python's JAX cannot use it, an environment with one that can is made in ``.bench/gpu``, once.

The programs and their contracts: `bench.tasks.gpu_steps` and `bench.tasks.gpu_job`. Every check has processes of its
own, and this one keeps away from JAX, which would take the cards' memory here.

Exit code 1: a check was missed, or did not run to its end; 2: --require-gpu, and there is none.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from bench.environments import ROOT, our_environment
from bench.processes import CaseFailed, Processes

STEPS_TASK = "bench.tasks.gpu_steps"
JOB_TASK = "bench.tasks.gpu_job"
HOME = ROOT / ".bench"
EXTRA = "cuda12"  # of jax: of those that there are, the one that also older drivers can run

LEAST_RATIO = 0.97
MOST_DIFFERENCE = 1e-4
"""Between params, with matrix products in whole float32: a GPU rounds them to TF32 otherwise."""

MET, MISSED, FAILED, NOT_RUN, NO_TARGET = "met", "missed", "failed", "not run", "measured; it has no target"
BAD = (MISSED, FAILED)
TITLES = {
    "bare": "bare loop",
    "fit": "Trainer.fit",
    "calls": "Trainer.fit, 50 steps in a call",
    "one": "OneDevice",
    "all": "Mirrored",
}
PIECES = {
    "compute": "the gradient, computed on the device",
    "to_host": "gradients, device to host",
    "exchange": "exchange with the ps: send, update, answer",
    "to_device": "params, host to device",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """The devices of an interpreter's JAX.

    Attributes:
      jax: its version.
      platform: as JAX calls it, such as `gpu` or `cpu`.
      kind: of each device.
      count: how many there are.
    """

    jax: str
    platform: str
    kind: str
    count: int

    @property
    def is_gpu(self) -> bool:
        """Whether the checks can be judged."""
        return self.platform == "gpu"

    def __str__(self) -> str:
        return f"JAX {self.jax}, platform {self.platform}, {self.count} x {self.kind}"


@dataclass(frozen=True, slots=True)
class Check:
    """The outcome of one check.

    Attributes:
      name: of the check, for people.
      verdict: what it would be on a GPU.
      detail: the figures behind it.
    """

    name: str
    verdict: str
    detail: str


@dataclass(frozen=True, slots=True)
class App:
    """A process on a card, as nvidia-smi sees it.

    Attributes:
      pid: as the driver counts; in a container that need not be ours.
      memory: in MiB, or what nvidia-smi says in its place.
    """

    pid: int
    memory: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """How the checks are run.

    Attributes:
      python: which has a JAX for the device.
      deadline_s: for one check.
    """

    python: Path
    device: Device
    seconds: float
    rounds: int
    deadline_s: float


@dataclass(slots=True)
class Report:
    """The outcomes; each check prints its figures as soon as it has them."""

    console: Console
    checks: list[Check] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)


@click.command(help=__doc__.partition("\n")[0])
@click.option("--seconds", type=click.FloatRange(0.1), default=3.0, show_default=True, help="Measured, each.")
@click.option("--rounds", type=click.IntRange(1), default=7, show_default=True)
@click.option("--require-gpu", is_flag=True, help="Exit with code 2 without a GPU.")
@click.option("--python", type=click.Path(path_type=Path), help="An interpreter whose JAX can use the GPU.")
@click.option("--deadline", "deadline_s", default=600.0, show_default=True, help="Seconds for one check.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of tables.")
def main(seconds: float, rounds: int, require_gpu: bool, python: Path | None, deadline_s: float, as_json: bool) -> None:
    """Run the checks in turn and print the results."""
    chosen, device = find_device(python, deadline_s)
    report = Report(Console(quiet=as_json, highlight=False))
    report.console.width = max(report.console.width, 110)  # a pipe counts as 80 columns
    report.console.print(f"on {device}")
    if not device.is_gpu:
        where = device.platform.upper()
        report.console.print(f"there is no GPU here: this ran on the {where}, which shows only that the checks run")
        if require_gpu:
            click.echo("There is no GPU that JAX can use, and --require-gpu was given.", err=True)
            sys.exit(2)
    plan = Plan(python=chosen, device=device, seconds=seconds, rounds=rounds, deadline_s=deadline_s)
    checks: dict[str, Callable[[Plan, Report], None]] = {
        "OneDevice": check_one_device,
        "job": check_job,
        "Mirrored": check_mirrored,
        "equality": check_equality,
    }
    for name, check in checks.items():
        click.echo(f"{name} ...", err=True)
        try:
            check(plan, report)
        except CaseFailed as exc:
            click.echo(f"{name}: {exc}", err=True)
            report.checks.append(Check(name, FAILED, "it did not run to its end; see above"))
    verdicts = [(check, verdict_on(device, check)) for check in report.checks]
    if as_json:
        rows = [{**asdict(check), "verdict": verdict} for check, verdict in verdicts]
        click.echo(json.dumps({"device": asdict(device), "checks": rows, **report.figures}))
    report.console.print("")
    for each, verdict in verdicts:
        report.console.print(f"{each.name}: {verdict} ({each.detail})", soft_wrap=True)
    if any(verdict in BAD for _, verdict in verdicts):
        sys.exit(1)


def verdict_on(device: Device, check: Check) -> str:
    """Return the possible statement about a check on this device."""
    if device.is_gpu or check.verdict in (FAILED, NOT_RUN):
        return check.verdict
    return f"only ran on {device.platform.upper()}"


# --- what it runs on


def find_device(given: Path | None, deadline_s: float) -> tuple[Path, Device]:
    """Return the interpreter to run the checks in, and what its JAX computes on.

    Raises:
      click.ClickException: the interpreter has no JAX that starts.
    """
    python = given.absolute() if given is not None else Path(sys.executable)
    device = ask_device(python, deadline_s)
    if device.is_gpu or given is not None or not nvidia_smi("--list-gpus"):
        return python, device
    python = gpu_python()
    return python, ask_device(python, deadline_s)


def ask_device(python: Path, deadline_s: float) -> Device:
    """Ask an interpreter what its JAX computes on."""
    try:
        return Device(**run_steps(python, deadline_s, "devices"))
    except CaseFailed as exc:
        raise click.ClickException(f"{python} cannot say what its JAX computes on: {exc}") from exc


def gpu_python() -> Path:
    """Return a Python interpreter with the same JAX as ours, for CUDA; makes an environment if needed.

    Not into this one, whose packages the test suite expects unchanged.

    Raises:
      click.ClickException: the installation failed.
    """
    python = HOME / "gpu" / "bin" / "python"
    if _versions(python) == [version("jax")] * 2:
        return python
    click.echo(f"Installing JAX for CUDA into {HOME / 'gpu'}; this happens once.", err=True)
    HOME.mkdir(exist_ok=True)
    (HOME / ".gitignore").write_text("*\n")  # the directory hides itself, whatever the repository ignores
    venv.create(HOME / "gpu", with_pip=True, clear=True)
    command = [python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", "--editable", ROOT]
    wanted = f"jax[{EXTRA}]=={version('jax')}"
    if subprocess.run([*map(str, command), wanted], stdout=sys.stderr).returncode:
        raise click.ClickException(f"{wanted} could not be installed; name an interpreter with it by --python.")
    return python


def _versions(python: Path) -> list[str]:
    """Ask for the versions of JAX and of its plugin for CUDA."""
    program = f"from importlib.metadata import version as v; print(v('jax'), v('jax-{EXTRA}-plugin'))"
    try:
        done = subprocess.run([str(python), "-c", program], capture_output=True, text=True)
    except OSError:
        return []
    return done.stdout.split()


def nvidia_smi(*arguments: str) -> list[str]:
    """Return the lines that nvidia-smi prints; none without the command or a GPU."""
    found = shutil.which("nvidia-smi")
    if found is None:
        return []
    try:
        done = subprocess.run([found, *arguments], capture_output=True, text=True, timeout=60)
    except subprocess.TimeoutExpired:
        return []
    return done.stdout.splitlines() if done.returncode == 0 else []


def apps_on_cards() -> list[App]:
    """Return the processes that compute on the GPUs, one entry for each GPU of each."""
    lines = nvidia_smi("--query-compute-apps=pid,used_memory", "--format=csv,noheader")
    rows = [[part.strip() for part in line.split(",")] for line in lines]
    return [App(int(row[0]), row[1]) for row in rows if len(row) == 2 and row[0].isdigit()]


# --- the checks


def check_one_device(plan: Plan, report: Report) -> None:
    """Compare `Trainer.fit` with a bare loop."""
    found = run_steps(plan.python, plan.deadline_s, "speed", *_amount(plan))
    report.figures["speed"] = found
    report.console.print(make_speed_table("OneDevice and a bare jitted optax loop, steps/s", found))
    for network, speeds in found.items():
        ratio, noise = ratio_of(speeds["fit"], speeds["bare"])
        more_us = 1e6 * (1 / statistics.median(speeds["fit"]) - 1 / statistics.median(speeds["bare"]))
        detail = (
            f"{ratio:.3f} of the bare loop's steps/s, noise {noise:.3f}, target {LEAST_RATIO}; {more_us:+.0f} µs a step"
        )
        report.checks.append(Check(f"OneDevice, {network}", judge_ratio(ratio, noise), detail))


def ratio_of(ours: Sequence[float], other: Sequence[float]) -> tuple[float, float]:
    """Return the median of the rounds' ratios, and their noise: the median distance of one from it."""
    ratios = [a / b for a, b in zip(ours, other, strict=True)]
    median = statistics.median(ratios)
    return median, statistics.median(abs(ratio - median) for ratio in ratios)


def judge_ratio(ratio: float, noise: float) -> str:
    """Return the verdict: a target missed by less than the noise counts as met."""
    return MET if ratio + noise >= LEAST_RATIO else MISSED


def check_job(plan: Plan, report: Report) -> None:
    """Run a job; look who is on the cards, and what the worker's step consists of."""
    found = run_job(plan)
    report.figures["job"] = found
    ps, worker, pieces = found["ps"], found["worker"], found["worker"]["pieces"]
    for name, task in (("ps:0", ps), ("worker:0", worker)):
        seen = ", ".join(app["memory"] for app in found["apps"] if app["pid"] == task["pid"])
        listed = f"nvidia-smi lists it with {seen}" if seen else "nvidia-smi does not list it"
        report.console.print(f"{name}, process {task['pid']}: its JAX uses {task['platform']}; {listed}")
    before, during = ([App(**app) for app in found[name]] for name in ("apps_before", "apps"))
    verdict, detail = judge_cards(ps, worker, before, during)
    report.checks.append(Check("the ps leaves the cards alone", verdict, detail))
    report.console.print(make_pieces_table(pieces))
    transfer = (pieces["to_host"] + pieces["to_device"]) / pieces["whole"]
    report.checks.append(Check("transfers of a worker", NO_TARGET, f"{100 * transfer:.1f}% of its step"))


def run_job(plan: Plan) -> dict[str, Any]:
    """Run the job, and ask nvidia-smi while both tasks are there.

    Raises:
      CaseFailed: a task failed or was late.
    """
    before = apps_on_cards()
    with tempfile.TemporaryDirectory(prefix="trainband-bench-") as directory, Processes(Path(directory)) as processes:
        marks = Path(directory) / "marks"
        marks.mkdir()
        launcher = ["-m", "trainband.cli.main", "run", "--quiet", "--ps", "1", "--workers", "1"]
        task = ["-m", JOB_TASK, "--seconds", str(plan.seconds), "--marks", str(marks)]
        processes.start("job", [plan.python, *launcher, *task], environment())
        reports = {name: marks / f"{name}:0.json" for name in ("ps", "worker")}
        processes.wait_for(
            "the worker's measurements", lambda: all(path.exists() for path in reports.values()), plan.deadline_s
        )
        during = apps_on_cards()
        (marks / "seen").touch()
        processes.wait_for_end(["job"], plan.deadline_s)
        tasks = {name: json.loads(path.read_text()) for name, path in reports.items()}
    return {**tasks, "apps_before": [asdict(app) for app in before], "apps": [asdict(app) for app in during]}


def judge_cards(
    ps: Mapping[str, Any], worker: Mapping[str, Any], before: Sequence[App], during: Sequence[App]
) -> tuple[str, str]:
    """Return the verdict and why: the worker must be on a GPU, and the ps not.

    In a container the driver's pids are not ours. There the processes that have come during the job must be one.
    """
    if ps["platform"] != "cpu":
        return MISSED, f"the ps's JAX would use {ps['platform']}"
    if worker["platform"] == "cpu":
        return MISSED, "the ps's JAX would use the CPU, but the worker computed there too"
    pids = {app.pid for app in during}
    if ps["pid"] in pids:
        return MISSED, f"nvidia-smi lists the ps, process {ps['pid']}"
    if worker["pid"] in pids:
        return MET, "nvidia-smi lists the worker, and not the ps"
    new = pids - {app.pid for app in before}
    if not new:
        return (
            NOT_RUN,
            "nvidia-smi lists no process of the job here, not even the worker; the ps's JAX would use the CPU",
        )
    verdict = MET if len(new) == 1 else MISSED
    return (
        verdict,
        f"nvidia-smi lists {len(new)} more processes than before the job, by other pids than ours; 1 is right",
    )


def check_mirrored(plan: Plan, report: Report) -> None:
    """Compare Mirrored over all devices with one of them."""
    flags = _amount(plan)
    count = plan.device.count
    if plan.device.is_gpu and count < 2:
        report.checks.append(Check("Mirrored over all cards", NOT_RUN, "there is one card"))
        return
    if not plan.device.is_gpu:
        count = 2
        flags += ["--cpu_devices", str(count)]
    found = run_steps(plan.python, plan.deadline_s, "mirrored", *flags)
    report.figures["mirrored"] = found
    report.console.print(make_speed_table(f"Mirrored over {count} devices, each with a batch, steps/s", found))
    for network, speeds in found.items():
        ratio, noise = ratio_of(speeds["all"], speeds["one"])
        detail = f"{ratio * count:.2f} times the examples/s of one, of {count} devices; noise {noise * count:.2f}"
        report.checks.append(Check(f"Mirrored over all cards, {network}", NO_TARGET, detail))


def check_equality(plan: Plan, report: Report) -> None:
    """Compare the params that the GPU and the CPU come to."""
    found = run_steps(plan.python, plan.deadline_s, "equality")
    report.figures["equality"] = found
    table = Table(title="OneDevice('gpu') and OneDevice('cpu'), 8 steps: the largest difference between params")
    table.add_column("model")
    for title in ("in whole float32", "as JAX computes by default"):
        table.add_column(title, justify="right")
    for model, difference in found.items():
        table.add_row(model, f"{difference['float32']:.2e}", f"{difference['default']:.2e}")
    report.console.print(table)
    largest = max(difference["float32"] for difference in found.values())
    verdict = MET if largest <= MOST_DIFFERENCE else MISSED
    report.checks.append(Check("the same params", verdict, f"{largest:.2e} at most, tolerance {MOST_DIFFERENCE:g}"))


def run_steps(python: Path, deadline_s: float, check: str, *flags: str) -> dict[str, Any]:
    """Run one check of `bench.tasks.gpu_steps`; give what it found.

    Raises:
      CaseFailed: it failed or was late.
    """
    with tempfile.TemporaryDirectory(prefix="trainband-bench-") as directory, Processes(Path(directory)) as processes:
        processes.start(check, [python, "-m", STEPS_TASK, "--check", check, *flags], environment())
        processes.wait_for_end([check], deadline_s)
        return processes.result(check)


def environment() -> dict[str, str]:
    """Return the variables for our tasks: the code's place alone, so that JAX takes what there is."""
    return {"PYTHONPATH": our_environment(1)["PYTHONPATH"]}


def _amount(plan: Plan) -> list[str]:
    return ["--seconds", str(plan.seconds), "--rounds", str(plan.rounds)]


# --- what is printed


def make_speed_table(title: str, found: Mapping[str, Mapping[str, Sequence[float]]]) -> Table:
    """Lay out one row for each contender on each network; the ratio is to the first."""
    table = Table(title=title)
    for column in ("network", "contender"):
        table.add_column(column)
    for column in ("each round", "median", "ratio"):
        table.add_column(column, justify="right")
    for network, speeds in found.items():
        first = next(iter(speeds.values()))
        for name, each in speeds.items():
            ratio = "" if each is first else f"{ratio_of(each, first)[0]:.3f}"
            rounds = " ".join(f"{speed:.5g}" for speed in each)
            table.add_row(network, TITLES[name], rounds, f"{statistics.median(each):.5g}", ratio)
    return table


def make_pieces_table(pieces: Mapping[str, float]) -> Table:
    """Lay out a worker's step; what is left of it is our own Python, and what the pieces do not catch."""
    table = Table(title="1 ps, 1 worker, 784-2048-2048-10 in batches of 512: a worker's step")
    table.add_column("piece")
    for column in ("ms", "% of the step"):
        table.add_column(column, justify="right")
    rows = {title: pieces[name] for name, title in PIECES.items()}
    rows["the rest"] = pieces["whole"] - sum(rows.values())
    rows["the whole step"] = pieces["whole"]
    for title, seconds in rows.items():
        table.add_row(title, f"{1000 * seconds:.3f}", f"{100 * seconds / pieces['whole']:.1f}")
    return table


if __name__ == "__main__":
    main()
