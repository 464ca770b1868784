"""Operations: a program as one list without calls, with the user's source line of each."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, jaxpr_as_fun  # type: ignore[attr-defined]

from trainband.model.inference import InferenceProgram
from trainband.model.signature import structs

CALLS = {
    "checkpoint": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "remat": "jaxpr",
    "remat2": "jaxpr",
}
"""Primitives that only run another program, and the parameter that holds it."""

Rewrite = Callable[..., Any]
"""`rewrite(*inputs, **params) -> output`: an equivalent of other primitives, or `None` to keep it; traceable.

Small known inputs are NumPy arrays.
"""


def program_jaxpr(
    program: InferenceProgram, *, rewrites: Mapping[str, Rewrite] | None = None, dtypes: Mapping[str, Any] | None = None
) -> Any:
    """Returns a program's jaxpr, from its weights, then its inputs, to its outputs, in the order of the signature.

    Args:
      program: to trace.
      rewrites: for primitives that a format lacks or gets wrong.
      dtypes: by name, of weights passed in a dtype other than the stored one.

    Returns:
      A closed jaxpr without calls and unneeded operations. An output that is an input, a constant, or the same as
      another output is copied.
    """
    names = list(program.weights)
    weights = [
        jax.ShapeDtypeStruct(weight.shape, (dtypes or {}).get(name, weight.dtype))
        for name, weight in program.weights.items()
    ]
    inputs = structs(program.signature.inputs)

    def flat(*arrays: Any) -> list[Any]:
        given = dict(zip(names, arrays[: len(names)], strict=True))
        outputs = program.function(given, dict(zip(inputs, arrays[len(names) :], strict=True)))
        return [outputs[spec.name] for spec in program.signature.outputs]

    inlining = _Inlining(rewrites or {})
    traced = inlining.of(jax.make_jaxpr(flat)(*weights, *inputs.values()))
    outvars = traced.jaxpr.outvars
    made = {id(var) for eqn in traced.jaxpr.eqns for var in eqn.outvars}
    if len(set(map(id, outvars))) == len(outvars) and all(id(var) in made for var in outvars):
        return traced

    def copying(*arrays: Any) -> list[Any]:
        return [jax.numpy.copy(output) for output in flat(*arrays)]

    return inlining.of(jax.make_jaxpr(copying)(*weights, *inputs.values()))


def part_of(closed: Any, outputs: Sequence[Any]) -> Any:
    """Returns the part of a jaxpr that computes the given variables."""
    jaxpr = closed.jaxpr
    return ClosedJaxpr(jaxpr.replace(eqns=_needed(jaxpr.eqns, outputs), outvars=list(outputs)), closed.consts)


def operations(closed: Any) -> Iterator[JaxprEqn]:
    """Yields its equations, and those of its loops and branches."""
    for eqn in closed.jaxpr.eqns if isinstance(closed, ClosedJaxpr) else closed.eqns:
        yield eqn
        for inner in _inner(eqn.params).values():
            for one in inner if isinstance(inner, tuple | list) else (inner,):
                yield from operations(one)


def line_of_operation(eqn: Any) -> str:
    """Returns the innermost line of the user's own files that called it, as `program.py:12`; empty if there is none."""
    traceback = eqn.source_info.traceback
    package = str(Path(__file__).parents[1])
    for frame in traceback.frames if traceback is not None else ():
        file = frame.file_name
        if "site-packages" not in file and not file.startswith((sys.prefix, sys.base_prefix, package, "<")):
            return f"{Path(file).name}:{frame.line_num}"
    return ""


_SMALL = 64
"""Elements up to which a constant is computed for rewrites."""


