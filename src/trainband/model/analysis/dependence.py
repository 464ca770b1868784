"""The inputs that an optimizer's update depends on, found by following its traced program.

Two questions decide how an optimizer may be spread over parameter servers:

- Does the new value of one element depend on other elements, of the same variable (a norm over it, as in LAMB)
  or of others (clipping by the global norm)? Then these must be on one ps, or the result is wrong.
- Is the same arithmetic applied to every element of every variable? Then it may be applied to whole blocks at once,
  which halves the time for many small variables.

The answers come from an abstract interpretation of the jaxpr, not from a list of names: a primitive that is
not known to work element by element is assumed to mix all its inputs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from trainband.errors import ModelError
from trainband.model.analysis.walker import CALLS, ELEMENTWISE, IDENTITIES, called, walk
from trainband.model.optimizer import apply_updates, updates_of
from trainband.model.variables import PyTree

_CALLS = CALLS | {"custom_jvp_call", "custom_vjp_call"}
_ELEMENTWISE = ELEMENTWISE | IDENTITIES
_SHAPE_PARAMS = ("sharding", "out_sharding", "shape", "broadcast_dimensions")


@dataclass(frozen=True, slots=True)
class _Value:
    """Facts about a value of the program.

    Attributes:
      variable: the variable along which it lies, element by element; `None` for a scalar or anything else.
      mixes: the variables of which elements other than the current one were used.
      formula: a number that two values share if and only if they are computed in the same way, from the same
        roles; `None` if unknown.
    """

    variable: int | None
    mixes: frozenset[int]
    formula: int | None
    scalar: bool

    @property
    def touched(self) -> frozenset[int]:
        return self.mixes if self.variable is None else self.mixes | {self.variable}


class Formulas:
    """Numbers for formulas: equal formulas get equal numbers. Share one to compare two programs."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}

    def number(self, *parts: Hashable) -> int:
        """Returns the number of a formula with these parts."""
        return self._numbers.setdefault(parts, len(self._numbers))


@dataclass(frozen=True, slots=True)
class Dependence:
    """The inputs that each variable's update depends on.

    Attributes:
      mixes: for each variable, the variables of which elements other than its own are used in its update; a
        variable may be in its own set.
      formula: the whole update's formula for each dtype, if it is the same for all variables of that dtype; else
        `None`.
      text: the traced program, for people and for comparing.
    """

    mixes: tuple[frozenset[int], ...]
    formula: Mapping[str, Hashable] | None
    text: str

    def rows_mixed(self) -> list[int]:
        """Returns the variables whose own elements are mixed: they must not be sliced."""
        return [i for i, mixed in enumerate(self.mixes) if i in mixed]

    def variables_mixed(self) -> list[int]:
        """Returns the variables that are mixed with others: all of them must be on one ps."""
        return sorted({j for i, mixed in enumerate(self.mixes) if mixed - {i} for j in mixed | {i}})


