"""A scenario: everything about one simulated job that its seed decides."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from tests.simulation.faults import Trouble, crash_after_checkpoint, plan, plan_of_standbys
from tests.simulation.history import Terms
from tests.simulation.job import TIMEOUTS
from tests.simulation.process import TRUE, Clock
from trainband.data.pieces import SourceSettings
from trainband.ps.rules import Async, Bounded, Sync, UpdateRule
from trainband.wire.messages.calls import UNLIMITED

RULES: Mapping[str, Callable[[random.Random, int], UpdateRule]] = {
    "async": lambda *_: Async(),
    "bounded": lambda dice, _: Bounded(staleness=dice.choice((0, 1, 3))),
    "sync": lambda *_: Sync(),
    "sync-backups": lambda dice, workers: Sync(backups=dice.randrange(1, workers)),
    "sync-aggregate": lambda dice, workers: Sync(aggregate=dice.randint(1, 2 * workers + 1)),
}
"""How a rule is drawn for so many workers."""

DRIFT = 0.03
"""Far more than any clock has; a lease outlasts four heartbeats."""

STANDBYS = "standbys"
STANDBYS_ANY = "standbys-any"

KINDS = (*RULES, STANDBYS, STANDBYS_ANY)
"""What can be asked for: a rule, for shards without a standby; or shards with one, any rule, and one fault at a time or
any number of them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """One job.

    Attributes:
      updates: wanted of each shard; None: the data decides.
      source: the data that the workers share; None: it does not matter what they train on.
      batch: examples a step.
      step_s: of each worker: a step takes at most so many seconds.
      checkpoint_every: updates; 0 for never.
      overlap: whether exchanges overlap with steps.
      bad: how often a gradient is not finite.
      steers: every so many updates the chief sets a number of the optimizer's state; 0 for never.
      one_machine: whether all ps are on one, and share memory.
      elastic: how many of the workers, the last ones, no cluster has planned; they join when the job runs.
      drift: a clock is faster or slower than the truth by at most this part of it, and began to count at any time.
    """

    seed: int
    rule: UpdateRule
    workers: int
    shards: int
    updates: int | None
    source: SourceSettings | None
    batch: int
    step_s: tuple[float, ...]
    checkpoint_every: int
    trouble: Trouble
    standbys: int = 0
    overlap: bool = False
    bad: float = 0.0
    steers: int = 0
    one_machine: bool = False
    drift: float = 0.0
    elastic: int = 0

    @classmethod
    def of(cls, seed: int, kind: str) -> Scenario:
        """The scenario of a seed, of a kind of `KINDS`."""
        dice = random.Random(f"{kind}:{seed}")
        rule, standbys = kind, 0
        if kind not in RULES:
            rule, standbys = dice.choice(sorted(RULES)), 1
        workers, shards = (
            dice.randint(2, 4 if standbys else 5),
            dice.choice((2, 2, 3)) if standbys else dice.randint(1, 2),
        )
        epochs = dice.choice((0, 0, None, 1, 2))
        examples = dice.randint(10, 40) * (1 + standbys)
        source = SourceSettings(examples, dice.randint(2, 8), epochs, 0, False) if epochs != 0 else None
        # Long enough for a shard to go home again, and with nothing else that would keep it.
        is_long = standbys and dice.random() < 0.3
        if is_long:
            source = None
        names, ps = [f"worker:{number}" for number in range(workers)], [f"ps:{number}" for number in range(shards)]
        drawn = cls(
            seed=seed,
            rule=RULES[rule](dice, workers),
            workers=workers,
            shards=shards,
            updates=(dice.randint(60, 90) if is_long else dice.randint(3, 30) + 10 * standbys)
            if source is None or source.epochs is None
            else None,
            source=source,
            batch=dice.randint(1, 4),
            step_s=tuple(
                dice.choice((0.5, 1.0) if is_long else (0.5, 1.0, 2.0) if standbys else (0.05, 0.3, 1.0)) for _ in names
            ),
            checkpoint_every=0 if is_long else dice.choice((0, 1, 2, 5)),
            trouble=plan_of_standbys(dice, names, ps, TIMEOUTS.lease_s, single=kind == STANDBYS)
            if standbys
            else plan(dice, names, ps, TIMEOUTS.lease_s),
            standbys=standbys,
            one_machine=bool(standbys) and dice.random() < 0.5,
            drift=DRIFT if seed % 3 == 2 else 0.0,
            overlap=rule in ("async", "bounded") and dice.random() < 0.3,
            bad=dice.choice((0.0, 0.0, 0.05)),
            steers=dice.choice((0, 0, 5)),
            elastic=1 + (workers > 3) if seed % 4 == 1 and workers > 2 else 0,
        )
        if not drawn.checkpoint_every or drawn.trouble.single or seed % 3 != 1:
            return drawn
        crash = crash_after_checkpoint(dice, ps, TIMEOUTS.lease_s)
        return replace(drawn, trouble=drawn.trouble._replace(at_checkpoint=crash))

    def clocks(self) -> Mapping[str, Clock]:
        """That of each task."""
        workers = [f"worker:{number}" for number in range(self.workers)]
        ps = [f"ps:{number}" for number in range(self.shards)]
        dice = random.Random(f"clocks:{self.seed}")

        def clock() -> Clock:
            return Clock(-dice.choice((0.0, 1e6)) * dice.random(), 1 + dice.uniform(-self.drift, self.drift))

        clocks = {name: clock() for name in (*workers, *ps)} if self.drift else dict.fromkeys((*workers, *ps), TRUE)
        return {**clocks, **dict.fromkeys(ps, clocks[ps[0]])} if self.one_machine else clocks

    def hosts(self) -> Mapping[str, str]:
        """On which machine each task is."""
        ps = {f"ps:{i}": "machine" if self.one_machine else f"machine {i}" for i in range(self.shards)}
        return {**ps, **{f"worker:{i}": f"machine {(i + self.seed) % 4}" for i in range(self.workers)}}

    @property
    def save_secs(self) -> float:
        """Seconds between two checkpoints where they are not made by steps; else without end."""
        return 6.0 if self.checkpoint_every and self.seed % 2 else 1e6

    @property
    def saves(self) -> bool:
        """Whether there is a directory for checkpoints."""
        return self.checkpoint_every > 0 or not self.trouble.single

    @property
    def last_version(self) -> int:
        """As the chief asks for it."""
        return UNLIMITED if self.updates is None else self.updates

    @property
    def terms(self) -> Terms:
        """What its history is checked against."""
        settings = self.rule.settings()
        return Terms(
            rule=str(settings["name"]),
            staleness=int(settings.get("staleness") or 0),
            several=settings.get("aggregate") is not None,
            updates=self.updates,
            lease_s=TIMEOUTS.lease_s / (1 - self.drift),
            planned=frozenset(range(self.workers - self.elastic)),
            single=self.trouble.single,
            in_step=settings["name"] == "sync" and not settings["backups"] and settings["aggregate"] is None,
            saves=self.saves,
        )
