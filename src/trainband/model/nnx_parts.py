"""Parts: what a Flax NNX module is made of, and a module made of them again."""

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
      structure: of NNX's.
      paths: of its leaves, in its order, without the ends that all variables have.
      kinds: of each leaf, what kind of random key it is; `None` if it is none.
      shapes, dtypes: of each leaf, in words.
    """

    structure: Any
    paths: tuple[Path, ...]
    kinds: tuple[Any, ...]
    shapes: tuple[str, ...]
    dtypes: tuple[str, ...]

    @classmethod
    def of(cls, state: Any) -> Tree:
        """What a state is made of."""
        leaves, structure = jax.tree_util.tree_flatten_with_path(state)
        return cls(
            structure,
            tuple(keys_of(path) for path, _ in leaves),
            tuple(key_kinds([leaf for _, leaf in leaves])) if leaves else (),
            tuple(f"[{','.join(map(str, leaf.shape))}]" for _, leaf in leaves),
            tuple(str(leaf.dtype) for _, leaf in leaves),
        )

    def plain(self, state: Any) -> dict[Any, Any]:
        """The state as nested dicts, with the data of keys; traceable."""
        nested: dict[Any, Any] = {}
        for path, leaf in zip(self.paths, jax.tree.leaves(without_keys(state)), strict=True):
            inner = nested
            for key in path[:-1]:
                inner = inner.setdefault(key, {})
            inner[path[-1]] = leaf
        return nested

    def back(self, nested: PyTree) -> Any:
        """The inverse of `plain`; traceable."""
        leaves = [functools.reduce(lambda inner, key: inner[key], path, nested) for path in self.paths]
        return jax.tree.unflatten(self.structure, with_keys(leaves, self.kinds))


@dataclass(frozen=True, slots=True)
class Parts:
    """What a module is made of.

    Attributes:
      graph: all but its arrays.
      params, state: how its arrays lie.
    """

    graph: Any
    params: Tree
    state: Tree

    @classmethod
    def of(cls, model: Any) -> Parts:
        """The parts of a module.

        Raises:
          ModelError: it has no params.
        """
        graph, params, state = _split(model)
        trees = Tree.of(params), Tree.of(state)
        if not trees[0].paths:
            raise ModelError(
                f"the {type(model).__name__} has no nnx.Param in it, so there is nothing to train; layers of flax.nnx "
                "have theirs, and an array of your own becomes one as self.scale = nnx.Param(jnp.ones(3))."
            )
        return cls(graph, *trees)

    def values(self, model: Any) -> tuple[PyTree, PyTree]:
        """(params, state) of the module as nested dicts.

        Raises:
          ModelError: it has others than it had.
        """
        self.check(model, mode=False)
        _, params, state = _split(model)
        return self.params.plain(params), self.state.plain(state)

    def states(self, params: PyTree, state: PyTree) -> tuple[Any, Any]:
        """Nested dicts as NNX's states; traceable."""
        return self.params.back(params), self.state.back(state)

    def merged(self, params: PyTree, state: PyTree, *, evaluates: bool = False) -> Any:
        """A module with these values; traceable."""
        model = nnx.merge(self.graph, *self.states(params, state))
        if evaluates:
            model.eval()
        return model

    def state_of(self, model: Any) -> PyTree:
        """The state of a module after a step, as nested dicts; traceable.

        Raises:
          ModelError: the step has changed what it is made of.
        """
        _, params, state = _split(model)
        found = Tree.of(params), Tree.of(state)
        if change := self._change(*found, dtypes=False):  # which compute_dtype may have changed
            raise ModelError(
                f"loss() changed what the module is made of: {change}. Make all variables in __init__, of the shapes "
                "that they keep; what a step only leaves to look at belongs into an nnx.Intermediate "
                "(self.sow)."
            )
        return self.state.plain(state)

    def check(self, model: Any, *, mode: bool = True) -> None:
        """Compares a module with these parts. `mode`: with its attributes, too.

        Raises:
          ModelError: it has changed.
        """
        graph, params, state = _split(model)
        change = self._change(Tree.of(params), Tree.of(state))
        name = type(model).__name__
        if change:
            raise ModelError(
                f"the {name} was changed after its trainer was made: {change}. Make a new trainer of it as it is now."
            )
        if mode and graph != self.graph:
            raise ModelError(
                f"the {name} was changed after its trainer was made: {_difference(self.graph, graph)}. Set it back "
                "(after model.eval(), with model.train()), or make a new trainer of it as it is now."
            )

    def _change(self, params: Tree, state: Tree, *, dtypes: bool = True) -> str:
        """The first difference, in words; empty if there is none."""
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
                return f"it has lost {name}"
            if after[name] != what:
                return f"{name} was a {what}, and is a {after[name]}"
        return next((f"it has got {name}, a {what}" for name, what in after.items() if name not in before), "")


def _split(model: Any) -> tuple[Any, Any, Any]:
    """(graph, params, state) without what was sown; the module itself stays as it is."""
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
    """A leaf's keys as JAX has them -> as NNX has them, without the one by which a variable has its value."""
    names = [getattr(key, "key", getattr(key, "idx", getattr(key, "name", key))) for key in path]
    own = next((at for at, key in enumerate(path) if isinstance(key, jax.tree_util.GetAttrKey)), len(path))
    return (*names[:own], *names[own + 1 :])


def _difference(before: Any, after: Any) -> str:
    """The first static attribute in which two modules of the same variables differ, in words."""
    for (name, one), (other_name, other) in zip(before.attributes, after.attributes, strict=False):
        if name != other_name or one != other:
            return f"{name} was {getattr(one, 'value', one)!r}, and is {getattr(other, 'value', other)!r}"
    return "its layers or attributes are others"
