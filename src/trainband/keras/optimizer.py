"""A Keras optimizer as two pure functions on any subset of the variables, as strategies need it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from trainband.errors import ModelError
from trainband.keras.keras_internals import config_of, iterations, keras, learning_rate
from trainband.model.optimizer import NewParams
from trainband.model.variables import PyTree, path_name

LEARNING_RATE = "learning_rate"
"""The leaf of the state that a callback may change during training."""

ITERATIONS = "iterations"
"""The leaf that counts the updates."""

COUNTED = re.compile(r"^variable_\d+$")
"""Keras's name for an unnamed variable: it has a process-wide count, so it differs each time."""

Slots = list[tuple[str, str]]
"""For each variable of a Keras optimizer, in order: its kind, and the name of its model variable, or ''."""


class KerasOptimizer:
    """A Keras optimizer as optax's GradientTransformation. Its update returns new params.

    A new Keras optimizer is built for each part of the variables, from the config of the given one: an optimizer's
    variables cannot be split, but those of a new one have the right size. It is built and run while JAX traces, so
    nothing is allocated. The state is a dict: `iterations`, `learning_rate`, and for each kind of variable that the
    optimizer keeps (such as `momentum`) a tree like the params'.

    Args:
      optimizer: any optimizer of Keras 3.
      originals: the model's trainable variables by name, for their constraints and for `exclude_from_weight_decay`.

    Raises:
      ModelError: the optimizer cannot be rebuilt, or its state cannot be kept on a parameter server.
    """

    def __init__(self, optimizer: Any, originals: dict[str, Any]) -> None:
        self._given = optimizer
        self._originals = originals
        if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
            raise ModelError(
                "a LossScaleOptimizer (which compile() adds under the policy mixed_float16) skips gradients of its "
                "process that are not finite, which trainband does for all workers; use the policy "
                "mixed_bfloat16, which needs no loss scaling, or compile(auto_scale_loss=False)."
            )
        self._fresh()

    def init(self, params: PyTree) -> PyTree:
        """Returns the given optimizer's initial state for these params."""
        names, leaves, _ = _flattened(params)
        optimizer, slots = self._built(names, leaves)
        return self.named(params, slots, [variable.value for variable in optimizer.variables])

    def update(self, gradient: PyTree, state: PyTree, params: PyTree) -> tuple[NewParams, PyTree]:
        """Returns the new params and the new state, by Keras's `stateless_apply`."""
        names, leaves, treedef = _flattened(params)
        optimizer, slots = self._built(names, leaves)
        old = listed(state, slots)
        new, new_state = optimizer.stateless_apply(old, jax.tree.leaves(gradient), leaves)
        return NewParams(jax.tree.unflatten(treedef, new)), self.named(params, slots, new_state)

    def slots_of(self, variables: Mapping[str, Any]) -> Slots:
        """Returns the slots of a Keras optimizer built with these variables, in their order."""
        found: Slots = []

        def build(leaves: list[Any]) -> None:
            found.extend(self._built(list(variables), leaves)[1])

        jax.eval_shape(build, [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in variables.values()])
        return found

    @staticmethod
    def named(params: PyTree, slots: Slots, values: Sequence[Any]) -> PyTree:
        """The inverse of `listed`."""
        paths, treedef = jax.tree_util.tree_flatten_with_path(params)
        names = [path_name(path) for path, _ in paths]
        kinds: dict[str, dict[str, Any]] = {}
        for (kind, owner), value in zip(slots, values, strict=True):
            kinds.setdefault(kind, {})[owner] = value
        return {kind: part[""] if "" in part else _like_params(part, names, treedef) for kind, part in kinds.items()}

    def _built(self, given: Sequence[str], leaves: Sequence[Any]) -> tuple[Any, Slots]:
        """Returns a Keras optimizer for variables of these names and values, and its slots."""
        optimizer = self._fresh()
        names: dict[int, str] = {}
        variables = []
        for name, leaf in zip(given, leaves, strict=True):
            original = self._original(name)
            variable = keras.Variable(leaf, name=name.replace("/", "_"), trainable=True)
            if original is not None:
                variable.constraint = original.constraint
            names[id(variable)] = name
            variables.append(variable)
        self._exclude(optimizer, variables, names)
        slots: dict[int, tuple[str, str]] = {id(iterations(optimizer)): (ITERATIONS, "")}
        if (rate := learning_rate(optimizer)) is not None:
            slots[id(rate)] = (LEARNING_RATE, "")
        add = optimizer.add_variable_from_reference

        def add_and_record(reference_variable: Any, name: str | None = None, initializer: Any = "zeros") -> Any:
            made = add(reference_variable, name=name, initializer=initializer)
            slots[id(made)] = (name or "var", names[id(reference_variable)])
            return made

        object.__setattr__(optimizer, "add_variable_from_reference", add_and_record)
        optimizer.build(variables)
        taken: set[str] = set()
        for variable in optimizer.variables:
            if id(variable) not in slots:  # made in the optimizer's own way, as in Adafactor
                name = variable.path.partition("/")[2] or variable.path
                name = COUNTED.sub("variable", name)
                while name in taken:
                    name += "_"
                taken.add(name)
                slots[id(variable)] = (f"own/{name}".replace("/", "_"), "")
        return optimizer, [slots[id(variable)] for variable in optimizer.variables]

    def _original(self, name: str) -> Any:
        """Returns the model's variable for a leaf, which may be a slice of it."""
        while name not in self._originals and "/" in name:
            name = name.rpartition("/")[0]
        return self._originals.get(name)

    def _fresh(self) -> Any:
        kind = type(self._given)
        try:
            return kind.from_config(config_of(self._given))
        except Exception as exc:
            raise ModelError(
                f"the optimizer {kind.__name__} cannot be rebuilt from its config ({type(exc).__name__}: {exc}), "
                "which the tasks of a job must do; give it get_config(), with every argument of its __init__."
            ) from exc

    def _exclude(self, optimizer: Any, variables: list[Any], names: dict[int, str]) -> None:
        """Excludes the variables from weight decay that the given optimizer excludes."""
        excluded: set[int] = getattr(self._given, "_exclude_from_weight_decay", set())
        pattern = getattr(self._given, "_exclude_from_weight_decay_pattern", None)
        if not excluded and pattern is None:
            return
        mine = []
        for variable in variables:
            original = self._original(names[id(variable)])
            if original is None:
                continue
            if id(original) in excluded or (pattern is not None and pattern.search(original.name) is not None):
                mine.append(variable)
        optimizer.exclude_from_weight_decay(var_list=mine)


def _like_params(part: dict[str, Any], names: Sequence[str], treedef: Any) -> PyTree:
    """Returns an optimizer's values per param as a tree like the params'; by name, if it keeps them for some only."""
    if len(part) < len(names):
        return part
    return jax.tree.unflatten(treedef, [part[name] for name in names])


def listed(state: PyTree, slots: Slots) -> list[Any]:
    """Returns a state's values in the order of a Keras optimizer's variables."""
    by_name = {
        kind: {path_name(path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(part)[0]}
        for kind, part in state.items()
    }
    return [by_name[kind][owner] for kind, owner in slots]


def _flattened(params: PyTree) -> tuple[list[str], list[Any], Any]:
    """Returns the names, the leaves and the tree."""
    found, treedef = jax.tree_util.tree_flatten_with_path(params)
    return [path_name(path) for path, _ in found], [leaf for _, leaf in found], treedef
