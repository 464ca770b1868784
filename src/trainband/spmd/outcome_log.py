"""OutcomeLog: known outcomes of steps that no report has covered yet."""

from __future__ import annotations

from collections.abc import Sequence


class OutcomeLog:
    """The outcomes of one training run after another. A step's outcome is known a call later."""

    def __init__(self) -> None:
        self.loss: float | None = None
        """The loss of the latest step whose outcome is known."""
        self.start_training()

    def start_training(self) -> None:
        """Begins a training run."""
        self._known: list[tuple[int, float]] = []
        """The global step after each step settled since the last report, and its loss."""
        self._refusal = ""
        self._reporting = -1
        self._surplus = 0

    def record_step(self, global_step: int, loss: float) -> None:
        """Notes a step and the global step after it."""
        self.loss = loss
        self.record_unused(global_step, loss)

    def record_unused(self, global_step: int, loss: float) -> None:
        """Notes a step after the training's end that a report has already covered."""
        self._known.append((global_step, loss))

    def record_refusal(self, refusal: str) -> None:
        """Notes why a step was refused."""
        self._refusal = refusal or self._refusal

    def start_report(self, call: int) -> None:
        """Begins the report of this call."""
        self._reporting, self._surplus = call, 0

    def excludes(self, call: int) -> bool:
        """Whether the report in progress leaves out a step of this call that came after the training's end."""
        self._surplus += call == self._reporting
        return call == self._reporting

    def end_report(self) -> int:
        """Returns how many steps of that call came after the end."""
        self._reporting = -1
        return self._surplus

    def pop_known(self) -> Sequence[tuple[int, float]]:
        """Returns the outcomes that became known since the last report, each once."""
        known, self._known = self._known, []
        return known

    def pop_refusal(self) -> str:
        """Returns why a step was refused, if not yet reported; empty if none was."""
        refusal, self._refusal = self._refusal, ""
        return refusal
