"""The first values of variables, computed by one small program for each kind of variable.

If `init` is one program, XLA takes 70 ms to compile each random variable of it for a CPU; operation by operation, JAX
fills memory several times for each variable. So `init` is traced and divided: random keys and small numbers are
computed first, operation by operation, and then each variable by a program, which serves all variables that differ only
in their keys and numbers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.extend.core import (  # type: ignore[attr-defined]
    ClosedJaxpr,
    Jaxpr,
    JaxprEqn,
    Literal,
    Var,
    jaxpr_as_fun,
    jaxprs_in_params,
)
from jax.sharding import Sharding

from trainband.model.random_keys import is_key
from trainband.model.variables import PyTree

_SMALL = 64
"""Arrays of at most this many elements are computed operation by operation."""
_ON_MESH = {"sharding_constraint", "shard_map", "reshard"}
"""Primitives that say where values lie."""
_AHEAD = 2
"""How many programs run while the caller uses a value."""


def first_values(function: Callable[..., PyTree], *args: Any, where: PyTree = None) -> PyTree:
    """Returns what a function returns; no leaf shares memory with another one, or with what the function holds.

    Args:
      function: traceable; called once.
      args: arrays, such as a random key.
      where: a sharding for each leaf or for subtrees; `None` for the default device.
    """
    divided = DividedFunction(function, *args)
    leaves = dict(divided.leaves(where))
    return jax.tree.unflatten(divided.tree, [leaves[number] for number in range(len(leaves))])


@dataclass(frozen=True, slots=True)
class _KeyData:
    """An array of random keys on the host."""

    data: Any
    kind: Any


@dataclass(frozen=True, slots=True)
class _Part:
    """The leaves that some operations compute together, and a program without constants that computes them."""

    leaves: Sequence[int]
    program: Jaxpr

    def is_like(self, other: _Part) -> bool:
        return _is_same(self.program, other.program)


class DividedFunction:
    """A function, divided by the leaves of its result.

    Attributes:
      tree: the structure of the result.
    """

    def __init__(self, function: Callable[..., PyTree], *args: Any) -> None:
        """Traces the function."""
        self._function = function
        self._args = args
        closed, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
        self.tree: Any = jax.tree.structure(shapes)
        self._closed: ClosedJaxpr = closed

    def leaves(self, where: PyTree = None) -> Iterator[tuple[int, jax.Array]]:
        """Computes the leaves: yields the number and the value of each, in any order. `where`: as of `first_values`."""
        count = self.tree.num_leaves
        shardings: Sequence[Sharding | None] = [None] * count
        if where is not None:
            shardings = jax.tree.leaves(
                jax.tree.map(lambda one, part: jax.tree.map(lambda _: one, part), where, self._numbered())
            )
        if self._closed.effects:  # such as of jax.debug.print: it is computed as it is written
            whole = jax.jit(self._function, out_shardings=where)(*self._args)
            yield from enumerate(jax.tree.leaves(whole))
            return
        known = self._small_values()
        programs: list[tuple[_Part, Sequence[Sharding | None], Callable[..., Any]]] = []
        running: deque[list[tuple[int, jax.Array]]] = deque()
        for part in self._parts(known):
            places = [shardings[number] for number in part.leaves]
            program = next((run for like, its, run in programs if its == places and part.is_like(like)), None)
            given = [known[var] for var in part.program.invars]
            if not part.program.eqns:  # a copy: first values share no memory with what the user has
                given = [one if isinstance(one, _KeyData) else np.array(one) for one in given]
            if program is None:
                program = _compiled(
                    part.program, [one.kind if isinstance(one, _KeyData) else None for one in given], places
                )
                programs.append((part, places, program))
            found = _called(program, [one.data if isinstance(one, _KeyData) else one for one in given])
            running.append(list(zip(part.leaves, found, strict=True)))
            if len(running) > _AHEAD:
                yield from running.popleft()
        for several in running:
            yield from several

    def _numbered(self) -> PyTree:
        return jax.tree.unflatten(self.tree, range(self.tree.num_leaves))

    def _small_values(self) -> dict[Var, Any]:
        """Returns the arguments, the constants, and what follows from them in small steps."""
        jaxpr = self._closed.jaxpr
        known: dict[Var, Any] = {}
        leaves = jax.tree.leaves(self._args)
        for var, value in (
            *zip(jaxpr.invars, leaves, strict=True),
            *zip(jaxpr.constvars, self._closed.consts, strict=True),
        ):
            known[var] = _on_host(value)
        for eqn in jaxpr.eqns:
            is_small = all(isinstance(a, Literal) or _is_small(a.aval) for a in (*eqn.invars, *eqn.outvars))
            if is_small and all(isinstance(a, Literal) or a in known for a in eqn.invars) and not _needs_mesh(eqn):
                known.update(zip(eqn.outvars, self._evaluated(eqn, known), strict=True))
        return known

    def _evaluated(self, eqn: JaxprEqn, known: dict[Var, Any]) -> list[Any]:
        """Returns the results of an operation. One that only chooses among keys would be compiled for each choice."""
        keys = known.get(eqn.invars[0]) if eqn.invars and isinstance(eqn.invars[0], Var) else None
        if isinstance(keys, _KeyData):
            data = keys.data
            before, after = _shape(eqn.invars[0]), _shape(eqn.outvars[0])
            match eqn.primitive.name:
                case "slice" if eqn.params["strides"] is None:
                    limits = zip(eqn.params["start_indices"], eqn.params["limit_indices"], strict=True)
                    return [_KeyData(data[tuple(slice(*pair) for pair in limits)], keys.kind)]
                case "squeeze" | "reshape":
                    return [_KeyData(data.reshape(*after, *data.shape[len(before) :]), keys.kind)]
                case "unstack":
                    return [_KeyData(part, keys.kind) for part in np.moveaxis(data, eqn.params["axis"], 0)]
        takes = list(dict.fromkeys(one for one in eqn.invars if not isinstance(one, Literal)))
        compute = jaxpr_as_fun(ClosedJaxpr(self._program(takes, eqn.outvars, [eqn]), ()))
        found = _called(lambda *arrays: compute(*map(_as_array, arrays)), [known[var] for var in takes])
        return [_on_host(one) for one in found]

    def _parts(self, known: dict[Var, Any]) -> Iterator[_Part]:
        """Yields the parts, in the order of their first leaves."""
        jaxpr = self._closed.jaxpr
        makers = {var: number for number, eqn in enumerate(jaxpr.eqns) for var in eqn.outvars}
        needs: list[set[int]] = []
        for atom in jaxpr.outvars:
            needed: set[int] = set()
            left = [atom]
            while left:
                one = left.pop()
                if isinstance(one, Literal) or one in known or makers[one] in needed:
                    continue
                needed.add(makers[one])
                left += jaxpr.eqns[makers[one]].invars
            needs.append(needed)
        for leaves in _grouped(needs, jaxpr.outvars):
            eqns = [jaxpr.eqns[number] for number in sorted(set().union(*(needs[leaf] for leaf in leaves)))]
            gives = [jaxpr.outvars[leaf] for leaf in leaves]
            taken = (atom for eqn in eqns for atom in eqn.invars)
            takes = dict.fromkeys(a for a in (*taken, *gives) if not isinstance(a, Literal) and a in known)
            yield _Part(leaves, self._program(list(takes), gives, eqns))

    def _program(self, takes: list[Var], gives: list[Any], eqns: list[JaxprEqn]) -> Jaxpr:
        program: Jaxpr = self._closed.jaxpr.replace(constvars=[], invars=takes, outvars=gives, eqns=eqns)
        return program


def _grouped(needs: Sequence[set[int]], atoms: Sequence[Any]) -> list[list[int]]:
    """Groups leaves that need a common operation. One that is returned twice is computed twice."""
    groups: list[list[int]] = []
    group_of: dict[int, int] = {}
    seen: set[Any] = set()
    for leaf, (needed, atom) in enumerate(zip(needs, atoms, strict=True)):
        again = not isinstance(atom, Literal) and atom in seen
        common = set() if again else {group_of[number] for number in needed if number in group_of}
        if not isinstance(atom, Literal):
            seen.add(atom)
        merged = sorted([leaf, *(other for number in common for other in groups[number])])
        for number in common:
            groups[number] = []
        groups.append(merged)
        if not again:
            for other in merged:
                for number in needs[other]:
                    group_of[number] = len(groups) - 1
    return [group for group in groups if group]


def _shape(atom: Any) -> tuple[int, ...]:
    shape: tuple[int, ...] = atom.aval.shape
    return shape


def _as_array(one: Any) -> Any:
    return jax.random.wrap_key_data(one.data, impl=one.kind) if isinstance(one, _KeyData) else one


def _is_small(aval: Any) -> bool:
    return is_key(aval) or aval.size <= _SMALL


def _called(function: Callable[..., Any], given: Sequence[Any]) -> Any:
    """Calls a function with values on the host, even where hidden transfers are forbidden: these are meant."""
    with jax.transfer_guard_host_to_device("allow"):
        return function(*given)


def _needs_mesh(eqn: JaxprEqn) -> bool:
    """Whether an operation, or one inside it, says where values lie, which only compiled programs can."""
    return eqn.primitive.name in _ON_MESH or any(
        _needs_mesh(inner) for jaxpr in jaxprs_in_params(eqn.params) for inner in jaxpr.eqns
    )


def _on_host(value: Any) -> Any:
    if isinstance(value, jax.Array) and is_key(value):
        return _KeyData(np.asarray(jax.random.key_data(value)), jax.random.key_impl(value))
    return np.asarray(value)


def _compiled(program: Jaxpr, kinds: Sequence[Any], places: Sequence[Sharding | None]) -> Callable[..., Any]:
    function = jaxpr_as_fun(ClosedJaxpr(program, ()))

    def first_value(*given: Any) -> Any:
        return function(
            *(
                one if kind is None else jax.random.wrap_key_data(one, impl=kind)
                for one, kind in zip(given, kinds, strict=True)
            )
        )

    return jax.jit(first_value, out_shardings=None if None in places else list(places))


def _is_same(one: Jaxpr, other: Jaxpr) -> bool:
    """Whether two programs without constants do the same."""
    if one is other:
        return True
    if len(one.eqns) != len(other.eqns) or len(one.constvars) or len(other.constvars):
        return False
    names: dict[Var, Var] = {}

    def are_same(some: Sequence[Any], others: Sequence[Any]) -> bool:
        return len(some) == len(others) and all(map(is_same, some, others))

    def is_same(atom: Any, another: Any) -> bool:
        if isinstance(atom, Literal) or isinstance(another, Literal):
            return (
                isinstance(atom, Literal)
                and isinstance(another, Literal)
                and atom.aval == another.aval
                and np.array_equal(atom.val, another.val)
            )
        return names.setdefault(atom, another) is another

    def bind(some: Sequence[Var], others: Sequence[Var]) -> bool:
        names.update(zip(some, others, strict=False))
        return [var.aval for var in some] == [var.aval for var in others]

    return (
        bind(one.invars, other.invars)
        and all(
            eqn.primitive is another.primitive
            and are_same(eqn.invars, another.invars)
            and bind(eqn.outvars, another.outvars)
            and _is_same_param(eqn.params, another.params)
            for eqn, another in zip(one.eqns, other.eqns, strict=True)
        )
        and are_same(one.outvars, other.outvars)
    )


def _is_same_param(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, ClosedJaxpr):
        return _is_same(one.jaxpr, other.jaxpr) and all(a is b for a, b in zip(one.consts, other.consts, strict=True))
    if isinstance(one, Jaxpr):
        return _is_same(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_is_same_param(value, other[key]) for key, value in one.items())
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(_is_same_param, one, other))
    if isinstance(one, np.ndarray | jax.Array):
        return one is other
    return bool(one == other)
