"""Optimizer: what all optimizers of `tf.train` record, with the formulas of `ops.update_rules`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np

from trainband.compat.ops import update_rules as rules
from trainband.compat.ops.checks import check_rows
from trainband.compat.ops.dtypes import DType
from trainband.compat.ops.indexing import dense_from_rows
from trainband.compat.ops.math import cast
from trainband.compat.ops.update_rules import Rule
from trainband.compat.tf1.graphs.graph import Operation, Tensor, get_default_graph
from trainband.compat.tf1.graphs.graph_keys import GraphKeys
from trainband.compat.tf1.graphs.lowering import Frame
from trainband.compat.tf1.graphs.record import constant, convert, record
from trainband.compat.tf1.graphs.slices import IndexedSlices
from trainband.compat.tf1.graphs.variable import PartitionedVariable, Variable
from trainband.compat.tf1.graphs.where import user_line
from trainband.compat.tf1.operations.control_flow import group
from trainband.compat.tf1.operations.gradients import gradients
from trainband.compat.tf1.operations.recorder import recorded


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
    optimizer: Optimizer
    call: str = ""


@dataclass
class Optimizer:
    """What all optimizers do: compute gradients, and record the operations that apply them."""

    learning_rate: Any
    use_locking: bool = False
    name: str = "Optimizer"
    _slots: dict[str, dict[Any, Variable]] = field(default_factory=dict, init=False, repr=False)
    _shared: dict[tuple[Any, str], Variable] = field(default_factory=dict, init=False, repr=False)
    _tensors: dict[tuple[Any, str, str], Tensor] = field(default_factory=dict, init=False, repr=False)

    GATE_NONE = 0
    GATE_OP = 1
    GATE_GRAPH = 2

    def rule(self) -> Rule:
        """The formula."""
        raise NotImplementedError

    def hyper(self) -> dict[str, Any]:
        """The numbers of the formula."""
        return {"learning_rate": self.learning_rate}

    # --- gradients

    def minimize(
        self,
        loss: Any,
        global_step: Any = None,
        var_list: Any = None,
        gate_gradients: Any = GATE_OP,
        aggregation_method: Any = None,
        colocate_gradients_with_ops: bool = False,
        name: str | None = None,
        grad_loss: Any = None,
    ) -> Operation:
        """An operation that makes one step; with `global_step`, it counts it."""
        found = self.compute_gradients(
            loss, var_list, gate_gradients, aggregation_method, colocate_gradients_with_ops, grad_loss
        )
        if all(gradient is None for gradient, _ in found):
            raise ValueError(
                f"No gradients provided for any variable, check your graph for ops that do not support gradients, "
                f"between variables {[variable.name for _, variable in found]} and loss {loss}. (at {user_line()})"
            )
        return self.apply_gradients(found, global_step, name)

    def compute_gradients(
        self,
        loss: Any,
        var_list: Any = None,
        gate_gradients: Any = GATE_OP,  # noqa: ARG002 - one program does it all
        aggregation_method: Any = None,  # noqa: ARG002
        colocate_gradients_with_ops: bool = False,  # noqa: ARG002
        grad_loss: Any = None,
    ) -> list[tuple[Any, Any]]:
        """(gradient, variable) for each variable; `None` where the loss does not depend on it.

        Raises:
          ValueError: there is nothing to train.
        """
        target = convert(loss() if callable(loss) else loss)
        variables = _flat(var_list) if var_list is not None else _flat(target.graph.get_collection(TRAINABLE))
        if not variables:
            raise ValueError(f"No variables to optimize. (at {user_line()})")
        found = gradients(target, variables, grad_ys=grad_loss)
        return list(zip(found, variables, strict=True))

    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Operation:
        """An operation that applies gradients; with `global_step`, it counts the step afterwards.

        Raises:
          ValueError: there is no gradient.
        """
        pairs = [(gradient, variable) for gradient, variable in grads_and_vars if gradient is not None]
        if not pairs:
            names = [str(getattr(variable, "name", variable)) for _, variable in grads_and_vars]
            raise ValueError(f"No gradients provided for any variable: {names}. (at {user_line()})")
        graph = get_default_graph()
        rule, title = self.rule(), name or self.name
        with graph.control_dependencies(None):
            for _, variable in pairs:
                self._make_slots(rule, variable)
        with graph.name_scope(title) as scope:
            updates = [self._apply(rule, gradient, variable, scope) for gradient, variable in pairs]
            with graph.control_dependencies(updates):
                ends = [self._advance(rule)] if rule.shared else []
            for (_, variable), update in zip(pairs, updates, strict=True):
                if variable.constraint is not None:
                    with graph.control_dependencies([update]):
                        ends.append(variable.assign(variable.constraint(variable.as_tensor())).op)
            done = [*updates, *ends]
            if global_step is None:
                train = group(*done, name=scope)
            else:
                with graph.control_dependencies([group(*done, name="update")]):
                    train = global_step.assign_add(1, name=scope).op
                train.attributes["counts"] = True
        graph.add_to_collection(GraphKeys.TRAIN_OP, train)
        return train

    def _apply(self, rule: Rule, gradient: Any, variable: Variable, call: str) -> Operation:
        hyper = {name: self._tensor(name, value, variable.dtype) for name, value in self.hyper().items()}
        slots = {name: self._slots[name][_key(variable)] for name, _ in rule.slots}
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
        application = Application(rule, variable, slots, hyper, shared, self, call)

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

    # --- slots

    def _make_slots(self, rule: Rule, variable: Any) -> None:
        graph = variable.graph
        outer = graph.variable_scope.name if graph.variable_scope is not None else ""
        prefix = f"{outer}/" if outer else ""  # TensorFlow makes slots in the open scope, under the whole name
        for name, first in rule.slots:
            slots = self._slots.setdefault(name, {})
            if _key(variable) not in slots:
                sizes = [size or 0 for size in variable.shape.sizes or ()]
                dtype = variable.dtype
                with graph.outside_scopes(), graph.device(None), graph.device(variable.device):
                    slot = Variable(
                        lambda sizes=sizes, first=first, dtype=dtype: constant(np.full(sizes, first, dtype.numpy)),
                        trainable=False,
                        name=f"{prefix}{variable.op_name}/{self._slot_title(name)}",
                    )
                slot.op.attributes["slot_of"] = (variable, _key_of_another(variable.op, name))
                slots[_key(variable)] = slot
        for name, factor in rule.shared:
            if (graph, name) not in self._shared:
                value = self.hyper()[factor]
                one = Variable(lambda value=value: convert(value, variable.dtype), trainable=False, name=name)
                one.op.attributes |= {
                    "slot_of": (None, _key_of_another(graph.operations[0], name)),
                    "slot_beside": variable,
                }
                self._shared[graph, name] = one

    def _slot_title(self, name: str) -> str:
        """The last part of a slot's name: TensorFlow numbers them in the order in which they are made."""
        del name
        return self.name

    def get_slot(self, var: Any, name: str) -> Variable | None:
        """The variable that holds a slot of another; `None` where there is none yet."""
        return self._slots.get(name, {}).get(_key(var))

    def get_slot_names(self) -> list[str]:
        """The names of the slots."""
        return sorted(self._slots)

    def variables(self) -> list[Variable]:
        """All that it keeps."""
        return [one for slots in self._slots.values() for one in slots.values()] + list(self._shared.values())

    def get_name(self) -> str:
        """Its name."""
        return self.name


TRAINABLE = GraphKeys.TRAINABLE_VARIABLES


def _key(variable: Any) -> Any:
    return variable.graph, variable.op_name


def _key_of_another(keeper: Operation, name: str) -> str:
    """What a ps calls a slot: by its name, with a number if other optimizers keep such slots there."""
    kept = keeper.attributes.setdefault("kept_slots", {})
    kept[name] = number = kept.get(name, -1) + 1
    return f"{name}_{number}" if number else name


def _flat(variables: Any) -> list[Any]:
    listed = list(variables) if isinstance(variables, list | tuple) else [variables]
    return [part for one in listed for part in (one.parts if isinstance(one, PartitionedVariable) else [one])]
