"""Scripts of TensorFlow 2, run by TensorFlow and, unchanged, by trainband's TensorFlow 2 face.

Three scripts, each printing its own steps a second: a loop with a tape in one process (`bench.peers.tensorflow2_tape`),
a loop of one's own under MultiWorkerMirroredStrategy with 2 workers (`bench.peers.tensorflow2_loop`), and `fit` on 1 ps
with 2 workers and a chief (`bench.peers.tensorflow2_fit`). TensorFlow runs them with Keras 2 (`tf_keras`). The two
alternate for some rounds, because a machine's speed drifts, and the medians count.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from bench.environments import ROOT, our_environment, peer_environment
from bench.processes import CaseFailed, Processes, free_addresses

TENSORFLOW, OURS = "tensorflow", "trainband.compat"


@dataclass(frozen=True, slots=True)
class Case:
    """One script on one cluster.

    Attributes:
      title: for the table.
      script: the file in `bench/peers`.
      cluster: how many tasks there are of each job, the job that reports first; empty for one process.
      target: how many times TensorFlow's speed is wanted.
      share: the share of `train_steps` that it makes, where a step takes longer than in one process.
    """

    title: str
    script: str
    cluster: Mapping[str, int]
    target: float
    share: float = 1.0


CASES = {
    "tape": Case("tape loop, one process", "tensorflow2_tape", {}, 1.0),
    "mirrored": Case("custom loop, 2 workers", "tensorflow2_loop", {"worker": 2}, 1.3, 0.5),
    "ps": Case("fit, 1 ps and 2 workers", "tensorflow2_fit", {"chief": 1, "worker": 2, "ps": 1}, 3.0, 0.5),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The settings of every case; after `deadline_s` seconds, a case has failed."""

    train_steps: int
    warm_up_steps: int = 200
    batch_size: int = 64
    deadline_s: float = 300.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """All rounds of one case: steps/s of each that ran, and why one did not."""

    case: str
    steps_per_s: Mapping[str, list[float]]
    losses: Mapping[str, list[float]]
    failures: Mapping[str, str]

    @property
    def medians(self) -> dict[str, float]:
        """Steps a second."""
        return {name: statistics.median(several) for name, several in self.steps_per_s.items() if several}

    @property
    def ratio(self) -> float | None:
        """How many times TensorFlow's speed ours is; None where one of the two did not run."""
        medians = self.medians
        return medians[OURS] / medians[TENSORFLOW] if len(medians) == 2 else None


def compare(
    name: str, rounds: int, plan: Plan, data: Path, python: Path, home: Path, say: Callable[[str], None]
) -> Any:
    """Run one case by both in turn; one that fails is not run again, and says why."""
    speeds: dict[str, list[float]] = {TENSORFLOW: [], OURS: []}
    losses: dict[str, list[float]] = {TENSORFLOW: [], OURS: []}
    failures: dict[str, str] = {}
    for number in range(rounds):
        for runner in (TENSORFLOW, OURS):
            if runner in failures:
                continue
            say(f"round {number + 1} of {rounds}: {runner}, {CASES[name].title}")
            directory = home / f"{name}-{number}-{runner}"
            directory.mkdir()
            try:
                result = run_once(CASES[name], runner, plan, data, python, directory)
            except CaseFailed as exc:
                failures[runner] = str(exc)
                say(f"{runner} cannot run {CASES[name].title}: {exc}")
                continue
            speeds[runner].append(result["steps_per_s"])
            losses[runner].append(result["loss"])
    return Comparison(case=name, steps_per_s=speeds, losses=losses, failures=failures)


def run_once(case: Case, runner: str, plan: Plan, data: Path, python: Path, directory: Path) -> dict[str, Any]:
    """Run a script once, as one of the two does; give what its reporting task printed.

    Raises:
      CaseFailed: a task failed or was late.
    """
    tasks = max(1, sum(count for job, count in case.cluster.items() if job != "ps"))
    script = ROOT / "bench" / "peers" / f"{case.script}.py"
    if runner == OURS:
        start = [sys.executable, "-m", "trainband.compat", "--tensorflow", "2", str(script)]
        environment = our_environment(tasks)
    else:
        start = [str(python), str(script)]
        environment = {**peer_environment(tasks), "TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    steps = max(plan.warm_up_steps, int(plan.train_steps * case.share))
    flags: dict[str, object] = {
        "--data": data,
        "--train_steps": steps,
        "--warm_up_steps": plan.warm_up_steps,
        "--batch_size": plan.batch_size,
    }
    command = [*start, *(str(part) for flag in flags.items() for part in flag)]
    addresses = free_addresses(sum(case.cluster.values()))
    cluster = {job: [addresses.pop() for _ in range(count)] for job, count in case.cluster.items()}
    names = [(job, index) for job, several in cluster.items() for index in range(len(several))] or [("one", 0)]
    with Processes(directory) as processes:
        for job, index in names:
            config = {"cluster": cluster, "task": {"type": job, "index": index}}
            there = {"TF_CONFIG": json.dumps(config)} if cluster else {}
            processes.start(f"{job}:{index}", command, {**environment, **there})
        first = "{}:{}".format(*names[0])
        processes.wait_for_end([first], plan.deadline_s)
        return processes.result(first)


def make_table(comparisons: list[Comparison], plan: Plan) -> Table:
    """Lay out every case; a case that did not run has a dash, and its reason stands below."""
    reasons = [
        f"{runner}, {CASES[each.case].title}: {reason.strip().splitlines()[-1]}"
        for each in comparisons
        for runner, reason in each.failures.items()
    ]
    table = Table(
        title=f"TensorFlow 2 scripts, batches of {plan.batch_size}, medians",
        caption="\n".join(reasons) or None,
        caption_justify="left",
    )
    table.add_column("script")
    for heading in ("TensorFlow steps/s", "trainband steps/s", "times", "target", "losses"):
        table.add_column(heading, justify="right")
    for each in comparisons:
        table.add_row(
            CASES[each.case].title,
            *(f"{each.medians[runner]:,.0f}" if runner in each.medians else "-" for runner in (TENSORFLOW, OURS)),
            "-" if each.ratio is None else f"{each.ratio:.2f}",
            f"{CASES[each.case].target:g}",
            " ".join(f"{several[-1]:.3f}" if several else "-" for several in each.losses.values()),
        )
    return table
