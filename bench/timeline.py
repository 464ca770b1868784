"""Analysis of a trace of steps: updates over time, what the surviving workers could have given, and a picture."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.faults import Fault
from bench.traced_job import PS_TASKS, WORKER_TASKS, Steps

Floats = NDArray[np.float64]

MOST_BINS = 400
LEAST_BIN_S = 0.5
GRID_S = 0.05
LOSS_STEPS = 400
"""So many updates the training loss is a mean over."""


@dataclass(frozen=True, slots=True)
class Absence:
    """A worker that cannot train: from a fault until its process continues, or until the next one has pushed."""

    task: str
    from_s: float
    until_s: float


def update_moments(steps: Steps, rule: str) -> Floats:
    """Return the moments at which a worker was told of one more update, in order.

    Under Sync several workers are told of one update: the first of them counts. A ps that has gone back to a checkpoint
    repeats its versions, and they count again.
    """
    applied = steps[steps["applied"] > 0]
    if rule != "sync" or not len(applied):
        return np.asarray(applied["ended_s"], np.float64)
    versions = applied["global_step"]
    # A worker that reads its answer late tells of the update before; what is further back is another life of the ps.
    newest, news = versions[0], [True]
    for version in versions[1:]:
        new = version > newest or version < newest - 1
        newest = version if new else newest
        news.append(new)
    return np.asarray(applied["ended_s"][np.array(news)], np.float64)


def rate(moments: Floats, begin_s: float, end_s: float) -> float:
    """Return the updates a second between two moments."""
    return float(np.count_nonzero((moments >= begin_s) & (moments < end_s))) / (end_s - begin_s)


def first_after(steps: Steps, moment_s: float, field: str, worker: int | None = None, life: int = 0) -> float:
    """Return when the first push was answered that was begun or ended after a moment; infinity for none.

    Args:
      steps: to look through.
      moment_s: of the monotonic clock.
      field: ``began_s`` or ``ended_s``.
      worker: the sender; None for any.
      life: of that worker, or a later one.
    """
    chosen = (steps[field] > moment_s) & (steps["applied"] > 0)
    if worker is not None:
        chosen &= (steps["worker"] == worker) & (steps["life"] >= life)
    found = steps["ended_s"][chosen]
    return float(found[0]) if len(found) else float("inf")


def longest_gap(moments: Floats, begin_s: float, end_s: float) -> float:
    """Return the seconds of the longest time without an update that touches what lies between two moments."""
    first = max(0, int(np.searchsorted(moments, begin_s)) - 1)
    last = int(np.searchsorted(moments, end_s)) + 1
    return float(np.diff(moments[first:last]).max(initial=0.0))


def training_loss(steps: Steps, version: float) -> float:
    """Return the mean loss of the batches of the updates up to a global step."""
    inside = (steps["global_step"] <= version) & (steps["global_step"] > version - LOSS_STEPS) & (steps["applied"] > 0)
    return float(steps["loss"][inside].mean()) if inside.any() else float("nan")


def count_present(times: Floats, absences: Sequence[Absence]) -> NDArray[np.int64]:
    """Return the number of workers that could train at each time."""
    gone = [
        np.any([(times >= a.from_s) & (times < a.until_s) for a in absences if a.task == task] or [times < 0], axis=0)
        for task in WORKER_TASKS
    ]
    return np.asarray(len(WORKER_TASKS) - np.sum(gone, axis=0), np.int64)


def possible(begin_s: float, end_s: float, absences: Sequence[Absence], rate_of: Callable[[int], float]) -> float:
    """Return the updates that the workers which were there could have made between two moments."""
    times = np.arange(begin_s, end_s, GRID_S)
    return sum(rate_of(int(count)) for count in count_present(times, absences)) * (end_s - begin_s) / len(times)


def draw(
    moments: Floats,
    begin_s: float,
    end_s: float,
    faults: Sequence[Fault],
    absences: Sequence[Absence],
    rate_of: Callable[[int], float],
    title: str,
    path: Path,
) -> None:
    """Draw updates a second over the time, and below it who was hit by what and when the job was whole again."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    seconds = end_s - begin_s
    width = max(LEAST_BIN_S, seconds / MOST_BINS)
    edges = np.arange(0.0, seconds + width / 2, width)
    heights = np.histogram(moments - begin_s, edges)[0] / width
    times = np.arange(0.0, seconds, GRID_S)
    could = [rate_of(int(count)) for count in count_present(times + begin_s, absences)]

    figure = Figure(figsize=(14, 7), dpi=110, layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    above.stairs(heights, edges, fill=True, color="#c6d9ec")
    above.stairs(heights, edges, color="#0b5394", linewidth=1.0, label="updates/s of the job")
    above.plot(times, could, color="#222222", linewidth=1.0, linestyle="--", label="what the workers there could give")
    top = 1.22 * max(heights.max(initial=1.0), max(could, default=1.0))
    lanes = (*PS_TASKS, *WORKER_TASKS)
    for fault in faults:
        at = fault.began_s - begin_s
        healed = (fault.healed_s if fault.healed_s is not None else end_s) - begin_s
        whole = (fault.whole_s if fault.whole_s is not None else end_s) - begin_s
        above.axvline(at, color=fault.colour, linewidth=1.4, alpha=0.9)
        lane = lanes.index(fault.target)
        below.barh(lane, max(healed - at, seconds / 500), left=at, height=0.7, color=fault.colour)
        below.barh(lane, max(0.0, whole - healed), left=healed, height=0.7, color=fault.colour, alpha=0.3)
    above.set(ylabel="updates/s", ylim=(0, top), xlim=(0, seconds), title=title)
    above.grid(visible=True, alpha=0.3)
    above.legend(loc="upper right", ncols=2, framealpha=0.9)
    below.set_yticks(range(len(lanes)), lanes)
    below.invert_yaxis()
    below.set(xlabel="seconds (dark: down, stopped or cut off; light: until the job was whole again)", ylim=(5.6, -0.6))
    below.grid(visible=True, axis="x", alpha=0.3)
    known = {fault.kind: fault.colour for fault in faults}
    patches = [Patch(color=colour, label=kind) for kind, colour in sorted(known.items())]
    columns = max(1, math.ceil(len(patches) / (1 + len(patches) // 8)))
    figure.legend(handles=patches, loc="outside lower center", ncols=columns, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
