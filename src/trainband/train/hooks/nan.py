"""NanHook: ends a training run whose loss has become NaN or infinite."""

from __future__ import annotations

import numpy as np

from trainband.errors import TrainingError
from trainband.runtime.overrides import override
from trainband.strategies.base import StepReport
from trainband.train.hooks.base import Hook
from trainband.train.hooks.session import Session


class NanHook(Hook):
    """Checks the loss after every step; TensorFlow's NanTensorHook.

    Without it, a gradient that is not finite changes nothing and the training continues, ending only after many in a
    row; and a loss may be infinite although its gradient is not. Reading every loss waits for the device.

    Args:
      fail_on_nan: raise a `TrainingError`; otherwise just end the session, on the chief with the whole training run.
    """

    def __init__(self, *, fail_on_nan: bool = True) -> None:
        self._fail_on_nan = fail_on_nan

    @override
    def after_run(self, session: Session, report: StepReport) -> None:
        losses = np.ravel(report.loss if report.losses is None else report.losses)[: report.steps]
        bad = losses[~np.isfinite(losses)]
        if not bad.size:
            return
        what = f"the loss of {session.task} is {bad[0]:g} at global step {report.global_step:,}"
        if self._fail_on_nan:
            raise TrainingError(f"{what}; check the data and the loss, or lower the learning rate.")
        session.request_stop(what)
