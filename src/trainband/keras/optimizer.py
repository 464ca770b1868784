"""A Keras optimizer as two pure functions on any part of the variables, as every strategy wants it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from trainband.errors import ModelError
from trainband.keras.inside import config_of, iterations, keras, learning_rate
from trainband.model.optimizer import NewParams
from trainband.model.variables import PyTree, path_name

LEARNING_RATE = "learning_rate"
"""The leaf of the state that a callback may change while training goes on."""

ITERATIONS = "iterations"
"""The leaf that counts the updates."""

COUNTED = re.compile(r"^variable_\d+$")
"""What Keras calls a variable that was given no name: by a count of the whole process, another one each time."""

Slots = list[tuple[str, str]]
"""Of each variable of a Keras optimizer, in order: what it is, and the name of the variable that it is of, or ''."""


class KerasOptimizer:
    """What optax calls a GradientTransformation, made of a Keras optimizer. Its update says what params become.

    A new Keras optimizer is built for each part of the variables, from the config of the given one: the variables of
    an optimizer cannot be cut, but a new one has them in the right size. It is built and run while JAX traces, so that
    nothing is allocated. The state is a dict: `iterations`, `learning_rate`, and for each kind of variable that the
    optimizer keeps (`momentum`, say) a tree like the params'.

    Args:
      optimizer: any optimizer of Keras 3.
      originals: the model's trainable variables by name, for their constraints and for `exclude_from_weight_decay`.

    Raises:
      ModelError: the optimizer cannot be made anew, or keeps what a parameter server cannot.
    """

    def __init__(self, optimizer: Any, originals: dict[str, Any]) -> None:
        self._given = optimizer
        self._originals = originals
        if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
            raise ModelError(
                "a LossScaleOptimizer (which compile() adds under the policy mixed_float16) leaves out the "
                "gradients of its process that are not finite, which trainband does for all workers; use the policy "
                "mixed_bfloat16, which needs no loss scaling, or compile(auto_scale_loss=False)."
            )
        self._fresh()

    def init(self, params: PyTree) -> PyTree:
        """The state for these params, which the given optimizer would begin with."""
        names, leaves, _ = _flattened(params)
        optimizer, slots = self._built(names, leaves)
        return self.named(params, slots, [variable.value for variable in optimizer.variables])

    def update(self, gradient: PyTree, state: PyTree, params: PyTree) -> tuple[NewParams, PyTree]:
        """(what the params become, the new state), by Keras's `stateless_apply`."""
        names, leaves, treedef = _flattened(params)
        optimizer, slots = self._built(names, leaves)
        old = listed(state, slots)
        new, new_state = optimizer.stateless_apply(old, jax.tree.leaves(gradient), leaves)
        return NewParams(jax.tree.unflatten(treedef, new)), self.named(params, slots, new_state)

    def slots_of(self, variables: Mapping[str, Any]) -> Slots:
        """Of a Keras optimizer that was built with these variables, in their order."""
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
        """(a Keras optimizer for variables of these names and values, its slots)."""
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

        def noted(reference_variable: Any, name: str | None = None, initializer: Any = "zeros") -> Any:
            made = add(reference_variable, name=name, initializer=initializer)
            slots[id(made)] = (name or "var", names[id(reference_variable)])
            return made

        object.__setattr__(optimizer, "add_variable_from_reference", noted)
        optimizer.build(variables)
        taken: set[str] = set()
        for variable in optimizer.variables:
            if id(variable) not in slots:  # made in a way of the optimizer's own, as Adafactor does
                name = variable.path.partition("/")[2] or variable.path
                name = COUNTED.sub("variable", name)
                while name in taken:
                    name += "_"
                taken.add(name)
                slots[id(variable)] = (f"own/{name}".replace("/", "_"), "")
        return optimizer, [slots[id(variable)] for variable in optimizer.variables]

    def _original(self, name: str) -> Any:
        """The model's variable that a leaf is, or is a slice of."""
        while name not in self._originals and "/" in name:
            name = name.rpartition("/")[0]
        return self._originals.get(name)

    def _fresh(self) -> Any:
        kind = type(self._given)
        try:
            return kind.from_config(config_of(self._given))
        except Exception as exc:
            raise ModelError(
                f"the optimizer {kind.__name__} cannot be made anew from its config ({type(exc).__name__}: {exc}), "
                "which the tasks of a job must do; give it get_config(), with every argument of its __init__."
            ) from exc

    def _exclude(self, optimizer: Any, variables: list[Any], names: dict[int, str]) -> None:
        """Has the new optimizer exclude from weight decay what the given one does."""
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
    """What an optimizer keeps of each param, as a tree like the params'; by name, where it keeps it of some only."""
    if len(part) < len(names):
        return part
    return jax.tree.unflatten(treedef, [part[name] for name in names])


def listed(state: PyTree, slots: Slots) -> list[Any]:
    """A state's values in the order of a Keras optimizer's variables."""
    by_name = {
        kind: {path_name(path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(part)[0]}
        for kind, part in state.items()
    }
    return [by_name[kind][owner] for kind, owner in slots]


def _flattened(params: PyTree) -> tuple[list[str], list[Any], Any]:
    """(names, leaves, tree)."""
    found, treedef = jax.tree_util.tree_flatten_with_path(params)
    return [path_name(path) for path, _ in found], [leaf for _, leaf in found], treedef