class _Inlining:
    def __init__(self, rewrites: Mapping[str, Rewrite]) -> None:
        self._rewrites = rewrites
        self._constants: dict[Var, Any] = {}

    def of(self, closed: Any) -> Any:
        jaxpr = closed.jaxpr if isinstance(closed, ClosedJaxpr) else closed
        values: dict[Var, Any] = {}
        eqns = self._inlined(jaxpr, values)
        outvars = [_read(values, atom) for atom in jaxpr.outvars]
        inlined = jaxpr.replace(eqns=_needed(eqns, outvars), outvars=outvars)
        return ClosedJaxpr(inlined, closed.consts) if isinstance(closed, ClosedJaxpr) else inlined

    def _inlined(self, jaxpr: Any, values: dict[Var, Any]) -> list[JaxprEqn]:
        """Returns its equations; `values` maps variables to their outer names, and gains those of its outputs."""
        eqns: list[JaxprEqn] = []
        for eqn in jaxpr.eqns:
            inputs = [_read(values, atom) for atom in eqn.invars]
            called, inputs_of_called = self._called(eqn, inputs)
            if called is not None:
                inner = dict(zip(called.invars, inputs_of_called, strict=True))
                eqns += [_placed(one, eqn) for one in self._inlined(called, inner)]
                values.update(zip(eqn.outvars, (_read(inner, atom) for atom in called.outvars), strict=True))
                continue
            outputs = [Var(var.aval) for var in eqn.outvars]
            values.update(zip(eqn.outvars, outputs, strict=True))
            params = eqn.params | {
                name: type(inner)(map(self.of, inner)) if isinstance(inner, tuple | list) else self.of(inner)
                for name, inner in _inner(eqn.params).items()
            }
            eqns.append(eqn.replace(invars=inputs, outvars=outputs, params=params))
            self._evaluate_constant(eqns[-1], jaxpr)
        return eqns

    def _called(self, eqn: JaxprEqn, atoms: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
        """Returns the jaxpr that replaces an equation, and its inputs; `None` if it stays."""
        name = eqn.primitive.name
        if name in CALLS:
            return _without_consts(eqn.params[CALLS[name]]), atoms
        if name not in self._rewrites:
            return None, atoms
        constants = [self._constant(atom) for atom in atoms]
        variables = [atom for atom, constant in zip(atoms, constants, strict=True) if constant is None]
        rewritten: list[Any] = []

        def rewrite(*arrays: Any) -> Any:
            given = iter(arrays)
            inputs = [next(given) if constant is None else constant for constant in constants]
            rewritten.append(self._rewrites[name](*inputs, **eqn.params))
            return rewritten[0]

        shapes = [jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype) for atom in variables]
        jaxpr = jax.make_jaxpr(rewrite)(*shapes)
        if rewritten[0] is None:
            return None, atoms
        # The rewrite may contain the primitive itself, for example with other dtypes.
        others = {key: one for key, one in self._rewrites.items() if key != name}
        return _without_consts(_Inlining(others).of(jaxpr)), variables

    def _constant(self, atom: Any) -> Any:
        """Returns the value of an atom; `None` if unknown."""
        if isinstance(atom, Literal):
            aval: Any = atom.aval
            return np.asarray(atom.val, aval.dtype)
        return self._constants.get(atom)

    def _evaluate_constant(self, eqn: JaxprEqn, jaxpr: Any) -> None:
        """Evaluates an equation of constants, if it is small."""
        inputs = [self._constant(atom) for atom in eqn.invars]
        avals: list[Any] = [var.aval for var in eqn.outvars]
        sizes = [math.prod(aval.shape) if _is_static(aval) else _SMALL + 1 for aval in avals]
        if eqn.effects or len(sizes) != 1 or sizes[0] > _SMALL or any(value is None for value in inputs):
            return
        names: list[Any] = [Var(atom.aval) for atom in eqn.invars]
        alone = jaxpr.replace(constvars=[], invars=names, outvars=eqn.outvars, eqns=[eqn.replace(invars=names)])
        with jax.ensure_compile_time_eval():
            (value,) = jaxpr_as_fun(ClosedJaxpr(alone, ()))(*inputs)
            self._constants[eqn.outvars[0]] = np.asarray(value)


def _is_static(aval: Any) -> bool:
    return all(isinstance(length, int) for length in aval.shape) and not jax.numpy.issubdtype(
        aval.dtype, jax.dtypes.extended
    )


def _without_consts(closed: Any) -> Any:
    """Returns a jaxpr with its constants inlined."""
    if not isinstance(closed, ClosedJaxpr):
        return closed
    jaxpr = closed.jaxpr
    if not closed.consts:
        return jaxpr
    constants = {var: Literal(value, var.aval) for var, value in zip(jaxpr.constvars, closed.consts, strict=True)}
    eqns = [eqn.replace(invars=[_read(constants, atom) for atom in eqn.invars]) for eqn in jaxpr.eqns]
    return jaxpr.replace(constvars=[], eqns=eqns, outvars=[_read(constants, atom) for atom in jaxpr.outvars])


def _read(values: Mapping[Var, Any], atom: Any) -> Any:
    return atom if isinstance(atom, Literal) else values.get(atom, atom)


def _inner(params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the jaxprs among the parameters of a loop or a branch."""
    kinds = (Jaxpr, ClosedJaxpr)
    return {
        name: value
        for name, value in params.items()
        if isinstance(value, kinds) or (isinstance(value, tuple | list) and value and isinstance(value[0], kinds))
    }


def _placed(eqn: JaxprEqn, call: JaxprEqn) -> JaxprEqn:
    """Attributes the equations of a library function to the line that called it."""
    return eqn if line_of_operation(eqn) else eqn.replace(source_info=call.source_info)


def _needed(eqns: Sequence[JaxprEqn], outvars: Sequence[Any]) -> list[JaxprEqn]:
    needed = {id(atom) for atom in outvars}
    kept = []
    for eqn in reversed(eqns):
        if eqn.effects or any(id(var) in needed for var in eqn.outvars):
            kept.append(eqn)
            needed.update(map(id, eqn.invars))
    return kept[::-1]


_UNROLLED = 128
"""Steps up to which a loop is unrolled."""


def unrolled_scan(*arrays: Any, jaxpr: Any, length: int, reverse: bool, **params: Any) -> list[Any] | None:
    """Unrolls a short `jax.lax.scan`, for formats with weak loops; a `Rewrite`."""
    if not 0 < length <= _UNROLLED:
        return None
    if "ft_in" in params:
        consts, carried, _ = (len(list(group)) for group in params["ft_in"].update(range(len(arrays))).unpack())
    else:  # JAX before 0.12
        consts, carried = params["num_consts"], params["num_carry"]
    step = jaxpr_as_fun(jaxpr)
    carry, rows = list(arrays[consts : consts + carried]), arrays[consts + carried :]
    made: dict[int, list[Any]] = {}
    for at in reversed(range(length)) if reverse else range(length):
        outputs = step(*arrays[:consts], *carry, *(jax.lax.index_in_dim(row, at, keepdims=False) for row in rows))
        carry, made[at] = outputs[:carried], outputs[carried:]
    return [*carry, *(jax.numpy.stack(column) for column in zip(*(made[at] for at in range(length)), strict=True))]
