"""RuleOptimizer: an optimizer that applies a formula of `ops.update_rules`, which a ps can apply as well."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np

from trainband.compat.ops import update_rules as rules
from trainband.compat.ops.array import ones_like
from trainband.compat.ops.checks import check_rows
from trainband.compat.ops.dtypes import DType
from trainband.compat.ops.indexing import dense_from_rows
from trainband.compat.ops.math import cast
from trainband.compat.ops.update_rules import Rule
from trainband.compat.tf1.graphs.graph import Operation, Tensor, get_default_graph
from trainband.compat.tf1.graphs.lowering import Frame
from trainband.compat.tf1.graphs.record import constant, convert, record
from trainband.compat.tf1.graphs.slices import IndexedSlices
from trainband.compat.tf1.graphs.variable import Variable
from trainband.compat.tf1.graphs.where import user_line
from trainband.compat.tf1.operations.control_flow import group
from trainband.compat.tf1.operations.recorder import recorded
from trainband.compat.tf1.training.optimizer import Optimizer
from trainband.compat.tf1.training.slots import slot_of
from trainband.runtime.overrides import override


@dataclass(frozen=True, slots=True)
class Application:
    """What an operation that updates a variable does, so that a ps can do it.

    Attributes:
      slots: the variables of the rule's slots, by the slot's name.
      hyper: its tensors by name: the learning rate and the like.
      shared: its variables that are shared, by name.
      call: the name of the `apply_gradients` that it belongs to; all that belong to it run together.
    """

    rule: Rule
    variable: Variable
    slots: dict[str, Variable]
    hyper: dict[str, Tensor]
    shared: dict[str, Variable]
    optimizer: RuleOptimizer
    call: str = ""


class RuleOptimizer(Optimizer):
    """An optimizer with a formula.

    Args:
      learning_rate: a number, a tensor, or a function that returns one.
    """

    def __init__(self, learning_rate: Any, use_locking: bool, name: str) -> None:
        super().__init__(use_locking, name)
        self.learning_rate = learning_rate
        """How far a step goes."""
        self._tensors: dict[tuple[Any, str, str], Tensor] = {}

    def rule(self) -> Rule:
        """The formula."""
        raise NotImplementedError

    def hyper(self) -> dict[str, Any]:
        """The numbers of the formula."""
        return {"learning_rate": self.learning_rate}

    @override
    def _create_slots(self, var_list: Sequence[Variable]) -> None:
        for variable in var_list:
            self._make_slots(self.rule(), variable)

    @override
    def _finish(self, update_ops: Sequence[Any], name_scope: str) -> Operation:
        rule = self.rule()
        with get_default_graph().control_dependencies(update_ops):
            ends = [self._advance(rule)] if rule.shared else []
        return group(*update_ops, *ends, name=name_scope)

    @override
    def _applied(self, gradient: Any, variable: Variable) -> Operation:
        rule = self.rule()
        hyper = {name: self._tensor(name, value, variable.dtype) for name, value in self.hyper().items()}
        slots = {name: self._needed_slot(variable, name) for name, _ in rule.slots}
        shared = {name: self._shared[variable.graph, name] for name, _ in rule.shared}
        rows = isinstance(gradient, IndexedSlices)
        if rows:
            inputs = [gradient.values, gradient.indices]
        else:
            tensor = convert(gradient, variable.dtype)
            if not tensor.shape.is_compatible_with(variable.shape):
                raise ValueError(
                    f"the gradient of {variable.op_name}, {variable.shape}, has the shape {tensor.shape} "
                    f"(at {user_line()})"
                )
            inputs = [tensor]
        application = Application(rule, variable, slots, hyper, shared, self, self._call)

        def compute(frame: Frame, *values: Any) -> list[Any]:
            given, numbers = values[: len(inputs)], dict(zip(hyper, values[len(inputs) :], strict=True))
            if frame.pushes is not None and variable.op_name in frame.pushes:
                shape = tuple(size or 0 for size in variable.shape.sizes or ())
                dense = dense_from_rows(given[0], given[1], shape) if rows else given[0]
                frame.pushes[variable.op_name] = jnp.asarray(dense)
                frame.hyper[variable.op_name] = numbers
                return []
            state = frame.state
            numbers |= {name: state[one.op_name] for name, one in shared.items()}
            kept = {name: state[slot.op_name] for name, slot in slots.items()}
            if rows:
                size = state[variable.op_name].shape[0]
                check_rows(given[1], size)
                if rule.by_row:
                    names = [variable.op_name, *(slot.op_name for slot in slots.values())]
                    given = (given[0], frame.rows_if_unfailed(given[1], size, names))
                new, after = rules.update_rows(rule, state[variable.op_name], given[0], given[1], kept, numbers)
            else:
                new, after = rule.update(state[variable.op_name], given[0], kept, numbers)
            state[variable.op_name] = jnp.asarray(new, variable.dtype.numpy)
            for slot_name, value in after.items():
                state[slots[slot_name].op_name] = jnp.asarray(value, slots[slot_name].dtype.numpy)
            return []

        return record(
            rule.type if not rows else f"Sparse{rule.type}",
            compute,
            [*inputs, *hyper.values()],
            count=0,
            stateful=True,
            reads=(variable, *slots.values(), *shared.values()),
            writes=(variable, *slots.values()),
            name=f"update_{variable.op_name}/{rule.type}",
            attributes={"application": application},
        )

    def _advance(self, rule: Rule) -> Operation:
        """Multiplies what is shared, once an update has been made."""
        graph = get_default_graph()
        pairs = [(self._shared[graph, name], factor) for name, factor in rule.shared]
        factors = [self._tensor(factor, self.hyper()[factor], variable.dtype) for variable, factor in pairs]

        def compute(frame: Frame, *values: Any) -> list[Any]:
            for (variable, _), factor in zip(pairs, values, strict=True):
                if variable.op_name in frame.state:  # a ps keeps its own
                    frame.state[variable.op_name] = frame.state[variable.op_name] * factor
            return []

        variables = [variable for variable, _ in pairs]
        return record(
            "AssignPowers", compute, factors, count=0, stateful=True, reads=variables, writes=variables, name="Assign",
            attributes={"of_rule": True},
        )  # fmt: skip

    def _tensor(self, name: str, value: Any, dtype: DType) -> Tensor:
        graph = get_default_graph()
        key = (graph, name, dtype.name)
        if key not in self._tensors:
            number = value() if callable(value) and not isinstance(value, Tensor) else value
            if isinstance(number, Tensor) or hasattr(number, "as_tensor"):
                self._tensors[key] = recorded(cast)(number, dtype)
            else:
                self._tensors[key] = constant(np.asarray(number, dtype.numpy), name)
        return self._tensors[key]

    def _make_slots(self, rule: Rule, variable: Any) -> None:
        graph = variable.graph
        for name, first in rule.slots:
            if self.get_slot(variable, name) is None:
                make = partial(slot_of, variable, partial(_filled, variable, first), self._slot_title(name))
                slot = self._slot(name, variable, make)
                slot.op.attributes["slot_of"] = (variable, _key_of_another(variable.op, name))
        for name, factor in rule.shared:
            if (graph, name) not in self._shared:
                value = self.hyper()[factor]
                one = Variable(lambda value=value: convert(value, variable.dtype), trainable=False, name=name)
                one.op.attributes |= {
                    "slot_of": (None, _key_of_another(graph.operations[0], name)),
                    "slot_beside": variable,
                }
                self._shared[graph, name] = one

    def _needed_slot(self, variable: Variable, name: str) -> Variable:
        found = self.get_slot(variable, name)
        assert found is not None
        return found

    def _slot_title(self, name: str) -> str:
        """The last part of a slot's name: TensorFlow numbers them in the order in which they are made."""
        del name
        return self.name


def _key_of_another(op: Operation, name: str) -> str:
    """What a ps calls a slot: by its name, with a number if other optimizers keep such slots there."""
    kept = op.attributes.setdefault("kept_slots", {})
    kept[name] = number = kept.get(name, -1) + 1
    return f"{name}_{number}" if number else name


def _filled(variable: Any, value: float) -> Tensor:
    """A constant of a variable's shape; where that is not known, of the shape of its first value."""
    sizes = variable.shape.sizes
    if variable.shape.is_fully_defined():
        return constant(np.full(sizes, value, variable.dtype.numpy))
    return recorded(ones_like)(variable.initialized_value()) * value  # type: ignore[no-any-return]
