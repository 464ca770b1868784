"""Optimizer: what all optimizers of `tf.train` do, and those that scripts derive from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainband.compat.tf1.graphs.graph import Operation, Tensor, get_default_graph
from trainband.compat.tf1.graphs.graph_keys import GraphKeys
from trainband.compat.tf1.graphs.record import convert
from trainband.compat.tf1.graphs.slices import IndexedSlices
from trainband.compat.tf1.graphs.variable import PartitionedVariable, Variable
from trainband.compat.tf1.graphs.where import user_line
from trainband.compat.tf1.operations.control_flow import group
from trainband.compat.tf1.operations.gradients import gradients
from trainband.compat.tf1.training.slots import create_slot, create_slot_with_initializer, create_zeros_slot


class Optimizer:
    """What all optimizers do: compute gradients, and record the operations that apply them.

    A script's own optimizer overrides `_apply_dense` or `_resource_apply_dense`, for gradients of rows
    `_apply_sparse`, and if it needs to `_create_slots`, `_prepare` and `_finish`.
    """

    GATE_NONE = 0
    GATE_OP = 1
    GATE_GRAPH = 2

    def __init__(self, use_locking: bool, name: str) -> None:
        if not name:
            raise ValueError("Must specify the optimizer name")
        self._use_locking, self._name = use_locking, name
        self._slots: dict[str, dict[Any, Variable]] = {}
        self._shared: dict[tuple[Any, str], Variable] = {}
        self._call = ""

    @property
    def name(self) -> str:
        """Its name, the last part of its slots' names."""
        return self._name

    def get_name(self) -> str:
        """Its name."""
        return self._name

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
        variables = _flat(var_list if var_list is not None else target.graph.get_collection(TRAINABLE))
        if not variables:
            raise ValueError(f"No variables to optimize. (at {user_line()})")
        found = gradients(target, variables, grad_ys=grad_loss)
        return list(zip(found, variables, strict=True))

    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Operation:
        """An operation that applies gradients; with `global_step`, it counts the step afterwards.

        Raises:
          ValueError: there is no gradient.
        """
        listed = list(grads_and_vars)
        pairs = [(gradient, variable) for gradient, variable in listed if gradient is not None]
        if not pairs:
            names = [str(getattr(variable, "name", variable)) for _, variable in listed]
            raise ValueError(f"No gradients provided for any variable: {names}. (at {user_line()})")
        for _, variable in pairs:
            if not isinstance(variable, Variable):
                raise NotImplementedError(f"Trying to update a Tensor: {variable} (at {user_line()})")
        graph = get_default_graph()
        with graph.control_dependencies(None):
            self._create_slots([variable for _, variable in pairs])
        with graph.name_scope(name or self._name) as scope:
            self._call = scope
            self._prepare()
            updates = [self._update(gradient, variable) for gradient, variable in pairs]
            if global_step is None:
                train = self._finish(updates, scope)
            else:
                with graph.control_dependencies([self._finish(updates, "update")]):
                    train = global_step.assign_add(1, name=scope).op
                train.attributes["counts"] = True
        if train not in graph.get_collection(GraphKeys.TRAIN_OP):
            graph.add_to_collection(GraphKeys.TRAIN_OP, train)
        return train

    def _update(self, gradient: Any, variable: Variable) -> Any:
        """What applies one gradient, and then the variable's constraint."""
        update = self._applied(gradient, variable)
        if variable.constraint is None:
            return update
        with get_default_graph().control_dependencies([update]):
            return variable.assign(variable.constraint(variable.as_tensor())).op

    # --- what a script's own optimizer overrides

    def _applied(self, gradient: Any, variable: Variable) -> Any:
        """What applies one gradient."""
        new_way = _overrides(self, "_resource_apply_dense", "_resource_apply_sparse")
        if not isinstance(gradient, IndexedSlices):
            gradient = convert(gradient, variable.dtype)
            return self._resource_apply_dense(gradient, variable) if new_way else self._apply_dense(gradient, variable)
        if new_way:
            return self._resource_apply_sparse_duplicate_indices(gradient.values, variable, gradient.indices)
        return self._apply_sparse_duplicate_indices(gradient, variable)

    def _create_slots(self, var_list: Sequence[Variable]) -> None:
        pass

    def _prepare(self) -> None:
        pass

    def _finish(self, update_ops: Sequence[Any], name_scope: str) -> Operation:
        return group(*update_ops, name=name_scope)

    def _apply_dense(self, grad: Tensor, var: Variable) -> Any:
        raise NotImplementedError(f"{type(self).__name__} does not define how it applies gradients.")

    def _resource_apply_dense(self, grad: Tensor, handle: Variable) -> Any:
        raise NotImplementedError(f"{type(self).__name__} does not define how it applies gradients.")

    def _apply_sparse(self, grad: IndexedSlices, var: Variable) -> Any:
        raise NotImplementedError(f"{type(self).__name__} does not define how it applies gradients of rows.")

    def _resource_apply_sparse(self, grad: Tensor, handle: Variable, indices: Tensor) -> Any:
        raise NotImplementedError(f"{type(self).__name__} does not define how it applies gradients of rows.")

    def _apply_sparse_duplicate_indices(self, grad: IndexedSlices, var: Variable) -> Any:
        return self._apply_sparse(grad, var)

    def _resource_apply_sparse_duplicate_indices(self, grad: Tensor, handle: Variable, indices: Tensor) -> Any:
        return self._resource_apply_sparse(grad, handle, indices)

    # --- what it calls

    def _call_if_callable(self, param: Any) -> Any:
        return param() if callable(param) else param

    def _zeros_slot(self, var: Variable, slot_name: str, op_name: str) -> Variable:
        return self._slot(slot_name, var, lambda: create_zeros_slot(var, op_name))

    def _get_or_make_slot(self, var: Variable, val: Any, slot_name: str, op_name: str) -> Variable:
        return self._slot(slot_name, var, lambda: create_slot(var, val, op_name))

    def _get_or_make_slot_with_initializer(
        self, var: Variable, initializer: Any, shape: Any, dtype: Any, slot_name: str, op_name: str
    ) -> Variable:
        return self._slot(slot_name, var, lambda: create_slot_with_initializer(var, initializer, shape, dtype, op_name))

    def _slot(self, name: str, variable: Variable, make: Any) -> Variable:
        slots = self._slots.setdefault(name, {})
        if _key(variable) not in slots:
            slots[_key(variable)] = make()
        return slots[_key(variable)]

    def _create_non_slot_variable(self, initial_value: Any, name: str, colocate_with: Any) -> Variable:
        key = (colocate_with.graph, name)
        if key not in self._shared:
            self._shared[key] = Variable(initial_value, trainable=False, name=name)
        return self._shared[key]

    def _get_non_slot_variable(self, name: str, graph: Any = None) -> Variable | None:
        return self._shared.get((graph or get_default_graph(), name))

    # --- slots

    def get_slot(self, var: Any, name: str) -> Variable | None:
        """The variable that holds a slot of another; `None` where there is none yet."""
        return self._slots.get(name, {}).get(_key(var))

    def get_slot_names(self) -> list[str]:
        """The names of the slots."""
        return sorted(self._slots)

    def variables(self) -> list[Variable]:
        """All that it keeps for variables of the default graph, by name."""
        found = [one for slots in self._slots.values() for one in slots.values()] + list(self._shared.values())
        graph = get_default_graph()
        return sorted((one for one in found if one.graph is graph), key=lambda one: one.name)


TRAINABLE = GraphKeys.TRAINABLE_VARIABLES


def _overrides(optimizer: Optimizer, *names: str) -> bool:
    """Whether a script's own optimizer overrides any of these methods."""
    return any(getattr(type(optimizer), name) is not getattr(Optimizer, name) for name in names)


def _key(variable: Any) -> Any:
    return variable.graph, variable.op_name


def _flat(variables: Any) -> list[Any]:
    listed = list(variables) if isinstance(variables, list | tuple) else [variables]
    return [part for one in listed for part in (one.parts if isinstance(one, PartitionedVariable) else [one])]
