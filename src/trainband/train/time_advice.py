"""Where a task's time went, in a table, and what to do about it."""

from __future__ import annotations

from trainband.runtime.step_times import TimeSpent

LARGE = 0.25
"""The share of the time from which a part of the step is worth a word."""

UNEVEN = 0.6
"""The share of one ps in the waiting from which that ps is the one to look at: of two even ones, each has half, and the
first is waited for longest where all are alike."""

_WORDS = {
    "data": "waiting for data",
    "compute": "computing",
    "send": "sending gradients",
    "network": "on the network",
    "ps": "at the ps: waiting for other workers, updates",
    "other": "on the rest: hooks, checkpoints, the loop",
}


def table(spent: TimeSpent) -> list[str]:
    """A line for each part that took time: its share, milliseconds a step, and what it is."""
    lines = []
    for part, seconds in spent.seconds.items():
        if seconds > 0:
            a_step = 1e3 * seconds / spent.steps if spent.steps else 0.0
            lines.append(f"{spent.share(part):6.1%} {a_step:9.3f} ms  {_WORDS[part]}")
    return lines


def advice(spent: TimeSpent, who: str = "") -> list[str]:
    """What to do about the parts that take much of the time, the largest first; one sentence each.

    Args:
      spent: of a task, or the mean of several.
      who: `workers` or a task, to be named in the sentence.
    """
    parts = sorted((part for part in spent.seconds if part != "compute"), key=spent.share, reverse=True)
    return [
        f"{_spends(who, spent.share(part))} {_WORDS[part].partition(':')[0]}: {_about(part, spent)}"
        for part in parts
        if spent.share(part) >= LARGE
    ]


def _spends(who: str, share: float) -> str:
    if not who:
        return f"{share:.0%} of the time is spent"
    return f"workers spend {share:.0%} of their time" if who == "workers" else f"{who} spends {share:.0%} of its time"


def _about(part: str, spent: TimeSpent) -> str:
    waits = sum(spent.waited_for.values())
    slowest = max(spent.waited_for, key=spent.waited_for.__getitem__, default="")
    uneven = slowest if waits and spent.waited_for[slowest] / waits >= UNEVEN else ""
    match part:
        case "data":
            return "prepare batches faster, or give fit an iterable of its own thread or process (grain)."
        case "network":
            where = f"most of it to {uneven}, look at its machine and network; or " if uneven else ""
            return f"{where}use larger batches, accumulate=, wire_dtype='bfloat16', or UCX where the network has RDMA."
        case "send":
            return "use wire_dtype='bfloat16', or accumulate=."
        case "ps":
            where = f"{uneven} is busiest; " if uneven else ""
            return (
                f"{where}under Sync, workers wait for the slowest: use balance='speed' or backups=1, or Async(); "
                "where they are alike, add a ps, or let workers compute more a step."
            )
        case _:
            return "make hooks rarer, or use steps_per_execution= where steps are small."