@dataclass(frozen=True, slots=True)
class _Elements:
    """A `Domain`: along which variable a value lies, and what was mixed into it."""

    formulas: Formulas

    def constant(self, copies: Sequence[Any]) -> _Value:
        array = np.asarray(copies[0])
        known = array.ndim == 0
        formula = self.formulas.number("constant", str(array.dtype), str(array)) if known else None
        return _Value(None, frozenset(), formula, known)

    def checked(self, value: _Value, copies: Sequence[Any]) -> _Value:  # noqa: ARG002 - for one program all is known
        return value

    def unknown(self, reason: str) -> _Value:
        raise AssertionError(reason)  # one program equals itself

    def outputs(self, copies: Sequence[Any], inputs: list[_Value]) -> list[_Value]:
        (equation,) = copies
        name, program = equation.primitive.name, called(equation)
        if name in _CALLS and program is not None and len(getattr(program, "jaxpr", program).invars) == len(inputs):
            return walk(self, [program], inputs)
        if name == "cond" and inputs[0].scalar:
            return self._cond(equation, inputs)
        if name == "broadcast_in_dim" and len(inputs) == 1 and inputs[0].scalar:
            return [inputs[0]]  # a scalar spread over a variable's shape is still that scalar
        along = {value.variable for value in inputs if value.variable is not None}
        plain = all(value.scalar or value.variable is not None for value in inputs)
        # Scalars give scalars only if the output is one: random bits of a shape are not.
        scalar = name in _ELEMENTWISE or all(variable.aval.shape == () for variable in equation.outvars)
        if plain and ((len(along) == 1 and name in _ELEMENTWISE) or (not along and scalar)):
            mixes = _union(value.mixes for value in inputs)
            settings = str(sorted((k, str(v)) for k, v in equation.params.items() if k not in _SHAPE_PARAMS))
            formulas = [value.formula for value in inputs]
            numbers = [
                None if None in formulas else self.formulas.number(name, settings, i, *formulas)
                for i in range(len(equation.outvars))
            ]
            return [_Value(next(iter(along), None), mixes, number, not along) for number in numbers]
        touched = _union(value.touched for value in inputs)
        return [_Value(None, touched, None, variable.aval.shape == ()) for variable in equation.outvars]

    def _cond(self, equation: Any, inputs: list[_Value]) -> list[_Value]:
        """Joins an output of both branches, since either may run; it depends on the predicate too."""
        predicate = inputs[0]
        branches = [walk(self, [program], inputs[1:]) for program in equation.params["branches"]]
        outputs = []
        for values in zip(*branches, strict=True):
            mixes = predicate.mixes | _union(value.mixes for value in values)
            formulas = [predicate.formula, *(value.formula for value in values)]
            formula = None if None in formulas else self.formulas.number("cond", *formulas)
            along = {value.variable for value in values if not value.scalar}
            if len(along) <= 1 and all(value.scalar or value.variable is not None for value in values):
                outputs.append(_Value(next(iter(along), None), mixes, formula, not along))
            else:
                touched = mixes | _union(value.touched for value in values)
                outputs.append(_Value(None, touched, None, scalar=False))
        return outputs


def _union(sets: Iterable[frozenset[int]]) -> frozenset[int]:
    return frozenset[int]().union(*sets)


def analyse(optimizer: Any, params: PyTree, formulas: Formulas) -> Dependence:
    """Traces one update of `params` and follows its values.

    Args:
      optimizer: with optax's `init` and `update`.
      params: a pytree of arrays or `jax.ShapeDtypeStruct`s.
      formulas: shared by analyses that are to be compared.
    """
    leaves, _ = jax.tree_util.tree_flatten_with_path(params)
    paths = [path for path, _ in leaves]
    state = jax.eval_shape(optimizer.init, params)
    state_leaves, state_tree = jax.tree_util.tree_flatten_with_path(state)

    def update(params: PyTree, state: PyTree, gradient: PyTree) -> Any:
        updates, new_state = updates_of(optimizer, gradient, state, params)
        _same_state(state, new_state)
        return apply_updates(params, updates), new_state

    traced = jax.jit(update).trace(params, jax.tree.unflatten(state_tree, [leaf for _, leaf in state_leaves]), params)
    begun = jax.jit(optimizer.init).trace(params).jaxpr
    roles = [_role(path, leaf, paths) for path, leaf in state_leaves]
    shapes = [leaf.shape for _, leaf in leaves]

    def argument(kind: Hashable, variable: int | None, leaf: Any) -> _Value:
        if variable is not None and leaf.shape != shapes[variable]:  # such as a sum over its rows
            return _Value(None, frozenset([variable]), None, leaf.shape == ())
        scalar = variable is None and leaf.shape == ()
        known = variable is not None or scalar
        return _Value(variable, frozenset(), formulas.number("role", kind) if known else None, scalar)

    arguments = [argument("params", i, leaf) for i, (_, leaf) in enumerate(leaves)]
    first_state = walk(_Elements(formulas), [begun], arguments)
    arguments += [argument(role, i, leaf) for (i, role), (_, leaf) in zip(roles, state_leaves, strict=True)]
    arguments += [argument("gradient", i, leaf) for i, (_, leaf) in enumerate(leaves)]
    closed = traced.jaxpr
    outputs = walk(_Elements(formulas), [closed], arguments)
    new_params, new_state = outputs[: len(leaves)], outputs[len(leaves) :]

    mixes = []
    for i, value in enumerate(new_params):
        # The new value of its optimizer state will be part of its next update.
        own = [value, *(v for (j, _), v in zip(roles, new_state, strict=True) if j == i)]
        shared = [v for (j, _), v in zip(roles, new_state, strict=True) if j is None]
        mixed = _union([*(v.mixes for v in own), *(v.touched for v in shared)])
        strayed = any(v.variable not in (i, None) or (v.variable is None and not v.scalar) for v in own)
        mixes.append(mixed | {i} if strayed and shapes[i] != () else mixed)
    formula = _formula(leaves, roles, new_params, new_state, first_state)
    return Dependence(tuple(mixes), formula, _text(closed, begun))


