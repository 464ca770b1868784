"""A table of where a task's time went, and advice on it."""

from __future__ import annotations

from trainband.runtime.formatting import size
from trainband.runtime.step_times import TimeSpent

LARGE = 0.25
"""The share of the time above which a part of the step gets advice."""

UNEVEN = 0.6
"""The share of one ps in the waiting above which the advice names it: of two even ones, each has half, and the
first is waited for longest if all are alike."""

SEEN = 0.05
"""The share of checkpoints in the rest above which they are named."""

_WORDS = {
    "data": "waiting for data",
    "compute": "computing",
    "send": "sending gradients",
    "network": "on the network",
    "ps": "at the ps: waiting for other workers, updates",
    "other": "on the rest: hooks, checkpoints, the loop",
}


def table(spent: TimeSpent) -> list[str]:
    """Returns a line for each part that took time: its share, milliseconds a step, and its name."""
    lines = []
    for part, seconds in spent.seconds.items():
        if seconds > 0:
            a_step = 1e3 * seconds / spent.steps if spent.steps else 0.0
            words = _WORDS[part]
            if part == "network" and spent.received_bytes:
                sent, received = (size(n // max(1, spent.steps)) for n in (spent.sent_bytes, spent.received_bytes))
                words += f": {sent} sent and {received} received a step"
            if part == "other" and spent.saving >= SEEN * seconds:
                words += f"; of this, {spent.saving / seconds:.0%} for checkpoints"
            lines.append(f"{spent.share(part):6.1%} {a_step:9.3f} ms  {words}")
    return lines


def advice(spent: TimeSpent, who: str = "") -> list[str]:
    """Returns advice on the parts that take much of the time, the largest first; one sentence each.

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
    narrower = "" if spent.narrow else "wire_dtype='bfloat16', "
    match part:
        case "data":
            return "prepare batches faster, or give fit an iterable with its own thread or process (grain)."
        case "network":
            where = f"most of it to {uneven}, check its machine and network; or " if uneven else ""
            return f"{where}use larger batches, accumulate=, {narrower}or UCX if the network has RDMA."
        case "send":
            return f"use {narrower}larger batches, or accumulate=."
        case "ps":
            where = f"{uneven} is busiest; " if uneven else ""
            return (
                f"{where}under Sync, workers wait for the slowest: use balance='speed' or backups=1, or Async(); "
                "if they are alike, add a ps, or let workers compute more in a step."
            )
        case _ if spent.saving >= spent.seconds[part] / 2:
            return "most of it saving checkpoints: save less often (save_steps=, save_secs=), or to a faster disk."
        case _:
            return "make hooks and the loop's own work rarer, or use steps_per_execution= if steps are small."
