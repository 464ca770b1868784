"""The optimizer of a job: a graph's update operations as the pair of functions that trainband's ps run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trainband.compat.ops.update_rules import Rule
from trainband.compat.tf1.graphs.errors import UnimplementedError
from trainband.compat.tf1.graphs.graph import Operation, Tensor
from trainband.compat.tf1.graphs.lowering import Computation
from trainband.compat.tf1.graphs.record import known_value
from trainband.compat.tf1.graphs.variable import Variable
from trainband.compat.tf1.training.rule_optimizer import Application

Number = Callable[[Any], Any]
"""A rule's number as a function of how many updates have been made."""


@dataclass(frozen=True, slots=True)
class Update:
    """How a ps updates one variable.

    Attributes:
      numbers: the learning rate and the like; those that are in `pushed` are left out.
      pushed: those that workers compute and send with each gradient: the number's name to that of its own place among
        the params.
      signature: equal for two variables that are updated alike.
    """

    rule: Rule
    numbers: Mapping[str, Number]
    pushed: Mapping[str, str]
    signature: Any
    by_row: bool


def updates_of(operations: Sequence[Operation], step: Variable | None) -> dict[str, Update]:
    """How each variable that the graph trains is updated, by its name.

    Raises:
      UnimplementedError: two operations train one variable.
    """
    found: dict[str, Update] = {}
    for op in operations:
        application = op.attributes.get("application")
        if application is None:
            continue
        name = application.variable.op_name
        if name in found:
            raise UnimplementedError(
                None,
                op,
                f"{name} is trained by two operations of the graph; on parameter servers each variable has one "
                "optimizer. Train them in one process, or with one optimizer",
            )
        found[name] = _update(application, step, sparse=op.type.startswith("Sparse"))
    return found


def _update(application: Application, step: Variable | None, *, sparse: bool) -> Update:
    numbers: dict[str, Number] = {}
    pushed: dict[str, str] = {}
    for name, tensor in application.hyper.items():
        known = known_value(tensor)
        if known is not None:
            numbers[name] = _constant(known)
        elif (function := function_of_step(tensor, step)) is not None:
            numbers[name] = function
        else:
            pushed[name] = f"{application.optimizer.name}/{name}"
    signature = (
        application.rule.type,
        tuple(application.rule.slots),
        tuple(sorted(application.rule.settings.items())),
        id(application.optimizer),
        sparse and application.rule.by_row,
    )
    return Update(application.rule, numbers, pushed, signature, sparse and application.rule.by_row)


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


class JobOptimizer:
    """What optax calls a GradientTransformation, of a whole graph. Its state: `{slots: {name: {variable: array}},
    shared: {name: number}, count}`.

    Where all variables are updated alike, it treats whatever it is given alike, so that a ps may give it whole blocks.
    """

    def __init__(self, updates: Mapping[str, Update]) -> None:
        self._updates = dict(updates)
        self._any = next(iter(updates.values()), None)
        self._alike = len({update.signature for update in updates.values()}) == 1 and not any(
            update.by_row or update.pushed for update in updates.values()
        )

    def init(self, params: Any) -> dict[str, Any]:
        """The first state."""
        slots: dict[str, dict[str, Any]] = {}
        shared: dict[str, Any] = {}
        for name, value in params.items():
            update = self._of(name)
            if update is None:
                continue
            for slot, first in update.rule.slots:
                full = jax.tree.map(lambda leaf, first=first: jnp.full_like(leaf, first), value)
                slots.setdefault(slot, {})[name] = full
            for one, factor in update.rule.shared:
                shared.setdefault(one, jnp.asarray(update.numbers[factor](0), jnp.float32))
        # Where a slot is kept for some variables only, others have nothing there; a state has all keys on every ps.
        return {"slots": slots, "shared": shared, "count": jnp.zeros((), jnp.int32)}

    def update(self, gradient: Any, state: Any, params: Any) -> tuple[Any, dict[str, Any]]:
        """(what is to be added to the params, the next state)."""
        count = state["count"]
        slots: dict[str, dict[str, Any]] = {name: {} for name in state["slots"]}
        shared = dict(state["shared"])
        changes: dict[str, Any] = {}
        for name, value in params.items():
            update = self._of(name)
            if update is None or value is None:
                changes[name] = jax.tree.map(jnp.zeros_like, value)
                continue
            numbers = {key: number(count) for key, number in update.numbers.items()}
            numbers |= {key: gradient[place] for key, place in update.pushed.items()}
            numbers |= {key: state["shared"][key] for key, _ in update.rule.shared}
            names = [slot for slot, _ in update.rule.slots]
            pieces = [state["slots"][slot][name] for slot in names]
            leaves, structure = jax.tree.flatten(value)
            done = [
                _applied(update, leaf, push, dict(zip(names, kept, strict=True)), numbers)
                for leaf, push, *kept in zip(
                    leaves, jax.tree.leaves(gradient[name]), *(jax.tree.leaves(piece) for piece in pieces), strict=True
                )
            ]
            changes[name] = jax.tree.unflatten(
                structure, [new - old for (new, _), old in zip(done, leaves, strict=True)]
            )
            for slot in names:
                slots[slot][name] = jax.tree.unflatten(structure, [after[slot] for _, after in done])
            for one, factor in update.rule.shared:
                shared[one] = state["shared"][one] * jnp.asarray(numbers[factor], jnp.float32)
        return changes, {"slots": slots, "shared": shared, "count": count + 1}

    def _of(self, name: str) -> Update | None:
        if self._alike:
            return self._any
        if name.startswith("block "):
            raise KeyError("variables that are not updated alike cannot be updated as blocks")
        return self._updates.get(name)


def _applied(
    update: Update, value: Any, gradient: Any, slots: dict[str, Any], numbers: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    typed = {key: jnp.asarray(number).astype(value.dtype) for key, number in numbers.items()}
    new, after = update.rule.update(value, gradient, slots, typed)
    if not update.by_row:
        return new, after
    # A push is dense: a row counts as looked up if its gradient is not all zero.
    touched = jnp.any(gradient != 0, axis=tuple(range(1, gradient.ndim)), keepdims=True)
    return jnp.where(touched, new, value), {key: jnp.where(touched, after[key], slots[key]) for key in after}
