"""Parts: a Flax NNX module taken apart into arrays, and put together again."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax
from flax import nnx

from trainband.errors import ModelError
from trainband.model.random_keys import key_kinds, with_keys, without_keys
from trainband.model.variables import PyTree

Path = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Tree:
    """A pytree of NNX as nested dicts of plain arrays, and back.

    Attributes:
      structure: of NNX's pytree.
      paths: of its leaves, in its order, without the suffix that all variables share.
      kinds: for each leaf, its kind of random key; `None` if it is not one.
      shapes, dtypes: of each leaf, as text.
    """

    structure: Any
    paths: tuple[Path, ...]
    kinds: tuple[Any, ...]
    shapes: tuple[str, ...]
    dtypes: tuple[str, ...]

    @classmethod
    def of(cls, state: Any) -> Tree:
        """Takes a state apart."""
        leaves, structure = jax.tree_util.tree_flatten_with_path(state)
        return cls(
            structure,
            tuple(keys_of(path) for path, _ in leaves),
            tuple(key_kinds([leaf for _, leaf in leaves])) if leaves else (),
            tuple(f"[{','.join(map(str, leaf.shape))}]" for _, leaf in leaves),
            tuple(str(leaf.dtype) for _, leaf in leaves),
        )

    def plain(self, state: Any) -> dict[Any, Any]:
        """Returns the state as nested dicts, with the data of keys; traceable."""
        nested: dict[Any, Any] = {}
        for path, leaf in zip(self.paths, jax.tree.leaves(without_keys(state)), strict=True):
            inner = nested
            for key in path[:-1]:
                inner = inner.setdefault(key, {})
            inner[path[-1]] = leaf
        return nested

    def back(self, nested: PyTree) -> Any:
        """Inverts `plain`; traceable."""
        leaves = [functools.reduce(lambda inner, key: inner[key], path, nested) for path in self.paths]
        return jax.tree.unflatten(self.structure, with_keys(leaves, self.kinds))


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a module.

    Attributes:
      graph: everything but its arrays.
      params, state: the trees of its arrays.
    """

    graph: Any
    params: Tree
    state: Tree

    @classmethod
    def of(cls, model: Any) -> Parts:
        """Takes a module apart.

        Raises:
          ModelError: it has no params.
        """
        graph, params, state = _split(model)
        trees = Tree.of(params), Tree.of(state)
        if not trees[0].paths:
            raise ModelError(
                f"the {type(model).__name__} has no nnx.Param, so there is nothing to train; layers of flax.nnx have "
                "theirs, and you can make one of an array: self.scale = nnx.Param(jnp.ones(3))."
            )
        return cls(graph, *trees)

    def values(self, model: Any) -> tuple[PyTree, PyTree]:
        """Returns (params, state) of the module as nested dicts.

        Raises:
          ModelError: its variables have changed.
        """
        self.check(model, mode=False)
        _, params, state = _split(model)
        return self.params.plain(params), self.state.plain(state)

    def states(self, params: PyTree, state: PyTree) -> tuple[Any, Any]:
        """Converts nested dicts to NNX's states; traceable."""
        return self.params.back(params), self.state.back(state)

    def merged(self, params: PyTree, state: PyTree, *, evaluates: bool = False) -> Any:
        """Makes a module with these values; traceable."""
        model = nnx.merge(self.graph, *self.states(params, state))
        if evaluates:
            model.eval()
        return model

    def state_of(self, model: Any) -> PyTree:
        """Returns the state of a module after a step, as nested dicts; traceable.

        Raises:
          ModelError: the step has changed the module's variables.
        """
        _, params, state = _split(model)
        found = Tree.of(params), Tree.of(state)
        if change := self._change(*found, dtypes=False):  # which compute_dtype may have changed
            raise ModelError(
                f"loss() changed the variables of the module: {change}. Make all variables in __init__, with their "
                "final shapes; values that a step only leaves for inspection belong in an nnx.Intermediate "
                "(self.sow)."
            )
        return self.state.plain(state)

    def check(self, model: Any, *, mode: bool = True) -> None:
        """Compares a module with these parts. `mode`: including its attributes.

        Raises:
          ModelError: it has changed.
        """
        graph, params, state = _split(model)
        change = self._change(Tree.of(params), Tree.of(state))
        name = type(model).__name__
        if change:
            raise ModelError(f"the {name} was changed after its trainer was made: {change}. Make a new trainer for it.")
        if mode and graph != self.graph:
            raise ModelError(
                f"the {name} was changed after its trainer was made: {_difference(self.graph, graph)}. Set it back "
                "(after model.eval(), with model.train()), or make a new trainer for it."
            )

    def _change(self, params: Tree, state: Tree, *, dtypes: bool = True) -> str:
        """Returns the first difference, as text; empty if there is none."""
        before, after = (
            {
                "/".join(map(str, path)): f"{role} {dtype if dtypes else ''}{shape}"
                for role, tree in (("param", trees[0]), ("variable", trees[1]))
                for path, shape, dtype in zip(tree.paths, tree.shapes, tree.dtypes, strict=True)
            }
            for trees in ((self.params, self.state), (params, state))
        )
        for name, what in before.items():
            if name not in after:
                return f"{name} is missing"
            if after[name] != what:
                return f"{name} was a {what} and is now a {after[name]}"
        return next((f"{name}, a {what}, is new" for name, what in after.items() if name not in before), "")


def _split(model: Any) -> tuple[Any, Any, Any]:
    """Returns (graph, params, state) without sown values; the module itself does not change."""
    graph, state = nnx.split(model)
    if any(isinstance(leaf, nnx.Intermediate) for leaf in jax.tree.leaves(state, is_leaf=_is_variable)):
        model = nnx.merge(graph, state)
        nnx.pop(model, nnx.Intermediate)
    split: Any = nnx.split(model, nnx.Param, ...)
    graph, params, others = split
    return graph, params, others


def _is_variable(leaf: Any) -> bool:
    return isinstance(leaf, nnx.Variable)


def keys_of(path: Path) -> Path:
    """Converts a leaf's keys from JAX's to NNX's, without the key of a variable's value."""
    names = [getattr(key, "key", getattr(key, "idx", getattr(key, "name", key))) for key in path]
    own = next((at for at, key in enumerate(path) if isinstance(key, jax.tree_util.GetAttrKey)), len(path))
    return (*names[:own], *names[own + 1 :])


def _difference(before: Any, after: Any) -> str:
    """Returns the first static attribute in which two modules of the same variables differ, as text."""
    for (name, one), (other_name, other) in zip(before.attributes, after.attributes, strict=False):
        if name != other_name or one != other:
            return f"{name} was {getattr(one, 'value', one)!r} and is now {getattr(other, 'value', other)!r}"
    return "its layers or attributes differ"
