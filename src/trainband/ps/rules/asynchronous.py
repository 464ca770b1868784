"""The asynchronous rule: every push becomes an update at once, however old its params are.

Source: Dean et al. 2012, Large Scale Distributed Deep Networks (Downpour SGD); Recht et al. 2011, Hogwild!
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from trainband.ps.rules.base import (
    ALL_UPDATES_MADE,
    Apply,
    Begin,
    Drop,
    Event,
    Instruction,
    Join,
    Leave,
    Push,
    Reply,
    Setting,
    UpdateRule,
)
from trainband.ps.rules.ledger import Ledger
from trainband.runtime.overrides import override


@dataclass(frozen=True, kw_only=True, slots=True)
class Async(UpdateRule):
    """Apply each worker's gradient as it comes. The fastest rule; updates are made from stale params.

    Args:
      staleness_scale: an update of staleness t is multiplied by max(1, t) ** -staleness_scale. 0 makes all
        updates alike; 1 is the staleness-aware learning rate of Zhang et al. 2016 (arXiv:1511.05950). It
        scales the optimizer's update, so that it works for Adam too, which would undo a scaled gradient.
      delay_compensation: the factor of g * g * (params now - params the gradient was computed from) that is
        added to the gradient g; 0 adds nothing. Source: Zheng et al. 2017, Asynchronous Stochastic Gradient
        Descent with Delay Compensation (arXiv:1609.08326). A ps then keeps one old version of its params per
        worker.

    Raises:
      ValueError: one of them is negative.
    """

    staleness_scale: float = 0.0
    delay_compensation: float = 0.0

    def __post_init__(self) -> None:
        for name in ("staleness_scale", "delay_compensation"):
            value = getattr(self, name)
            if not value >= 0:
                raise ValueError(f"Async.{name} must be 0 or more, got {value}.")

    @override
    def settings(self) -> Mapping[str, Setting]:
        return {"name": "async", "staleness_scale": self.staleness_scale, "delay_compensation": self.delay_compensation}

    @override
    def start(self, version: int, workers: int) -> AsyncState:  # noqa: ARG002 - it never counts workers
        return AsyncState(version=version, last_version=version, rule=self)


@dataclass(frozen=True, slots=True)
class AsyncState:
    """The `RuleState` of `Async`."""

    version: int
    last_version: int
    rule: Async = field(default_factory=Async)
    ledger: Ledger = field(default_factory=Ledger)

    def advance(self, event: Event) -> tuple[AsyncState, tuple[Instruction, ...]]:
        match event:
            case Push():
                return self._push(event)
            case Join(worker):
                return replace(self, ledger=self.ledger.join(worker)), ()
            case Leave(worker):
                return replace(self, ledger=self.ledger.leave(worker)), ()
            case Begin(last_version):
                return replace(self, last_version=last_version), ()

    def waiting_for(self) -> frozenset[int]:
        """Returns the empty set: no worker waits for another."""
        return frozenset()

    def share(self, worker: int) -> int:  # noqa: ARG002 - each worker decides
        return 0

    def _push(self, push: Push) -> tuple[AsyncState, tuple[Instruction, ...]]:
        self.ledger.check(push, self.version)
        staleness = self.version - push.version
        reply = Reply(push.worker, push.sequence, staleness)
        if self.ledger.is_replay(push):
            return self, (self.ledger.known(push), reply)
        ledger = self.ledger.record(push)
        if self.version >= self.last_version:
            state = AsyncState(self.version, self.last_version, self.rule, ledger.drop((push,)))
            return state, (Drop(push.worker, push.sequence, ALL_UPDATES_MADE), reply)
        scale = max(1, staleness) ** -self.rule.staleness_scale if self.rule.staleness_scale else 1.0
        state = AsyncState(self.version + 1, self.last_version, self.rule, ledger)
        return state, (Apply(((push.worker, push.sequence),), scale), reply)
