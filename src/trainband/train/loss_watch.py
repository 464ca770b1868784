"""LossWatch: warns of a loss that is NaN or infinite, which a finite gradient may hide."""

from __future__ import annotations

import math
from collections.abc import Sequence

from trainband.runtime.waiting import Say
from trainband.strategies.base import StepReport


class LossWatch:
    """Checks the losses of one task's training, and warns of the first that is NaN or infinite.

    Does not warn if the gradient was not finite either: it is refused then, which is reported elsewhere.

    Args:
      say: receives the warning.
    """

    def __init__(self, say: Say) -> None:
        self._say = say
        self._has_warned = False
        self._step = 0

    def start(self, global_step: int) -> None:
        """Records that the training begins, or resumes, at this global step."""
        self._step = global_step

    def check(self, task: str, report: StepReport) -> None:
        """Checks the losses of `task` in a report."""
        if self._has_warned:
            return
        if report.known is None:
            known: Sequence[tuple[int, float]] = () if report.refusal else ((report.global_step, report.loss),)
        else:
            known = report.known
        for step, loss in known:
            is_refused = report.known is not None and step == self._step
            self._step = step
            is_there = isinstance(loss, float)  # reading one that is being computed would wait for the device
            if is_there and not (is_refused or math.isfinite(loss)):
                self._has_warned = True
                self._say(
                    f"WARNING: the loss of {task} is {float(loss):g} at global step {step:,}; training continues. "
                    "Check the data and the loss, or lower the learning rate; hooks=[NanHook()] ends it there."
                )
                return
