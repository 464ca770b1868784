"""The cost of checkpoints: a training run that saves now and then, and saving and restoring beside `cp` and Orbax.

Saving (``--part training``): one ps and one worker on loopback train a model of M million float32 with Adam, its
gradient cheap and dense. Segments of equal length alternate, without a save and with one that is ordered at their
beginning and written beside the steps. One save comes before them and is not measured: memory is touched for the first
time then. Each segment with a save is compared with its two neighbours, because a machine's speed drifts.

Writing and reading (``--part disk``): params and Adam's state, 12 bytes a param, all of it random. Cases:

* ``trainband-save``: one process saves, until the checkpoint is on the disk and committed; a save before is left out;
* ``cp``: the files of that checkpoint are copied within the directory; ``cp-fsync``: and are on the disk;
* ``trainband-read``: all tensors from the files onto the device; ``trainband-restore``: all that a session does before
  its first step, the first values included, which it makes also where there is a checkpoint;
* ``orbax-save``, ``orbax-read``: the same with Orbax's StandardCheckpointer as it comes, which compresses.

One shard (``--part shard``): the shard of one ps under Adam and its saver, beside `dd` on the same disk. Updates
continue beside the save; before the restore, and before `dd` reads the same file, that is not in the page cache.

They alternate for some rounds, each in a process of its own. Before each, nothing waits to be written to the disk, and
what is read is in the page cache, and the machine has memory at hand, see `touch_memory`. A reader fills memory that is
new to its process, as when a training run starts; `cp` needs none. The speeds are those of the uncompressed bytes.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from bench.environments import our_environment
from bench.processes import CaseFailed, Processes, free_addresses
from bench.tasks.large_model import BYTES_PER_PARAM, touch_memory

PARTS = ("training", "disk", "shard")
TASK = "bench.tasks.trainband_checkpoint"
SHARD_TASK = "bench.tasks.shard_checkpoint"
ORBAX_TASK = "bench.peers.orbax_checkpoint"
CASES = {
    "trainband-save": (TASK, "save"),
    "cp": None,
    "cp-fsync": None,
    "trainband-read": (TASK, "read"),
    "trainband-restore": (TASK, "restore"),
    "orbax-save": (ORBAX_TASK, "save"),
    "orbax-read": (ORBAX_TASK, "read"),
}
"""Of each case, its program and role; `cp` needs none. A reader comes after its writer."""

BASES = {
    "trainband-save": ("cp-fsync", "orbax-save"),
    "trainband-read": ("cp", "orbax-read"),
}
"""The peers of a case: a copy with the same promises, and Orbax doing the same."""

IN_MEMORY = ("tmpfs", "ramfs")
_CHUNK = 1 << 24


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """Some time of the training.

    Attributes:
      seconds: of all its steps.
      longest_s: the longest step.
      saved: whether it began with a save.
      order_s: what ordering that took, of the training's time.
      save_s: from then until the checkpoint was committed.
      overran: whether that was after the end of the segment: then the neighbours cannot be compared.
    """

    steps: int
    seconds: float
    longest_s: float
    saved: bool
    order_s: float | None
    save_s: float | None
    overran: bool

    @property
    def steps_per_s(self) -> float:
        """How fast it was."""
        return self.steps / self.seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One case of the part disk, once.

    Attributes:
      first_s: of a save, the one before that is left out.
    """

    case: str
    round: int
    seconds: float
    first_s: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardRun:
    """One round of the part shard; the figures of saves are those of a first and a second one.

    Attributes:
      dd_write_s, dd_read_s: of `dd conv=fsync` from the page cache, and of `dd` from the disk.
      save_s, restore_s: until written and on the disk, and until adopted.
      blocked_s: how much longer the slowest update beside the save took than the usual one.
      save_extra, restore_extra: the most by which the memory of the process grew, as a multiple of the shard.
    """

    nbytes: int
    dd_write_s: float
    save_s: list[float]
    blocked_s: list[float]
    save_extra: list[float]
    dd_read_s: float
    restore_s: float
    restore_extra: float