def _same_state(old: PyTree, new: PyTree) -> None:
    """Raises `ModelError` unless an update returns state of the same structure, shapes and dtypes."""
    before, after = (jax.tree_util.tree_flatten_with_path(state) for state in (old, new))
    if str(before[1]) != str(after[1]):
        raise ModelError("the optimizer's update changes the structure of its state; it must keep it as init made it.")
    for (path, a), (_, b) in zip(before[0], after[0], strict=True):
        if a.shape != b.shape or a.dtype != b.dtype:
            raise ModelError(
                f"the optimizer's update changes its state at {jax.tree_util.keystr(path)} from "
                f"{a.dtype}{list(a.shape)} to {b.dtype}{list(b.shape)}; it must keep it as init made it."
            )


def _text(*programs: Any) -> str:
    """Prints programs as text, with digests of array constants, which a jaxpr's own text lacks."""
    lines = []
    for closed in programs:
        lines.append(str(closed))
        for const in closed.consts:
            array = np.asarray(const)
            digest = hashlib.sha256(array.tobytes()).hexdigest()[:16]
            lines.append(f"constant {array.dtype}{list(array.shape)} {digest}")
    return "\n".join(lines)


def _role(path: Any, leaf: Any, paths: list[Any]) -> tuple[int | None, Hashable]:
    """Returns (the variable that a leaf of the state belongs to, or None; its role for it)."""
    # The longest path first: `bias` ends the path of `layer/bias` as well.
    for i, variable in sorted(enumerate(paths), key=lambda pair: -len(pair[1])):
        start = len(path) - len(variable)
        # optax keeps a tree like the params' inside its state, so that a variable's path ends the path of its state.
        if start >= 0 and path[start:] == variable:
            return i, (str(path[:start]), str(leaf.dtype))
    return None, (str(path), str(leaf.dtype))


def _formula(
    leaves: Any,
    roles: list[tuple[int | None, Hashable]],
    new_params: list[_Value],
    new_state: list[_Value],
    first_state: list[_Value],
) -> Mapping[str, Hashable] | None:
    """Returns the one formula for each dtype, if there is one, including that of the state shared by all variables."""
    shared: list[Hashable] = []
    by_variable: list[list[Hashable]] = [[] for _ in leaves]
    for i, value in enumerate(new_params):
        if not _is_known(value, i):
            return None
        by_variable[i].append(("params", value.formula))
    for (variable, role), new, first in zip(roles, new_state, first_state, strict=True):
        if not (_is_known(new, variable) and _is_known(first, variable)):
            return None
        mine = shared if variable is None else by_variable[variable]
        mine.append((str(role), new.formula, first.formula))
    by_dtype: dict[str, Hashable] = {}
    for (_, leaf), formulas in zip(leaves, by_variable, strict=True):
        whole = tuple(sorted(formulas, key=str))
        if by_dtype.setdefault(str(leaf.dtype), whole) != whole:
            return None
    return {**by_dtype, "shared": tuple(sorted(shared, key=str))}


def _is_known(value: _Value, variable: int | None) -> bool:
    along = value.variable == variable or (value.variable is None and value.scalar)
    return along and value.formula is not None and not value.mixes
