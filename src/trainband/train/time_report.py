"""TimeReport: the report at the end of a training run of where the time went."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from trainband.runtime.formatting import duration
from trainband.runtime.step_times import PARTS, Since, StepTimes, TimeSpent
from trainband.strategies.base import Progress
from trainband.train.time_advice import LARGE, advice, table

MIN_S = 30.0
MIN_STEPS = 20
"""A shorter training needs no table: it is only a trial."""

MOST_ROWS = 10
"""The most rows of a table; with more workers, it shows the mean, the slowest and the fastest."""

MOST_ADVICE = 2

COLUMNS = (*PARTS, "other")


@dataclass(slots=True)
class _Sampled:
    """Sums over the samples of one worker: of its shares by part, and of its steps per second."""

    looks: int = 0
    rates: float = 0.0
    shares: dict[str, float] = field(default_factory=lambda: dict.fromkeys(COLUMNS, 0.0))

    def add(self, shares: Mapping[str, float], rate: float) -> None:
        self.looks += 1
        self.rates += rate
        for part in COLUMNS:
            self.shares[part] += shares.get(part, 0.0)


class TimeReport:
    """Where the time of one training run went: exact for this task, sampled for the others.

    The display polls the job anyway. Each time, a ps's figures of every worker's time are recorded here, and their mean
    is in the table. Without ps, a task knows only its own time, and all others compute in lockstep with it.

    Args:
      times: of this task, counted from now on.
      clock: seconds, that of `times`.
    """

    def __init__(self, times: StepTimes, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._since = Since(times, clock())
        self._workers: dict[str, _Sampled] = {}
        self._lock = threading.Lock()

    @property
    def is_worth_reporting(self) -> bool:
        """Whether the training is more than a trial."""
        spent = self._spent()
        return spent.steps >= MIN_STEPS and spent.total >= MIN_S

    def record(self, progress: Progress | None) -> None:
        """Records a sample of the job. Any thread may call it."""
        if progress is None:
            return
        with self._lock:
            for row in progress.workers:
                if row.presence == "live" and row.time:
                    self._workers.setdefault(row.task, _Sampled()).add(row.time, row.rate)

    def text(self, task: str) -> str:
        """Returns a table with advice, printed by the chief at the end.

        Args:
          task: the task of `times`.
        """
        spent = self._spent()
        with self._lock:
            shares = {name: _divided(seen.shares, seen.looks) for name, seen in self._workers.items()}
            rates = {name: seen.rates / seen.looks for name, seen in self._workers.items()}
        if shares.keys() <= {task}:
            head = f"where the time went, in {spent.steps:,} steps and {duration(spent.total)} after the first one:"
            return "\n".join([head, *table(spent), *advice(spent)[:MOST_ADVICE]])
        if task in shares:
            shares[task] = {part: spent.share(part) for part in COLUMNS}
        mean = {part: sum(one[part] for one in shares.values()) / len(shares) for part in COLUMNS}
        head = f"where the workers' time went, in {duration(spent.total)} after the first step of {task}:"
        saving = spent.saving / spent.total if spent.total else 0.0
        words = advice(replace(spent, seconds=mean, saving=saving), who="workers")
        return "\n".join([head, *_table(_rows(shares, rates, mean)), *words[:MOST_ADVICE]])

    def waits_for_data(self, task: str) -> str:
        """Reports that the others, which compute in lockstep with this task, wait while it waits for its data.

        Empty if that takes only a small share of the time.
        """
        share = self._spent().share("data")
        if share < LARGE:
            return ""
        return f"{task} spends {share:.0%} of its time waiting for data, and all other workers wait for it."

    def _spent(self) -> TimeSpent:
        return self._since.spent(self._clock())


def _divided(sums: Mapping[str, float], count: int) -> dict[str, float]:
    return {part: value / count for part, value in sums.items()}


def _rows(
    shares: Mapping[str, Mapping[str, float]], rates: Mapping[str, float], mean: Mapping[str, float]
) -> list[tuple[str, Mapping[str, float]]]:
    """Returns the name and the shares of each line of the table."""
    if len(shares) <= MOST_ROWS:
        return [(name, shares[name]) for name in sorted(shares, key=_place)]
    slowest, fastest = (choose(sorted(rates, key=_place), key=rates.__getitem__) for choose in (min, max))
    return [
        (f"mean of {len(shares):,}", mean),
        (f"slowest, {slowest}", shares[slowest]),
        (f"fastest, {fastest}", shares[fastest]),
    ]


def _place(task: str) -> tuple[str, int]:
    """Returns a sort key: `worker:2` comes before `worker:10`."""
    job, _, number = task.partition(":")
    return job, int(number) if number.isdigit() else 0


def _table(rows: Sequence[tuple[str, Mapping[str, float]]]) -> list[str]:
    """Formats the rows, without the parts that take no time anywhere."""
    parts = [part for part in COLUMNS if part == "compute" or any(shares[part] >= 0.005 for _, shares in rows)]
    width = max(len(name) for name, _ in rows)
    head = " " * width + "".join(f"{part:>9}" for part in parts)
    return [head, *(f"{name:<{width}}" + "".join(f"{shares[part]:>9.0%}" for part in parts) for name, shares in rows)]
