"""The optimizer of a job: a graph's update operations as the pair of functions that trainband's ps run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trainband.compat.ops.update_rules import Rule
from trainband.compat.tf1.graphs.graph import Operation, Tensor
from trainband.compat.tf1.graphs.lowering import Computation
from trainband.compat.tf1.graphs.record import known_value
from trainband.compat.tf1.graphs.variable import Variable
from trainband.compat.tf1.training.rule_optimizer import Application

Number = Callable[[Any], Any]
"""A rule's number as a function of how many updates have been made."""


@dataclass(frozen=True, slots=True)
class Update:
    """One way in which a ps updates a variable.

    Attributes:
      numbers: the learning rate and the like; those that are in `pushed` are left out.
      pushed: those that workers compute and send with each gradient: the number's name to that of its own place among
        the params.
      signature: equal for two variables that are updated alike.
      call: the training operation that it belongs to.
      flag: the name of the place of a number that is above zero if a push is of this training operation; empty where
        every push is.
      slots, shared: what the ps calls what the rule keeps, by the rule's names.
    """

    rule: Rule
    numbers: Mapping[str, Number]
    pushed: Mapping[str, str]
    signature: Any
    by_row: bool
    call: str = ""
    flag: str = ""
    slots: Mapping[str, str] = field(default_factory=dict)
    shared: Mapping[str, str] = field(default_factory=dict)

    @property
    def places(self) -> list[str]:
        """The names of the numbers that are sent with each gradient."""
        return [*self.pushed.values(), *([self.flag] if self.flag else [])]


Updates = Mapping[str, Sequence[Update]]
"""By variable, the ways in which it is updated: one for each training operation."""


def updates_of(operations: Sequence[Operation], step: Variable | None) -> dict[str, list[Update]]:
    """How each variable that the graph trains is updated, by its name."""
    trained = [(op, op.attributes["application"]) for op in operations if "application" in op.attributes]
    several = len({application.call for _, application in trained}) > 1
    found: dict[str, list[Update]] = {}
    for op, application in trained:
        update = _update(application, step, sparse=op.type.startswith("Sparse"), several=several)
        found.setdefault(application.variable.op_name, []).append(update)
    return found


def _update(application: Application, step: Variable | None, *, sparse: bool, several: bool) -> Update:
    numbers: dict[str, Number] = {}
    pushed: dict[str, str] = {}
    scope = application.call.rstrip("/") if several else application.optimizer.name
    for name, tensor in application.hyper.items():
        known = known_value(tensor)
        if known is not None:
            numbers[name] = _constant(known)
        elif (function := function_of_step(tensor, step)) is not None:
            numbers[name] = function
        else:
            pushed[name] = f"{scope}/{name}"
    signature = (
        application.rule.type,
        tuple(application.rule.slots),
        tuple(sorted(application.rule.settings.items())),
        id(application.optimizer),
        sparse and application.rule.by_row,
    )
    return Update(
        application.rule,
        numbers,
        pushed,
        signature,
        sparse and application.rule.by_row,
        application.call,
        f"{scope}/runs" if several else "",
        {name: slot.op.attributes["slot_of"][1] for name, slot in application.slots.items()},
        {name: one.op.attributes["slot_of"][1] for name, one in application.shared.items()},
    )


def _constant(value: Any) -> Number:
    number = np.asarray(value).reshape(())[()]
    return lambda _: number


def function_of_step(tensor: Tensor, step: Variable | None) -> Number | None:
    """A tensor as a function of the global step; `None` where it depends on anything else that changes."""
    computation = Computation([tensor], [])
    others = {name for name in computation.reads if step is None or name != step.op_name}
    fed = any(op.type == "Placeholder" or op.attributes.get("effect") for op in computation.schedule.needed)
    if others or computation.writes or computation.schedule.is_random or fed:
        return None

    def of(count: Any) -> Any:
        state = {} if step is None else {step.op_name: count}
        return jnp.asarray(computation(state, [], None)[0][0])

    return of


def on_ps(place: str, ps: int) -> str:
    """The name of a number that is sent with each gradient, on one of the ps: each has its own."""
    return f"{place}/{ps}"


