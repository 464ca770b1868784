"""What a traced function does with its inputs: which it needs, and to which it only adds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.extend.core import Literal

_CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr"}
"""Operations that are a function, and the name of its jaxpr."""

Term = tuple[int, Any]
"""A sign and a variable of a jaxpr."""


def inlined(closed: Any, avals: Sequence[Any]) -> Any:
    """The same function without calls of functions at its top."""
    with jax.enable_x64(True):
        return jax.make_jaxpr(lambda *arrays: _evaluated(closed.jaxpr, closed.consts, arrays))(*avals)


def _evaluated(jaxpr: Any, consts: Sequence[Any], arrays: Sequence[Any]) -> list[Any]:
    known: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True)) | dict(
        zip(jaxpr.invars, arrays, strict=True)
    )

    def value(one: Any) -> Any:
        return one.val if isinstance(one, Literal) else known[one]

    for eqn in jaxpr.eqns:
        inputs = [value(one) for one in eqn.invars]
        if eqn.primitive.name in _CALLS:
            inner = eqn.params[_CALLS[eqn.primitive.name]]
            found = _evaluated(inner.jaxpr, inner.consts, inputs)
        else:
            settings = eqn.primitive.get_bind_params(eqn.params)
            functions, settings = settings if isinstance(settings, tuple) else ((), settings)  # by the version of JAX
            found = eqn.primitive.bind(*functions, *inputs, **settings)
            found = found if eqn.primitive.multiple_results else [found]
        known.update(zip(eqn.outvars, found, strict=True))
    return [value(one) for one in jaxpr.outvars]


def needed(jaxpr: Any, outputs: Sequence[Any]) -> set[int]:
    """The numbers of the inputs on which these outputs depend."""
    wanted = {one for one in outputs if not isinstance(one, Literal)}
    for eqn in reversed(jaxpr.eqns):
        if any(one in wanted for one in eqn.outvars):
            wanted.update(one for one in eqn.invars if not isinstance(one, Literal))
    return {number for number, one in enumerate(jaxpr.invars) if one in wanted}


def added(jaxpr: Any, output: Any, source: Any) -> list[Term] | None:
    """The terms that are added to an input to make an output; `None` where it is made otherwise."""
    made = {one: eqn for eqn in jaxpr.eqns for one in eqn.outvars}

    def terms(one: Any) -> list[Term] | None:
        if one is source:
            return []
        if isinstance(one, Literal) or one.aval.shape != source.aval.shape or one.aval.dtype != source.aval.dtype:
            return None
        eqn = made.get(one)
        if eqn is None:
            return None
        name = eqn.primitive.name
        if name in ("copy", "copy_p", "convert_element_type", "reshape", "stop_gradient"):
            return terms(eqn.invars[0])
        if name not in ("add", "add_any", "sub"):
            return None
        left, right = eqn.invars
        found = terms(left)
        if found is not None:
            return [*found, (-1 if name == "sub" else 1, right)]
        found = None if name == "sub" else terms(right)
        return None if found is None else [*found, (1, left)]

    return terms(output)


def giving(closed: Any, outputs: Sequence[Any]) -> Any:
    """The jaxpr that gives these of its variables instead."""
    return closed.jaxpr.replace(outvars=list(outputs), debug_info=closed.jaxpr.debug_info._replace(result_paths=None))