@click.command(help=__doc__.partition("\n")[0])
@click.option("--part", "parts", type=click.Choice(PARTS), multiple=True, help="May be repeated; all if not given.")
@click.option("--millions", type=click.IntRange(1), default=100, show_default=True, help="Of float32 params.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="Of the parts disk and shard.")
@click.option("--saves", type=click.IntRange(1), default=5, show_default=True, help="In the part training.")
@click.option("--every", type=click.FloatRange(1), default=30.0, show_default=True, help="Seconds of a segment.")
@click.option(
    "--directory",
    type=click.Path(path_type=Path, exists=True, file_okay=False, writable=True),
    default=Path(),
    help="On the disk that is measured; nothing stays there.  [default: this one]",
)
@click.option("--deadline", "deadline_s", default=180.0, show_default=True, help="Seconds for a case, and to begin.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of tables.")
def main(
    parts: tuple[str, ...],
    millions: int,
    rounds: int,
    saves: int,
    every: float,
    directory: Path,
    deadline_s: float,
    as_json: bool,
) -> None:
    """Run the parts and print what came out."""
    chosen = parts or PARTS
    file_system = check_disk(directory, millions)
    segments: list[Segment] = []
    runs: list[Run] = []
    shard_runs: list[ShardRun] = []
    with tempfile.TemporaryDirectory(prefix=".trainband-bench-", dir=directory) as home:
        try:
            if "training" in chosen:
                click.echo(f"training: {2 * saves + 1} segments of {every:g} s", err=True)
                segments = run_training(millions, saves, every, Path(home), deadline_s)
            if "disk" in chosen:
                runs = run_disk(millions, rounds, Path(home), deadline_s)
            if "shard" in chosen:
                for number in range(rounds):
                    click.echo(f"round {number + 1} of {rounds}: shard", err=True)
                    shard_runs.append(run_shard(millions, Path(home), deadline_s))
        except CaseFailed as exc:
            raise click.ClickException(str(exc)) from exc
    if as_json:
        plan = {"millions": millions, "rounds": rounds, "saves": saves, "every": every, "file_system": file_system}
        result: dict[str, Any] = {"plan": plan}
        if segments:
            result["training"] = {"segments": [asdict(each) for each in segments], **summarise_training(segments)}
        if runs:
            result["disk"] = {"runs": [asdict(run) for run in runs], **summarise_disk(runs, millions)}
        if shard_runs:
            result["shard"] = [asdict(run) for run in shard_runs]
        click.echo(json.dumps(result))
        return
    console = Console()
    console.width = max(console.width, 120)  # a pipe counts as 80 columns
    console.print(f"{millions} million float32, {_megabytes(millions)} MB with Adam's state; {file_system} file system")
    if segments:
        console.print(make_training_table(segments, every), make_costs(segments))
    if runs:
        console.print(make_disk_table(runs, millions))
    if shard_runs:
        console.print(make_shard_table(shard_runs))


def check_disk(directory: Path, millions: int) -> str:
    """Return the kind of file system that a directory is on.

    Raises:
      click.ClickException: it is not on a disk, or that has too little room.
    """
    done = subprocess.run(["df", "--output=fstype", directory], capture_output=True, text=True, check=True)
    kind = done.stdout.split()[-1]
    if kind in IN_MEMORY:
        raise click.ClickException(f"{directory.absolute()} is in memory ({kind}); give a --directory on a disk.")
    # A checkpoint, the one before it, a copy, or Orbax's two; and some room.
    needed = 4 * BYTES_PER_PARAM * millions * 1_000_000
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise click.ClickException(
            f"{directory.absolute()} has {free / 1e9:.1f} GB free, {needed / 1e9:.1f} GB are needed."
        )
    return kind


def run_training(millions: int, saves: int, every: float, home: Path, deadline_s: float) -> list[Segment]:
    """Train with and without saves in turn.

    Raises:
      CaseFailed: a task failed or was late.
    """
    (address,) = free_addresses(1)
    command = [sys.executable, "-m", TASK, "--address", address, "--millions", str(millions), "--every", str(every)]
    command += ["--saves", str(saves), "--directory", str(home / "training")]
    deadline_s += (2 * saves + 1) * 2 * every  # a segment lasts until its save is over
    with tempfile.TemporaryDirectory(dir=home) as said, Processes(Path(said)) as processes:
        for role in ("ps", "worker"):
            processes.start(role, [*command, "--role", role], our_environment(1))
        processes.wait_for_end(["worker"], deadline_s)
        segments = processes.result("worker")["segments"]
    shutil.rmtree(home / "training")
    return [Segment(**each) for each in segments]


def run_disk(millions: int, rounds: int, home: Path, deadline_s: float) -> list[Run]:
    """Save, copy and restore, for some rounds.

    Raises:
      CaseFailed: a case failed or was late.
    """
    runs = []
    for number in range(rounds):
        with tempfile.TemporaryDirectory(dir=home) as here:
            for case, program in CASES.items():
                click.echo(f"round {number + 1} of {rounds}: {case}", err=True)
                settle(Path(here))
                if program is None:
                    seconds = copy(Path(here), millions, durable=case == "cp-fsync")
                    runs.append(Run(case=case, round=number, seconds=seconds))
                    continue
                result = run_program(case, *program, millions, Path(here), deadline_s)
                runs.append(Run(case=case, round=number, seconds=result["seconds"], first_s=result.get("first_s")))
    return runs


def run_shard(millions: int, home: Path, deadline_s: float) -> ShardRun:
    """Save and restore one shard, and let `dd` write and read the same file.

    Raises:
      CaseFailed: a case failed or was late.
    """
    with tempfile.TemporaryDirectory(dir=home) as here:
        saved = run_program("save", SHARD_TASK, "save", millions, Path(here), deadline_s)
        (part,) = Path(here).rglob("*.safetensors")
        settle(part.parent)
        copied = Path(here) / "copy"
        dd_write_s = dd(part, copied, "conv=fsync")
        copied.unlink()
        forget(part)
        dd_read_s = dd(part, Path(os.devnull))
        forget(part)
        restored = run_program("save", SHARD_TASK, "restore", millions, Path(here), deadline_s)
    nbytes = saved["nbytes"]
    return ShardRun(
        nbytes=nbytes,
        dd_write_s=dd_write_s,
        save_s=saved["seconds"],
        blocked_s=saved["blocked_s"],
        save_extra=[extra / nbytes for extra in saved["extra_bytes"]],
        dd_read_s=dd_read_s,
        restore_s=restored["seconds"],
        restore_extra=restored["extra_bytes"] / nbytes,
    )


def dd(source: Path, target: Path, *options: str) -> float:
    """Copy a file by `dd`; give the seconds.

    Raises:
      CaseFailed: it could not be copied.
    """
    begin = time.perf_counter()
    done = subprocess.run(
        ["dd", f"if={source}", f"of={target}", "bs=16M", *options], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise CaseFailed(f"dd ended with {done.returncode}: {done.stderr}")
    return time.perf_counter() - begin


def forget(path: Path) -> None:
    """Write a file to the disk and drop it from the page cache."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def run_program(case: str, module: str, role: str, millions: int, here: Path, deadline_s: float) -> dict[str, Any]:
    """Run one case that has a program.

    Raises:
      CaseFailed: it failed or was late.
    """
    directory = here / case.partition("-")[0]
    directory.mkdir(exist_ok=True)
    command = [sys.executable, "-m", module, "--role", role, "--millions", str(millions), "--directory", str(directory)]
    with tempfile.TemporaryDirectory() as said, Processes(Path(said)) as processes:
        processes.start(case, command, our_environment(1))
        processes.wait_for_end([case], deadline_s)
        return processes.result(case)


def settle(here: Path) -> None:
    """Let the disk finish its work, and read all its files into the page cache."""
    os.sync()
    room = memoryview(bytearray(_CHUNK))
    for path in here.rglob("*"):
        if path.is_file():
            with path.open("rb", buffering=0) as file:
                while file.readinto(room):
                    pass


def copy(here: Path, millions: int, durable: bool) -> float:
    """Copy the newest of trainband's checkpoints by `cp`; give the seconds.

    Raises:
      CaseFailed: it could not be copied.
    """
    source = max((here / "trainband").glob("step-*"))
    target = here / "copy"
    touch_memory(millions)
    begin = time.perf_counter()
    # Without --reflink=never, some file systems would only note that there are two. It is also the faster one on ext4.
    done = subprocess.run(["cp", "-r", "--reflink=never", source, target], capture_output=True, text=True)
    if done.returncode != 0:
        raise CaseFailed(f"cp ended with {done.returncode}: {done.stderr}")
    if durable:
        for path in (*target.iterdir(), target, here):
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)
    seconds = time.perf_counter() - begin
    shutil.rmtree(target)
    return seconds


def summarise_training(segments: Sequence[Segment]) -> dict[str, Any]:
    """Return the median speeds and what a save costs, as a share of the steps.

    Returns:
      median_steps_per_s: without and with a save.
      cost_of_medians: of these two.
      costs: of each segment with a save, against the one before and the one after it; median_cost of all these.
      noise: the spread of the segments without a save, over their median.
    """
    without = [each.steps_per_s for each in segments if not each.saved]
    saving = [each.steps_per_s for each in segments if each.saved]
    costs = [
        1 - segments[at].steps_per_s / segments[beside].steps_per_s
        for at in range(1, len(segments), 2)
        for beside in (at - 1, at + 1)
    ]
    median, median_saving = statistics.median(without), statistics.median(saving)
    return {
        "median_steps_per_s": {"without": median, "saving": median_saving},
        "cost_of_medians": 1 - median_saving / median,
        "costs": costs,
        "median_cost": statistics.median(costs),
        "noise": (max(without) - min(without)) / median,
    }


def summarise_disk(runs: Sequence[Run], millions: int) -> dict[str, Any]:
    """Return each case's median seconds and speed, and what it is beside `cp` and Orbax.

    Returns:
      median_s, gb_per_s: of each case.
      times_cp: the speed as a multiple of the `cp` that promises as much, see `BASES`.
      times_orbax: the seconds as a multiple of Orbax's.
    """
    medians = {case: statistics.median(run.seconds for run in runs if run.case == case) for case in CASES}
    return {
        "median_s": medians,
        "gb_per_s": {case: _megabytes(millions) / 1000 / seconds for case, seconds in medians.items()},
        "times_cp": {case: medians[copying] / medians[case] for case, (copying, _) in BASES.items()},
        "times_orbax": {case: medians[case] / medians[orbax] for case, (_, orbax) in BASES.items()},
    }


def make_training_table(segments: Sequence[Segment], every: float) -> Table:
    """Lay out the segments, without and with a save; times are in seconds."""
    table = Table(title=f"1 ps, 1 worker, segments of {every:g} s")
    table.add_column("segments")
    for title in ("steps/s of each", "median", "longest step", "ordering", "until committed"):
        table.add_column(title, justify="right")
    for title, saved in (("without a save", False), ("with a save", True)):
        mine = [each for each in segments if each.saved == saved]
        saves = [each.save_s for each in mine if each.save_s is not None]
        orders = [each.order_s for each in mine if each.order_s is not None]
        table.add_row(
            title,
            " ".join(f"{each.steps_per_s:.3g}" for each in mine),
            f"{statistics.median(each.steps_per_s for each in mine):.4g}",
            f"{statistics.median(each.longest_s for each in mine):.3f}",
            f"{statistics.median(orders):.4f}" if orders else "",
            " ".join(f"{seconds:.2f}" for seconds in saves),
        )
    return table


def make_costs(segments: Sequence[Segment]) -> str:
    """Say what a save costs."""
    summary = summarise_training(segments)
    costs = summary["costs"]
    text = (
        f"A save costs {100 * summary['median_cost']:.1f}% of the steps (median of {len(costs)} pairs of neighbours, "
        f"from {100 * min(costs):.1f}% to {100 * max(costs):.1f}%), {100 * summary['cost_of_medians']:.1f}% by the "
        f"medians. Segments without a save differ by {100 * summary['noise']:.1f}%."
    )
    if any(each.overran for each in segments):
        text += " A save took longer than its segment: give a larger --every."
    return text


def make_disk_table(runs: Sequence[Run], millions: int) -> Table:
    """Lay out the cases."""
    summary = summarise_disk(runs, millions)
    note = "x cp: the GB/s beside cp, and where it saves beside cp-fsync. x Orbax: the seconds beside Orbax's."
    table = Table(title=f"{_megabytes(millions)} MB", caption=note, caption_justify="left")
    table.add_column("case")
    for title in ("seconds, each round", "median", "first save", "GB/s", "x cp", "x Orbax"):
        table.add_column(title, justify="right")
    for case in CASES:
        mine = [run for run in runs if run.case == case]
        firsts = [run.first_s for run in mine if run.first_s is not None]
        ratios = [summary[key].get(case) for key in ("times_cp", "times_orbax")]
        table.add_row(
            case,
            " ".join(f"{run.seconds:.2f}" for run in mine),
            f"{summary['median_s'][case]:.2f}",
            f"{statistics.median(firsts):.2f}" if firsts else "",
            f"{summary['gb_per_s'][case]:.2f}",
            *("" if ratio is None else f"{ratio:.2f}" for ratio in ratios),
        )
    return table


def make_shard_table(runs: Sequence[ShardRun]) -> Table:
    """Lay out the rounds."""
    table = Table(title=f"One shard of {runs[0].nbytes / 1e9:.2f} GB; of saves, the first and a second one")
    table.add_column("round")
    for title in ("dd write s", "save s", "speed / dd", "blocked s", "memory", "dd read s", "restore s"):
        table.add_column(title, justify="right")
    table.add_column("speed / dd", justify="right")
    table.add_column("memory", justify="right")
    for number, run in enumerate(runs, 1):
        table.add_row(
            str(number),
            f"{run.dd_write_s:.2f}",
            " ".join(f"{seconds:.2f}" for seconds in run.save_s),
            " ".join(f"{run.dd_write_s / seconds:.2f}" for seconds in run.save_s),
            " ".join(f"{seconds:.2f}" for seconds in run.blocked_s),
            " ".join(f"{extra:.2f}" for extra in run.save_extra),
            f"{run.dd_read_s:.2f}",
            f"{run.restore_s:.2f}",
            f"{run.dd_read_s / run.restore_s:.2f}",
            f"{run.restore_extra:.2f}",
        )
    return table


def _megabytes(millions: int) -> int:
    return BYTES_PER_PARAM * millions


if __name__ == "__main__":
    main()