class JobOptimizer:
    """What optax calls a GradientTransformation, of a whole graph. Its state: `{slots: {name: {variable: array}},
    shared: {name: number}, count}`.

    Where all variables are updated alike, it treats whatever it is given alike, so that a ps may give it whole blocks.

    Args:
      updates: of the params.
      ps_count: how many ps there are.
      held: the variables of the model state that no push changes.
      added: those to which a push adds.
    """

    def __init__(
        self, updates: Updates, ps_count: int = 1, held: Collection[str] = (), added: Collection[str] = ()
    ) -> None:
        self._updates = {name: tuple(ways) for name, ways in updates.items()}
        self._ps_count = ps_count
        self._held = frozenset(held)
        self._added = frozenset(added)
        every = [update for ways in updates.values() for update in ways]
        self._any = tuple(every[:1])
        self._alike = (
            len({update.signature for update in every}) == 1
            and len(every) == len(updates)
            and not any(update.by_row or update.places for update in every)
        )

    def init(self, params: Any) -> dict[str, Any]:
        """The first state."""
        slots: dict[str, dict[str, Any]] = {}
        shared: dict[str, Any] = {}
        for name, value in params.items():
            for update in self._of(name):
                for slot, first in update.rule.slots:
                    full = jax.tree.map(lambda leaf, first=first: jnp.full_like(leaf, first), value)
                    slots.setdefault(update.slots[slot], {})[name] = full
                for one, factor in update.rule.shared:
                    shared.setdefault(update.shared[one], jnp.asarray(update.numbers[factor](0), jnp.float32))
        # Where a slot is kept for some variables only, others have nothing there; a state has all keys on every ps.
        return {"slots": slots, "shared": shared, "count": jnp.zeros((), jnp.int32)}

    def update(self, gradient: Any, state: Any, params: Any) -> tuple[Any, dict[str, Any]]:
        """(what is to be added to the params, the next state)."""
        count = state["count"]
        slots: dict[str, dict[str, Any]] = {name: dict(kept) for name, kept in state["slots"].items()}
        factors: dict[tuple[str, str], Any] = {}
        changes: dict[str, Any] = {}
        for name, value in params.items():
            ways = self._of(name)
            if not ways or value is None:
                changes[name] = jax.tree.map(jnp.zeros_like, value)
                continue
            now = value
            for update in ways:
                share = self._pushed(gradient, update.flag) if update.flag else None
                numbers = {key: number(count) for key, number in update.numbers.items()}
                numbers |= {
                    key: _of_share(self._pushed(gradient, place), share) for key, place in update.pushed.items()
                }
                factors |= {
                    (update.call, update.shared[one]): _if_run(share, numbers[factor], 1)
                    for one, factor in update.rule.shared
                }
                numbers |= {one: state["shared"][update.shared[one]] for one, _ in update.rule.shared}
                kept = {slot: slots[update.slots[slot]][name] for slot, _ in update.rule.slots}
                now, after = _applied_to_all(update, now, gradient[name], kept, numbers, share)
                for slot, one in after.items():
                    slots[update.slots[slot]][name] = one
            changes[name] = jax.tree.map(lambda new, old: new - old, now, value)
        shared = dict(state["shared"])
        for (_, name), factor in factors.items():
            shared[name] = shared[name] * jnp.asarray(factor, jnp.float32)
        return changes, {"slots": slots, "shared": shared, "count": count + 1}

    def update_state(self, name: str, value: Any, pushed: Any) -> Any:
        """See `JobSpecific`."""
        own = name.removeprefix("state/")
        if own in self._held:
            return value
        return value + pushed if own in self._added else pushed

    def _of(self, name: str) -> tuple[Update, ...]:
        if self._alike:
            return self._any
        if name.startswith("block "):
            raise KeyError("variables that are not updated alike cannot be updated as blocks")
        return self._updates.get(name, ())

    def _pushed(self, gradient: Any, place: str) -> Any:
        """A number that was sent with the gradient, as the ps that asks has got it."""
        copies = (gradient.get(on_ps(place, ps)) for ps in range(self._ps_count))
        return next(copy for copy in copies if copy is not None)


def _applied_to_all(
    update: Update, value: Any, gradient: Any, slots: dict[str, Any], numbers: dict[str, Any], share: Any
) -> tuple[Any, dict[str, Any]]:
    """The new value of a variable, or of all its slices, and its new slots."""
    leaves, structure = jax.tree.flatten(value)
    pieces = [jax.tree.leaves(kept) for kept in slots.values()]
    done = [
        _applied(update, leaf, push, dict(zip(slots, kept, strict=True)), numbers, share)
        for leaf, push, *kept in zip(leaves, jax.tree.leaves(gradient), *pieces, strict=True)
    ]
    new = jax.tree.unflatten(structure, [leaf for leaf, _ in done])
    return new, {slot: jax.tree.unflatten(structure, [after[slot] for _, after in done]) for slot in slots}


def _applied(
    update: Update, value: Any, gradient: Any, slots: dict[str, Any], numbers: dict[str, Any], share: Any
) -> tuple[Any, dict[str, Any]]:
    typed = {key: jnp.asarray(number).astype(value.dtype) for key, number in numbers.items()}
    gradient = _of_share(gradient, share)
    new, after = update.rule.update(value, gradient, slots, typed)
    if update.by_row:
        # A push is dense: a row counts as looked up if its gradient is not all zero.
        touched = jnp.any(gradient != 0, axis=tuple(range(1, gradient.ndim)), keepdims=True)
        new, after = jnp.where(touched, new, value), {key: jnp.where(touched, after[key], slots[key]) for key in after}
    return _if_run(share, new, value), {key: _if_run(share, after[key], slots[key]) for key in after}


def _of_share(mean: Any, share: Any) -> Any:
    """Of a mean over pushes of which only a share is of a training operation, the mean over those."""
    return mean if share is None else mean / jnp.where(share > 0, share, 1).astype(mean.dtype)


def _if_run(share: Any, new: Any, old: Any) -> Any:
    return new if share is None else jnp.where(share > 0, new, old)
