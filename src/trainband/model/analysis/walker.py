"""The one walk through traced programs, which derives facts about each value from those about its inputs.

A `Domain` defines the facts, and the effect of a primitive on them. A walk may follow several programs together,
equation by equation, such as one function traced for two batch sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
from jax.extend.core import Literal

ELEMENTWISE = frozenset(
    """
    abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt ceil clamp complex conj
    convert_element_type cos cosh digamma div eq erf erf_inv erfc exp exp2 expm1 floor ge gt igamma igammac imag
    integer_pow is_finite le lgamma log log1p logistic lt max min mul ne neg nextafter not or polygamma
    population_count pow real regularized_incomplete_beta rem round rsqrt select_n shift_left shift_right_arithmetic
    shift_right_logical sign sin sinh sqrt square sub tan tanh xor zeta
    """.split()
)
"""Primitives whose output at a position depends only on the inputs at that position (or on scalars)."""

IDENTITIES = frozenset("copy copy_p name optimization_barrier reduce_precision stop_gradient".split())
"""Primitives that pass their inputs on, maybe rounded."""

CALLS = frozenset("checkpoint closed_call core_call jit pjit remat remat2".split())
"""Primitives that run another program, and nothing else."""

DIFFERENT = "the programs are not the same"

V = TypeVar("V")


class Domain(Protocol[V]):
    """The facts that can be known of values."""

    def constant(self, copies: Sequence[Any]) -> V:
        """Returns the fact about a constant, given as it is in each program."""
        ...

    def outputs(self, copies: Sequence[Any], inputs: list[V]) -> list[V]:
        """Returns the facts about an equation's outputs, given as it is in each program."""
        ...

    def checked(self, value: V, copies: Sequence[Any]) -> V:
        """Returns a fact, or a weaker one if the variables' shapes contradict it."""
        ...

    def unknown(self, reason: str) -> V:
        """Nothing."""
        ...


def walk(domain: Domain[V], programs: Sequence[Any], inputs: Sequence[V]) -> list[V]:
    """Returns the facts about the outputs of programs that differ only as far as the domain allows.

    Args:
      domain: the facts that can be known.
      programs: jaxprs, closed or without constants.
      inputs: the facts about their inputs.
    """
    jaxprs = [getattr(program, "jaxpr", program) for program in programs]
    first = jaxprs[0]
    known: dict[Any, V] = {}
    counterparts: dict[Any, Any] = {}

    def write(variables: Sequence[Sequence[Any]], values: Sequence[V]) -> None:
        for copies, value in zip(zip(*variables, strict=True), values, strict=True):
            known[copies[0]] = domain.checked(value, copies)
            counterparts.update(dict.fromkeys(copies[1:], copies[0]))

    def read(atoms: Sequence[Any]) -> V:
        if all(isinstance(atom, Literal) for atom in atoms):
            return domain.constant([_number(atom) for atom in atoms])
        if isinstance(atoms[0], Literal) or any(counterparts.get(atom) is not atoms[0] for atom in atoms[1:]):
            return domain.unknown(DIFFERENT)
        return known[atoms[0]]

    consts = [
        domain.constant(copies) for copies in zip(*(getattr(one, "consts", ()) for one in programs), strict=False)
    ]
    sizes = {(len(j.constvars), len(j.invars), len(j.outvars), len(j.eqns)) for j in jaxprs}
    if len(sizes) > 1 or len(inputs) != len(first.invars) or len(consts) != len(first.constvars):
        return [domain.unknown(DIFFERENT)] * len(first.outvars)
    write([jaxpr.constvars for jaxpr in jaxprs], consts)
    write([jaxpr.invars for jaxpr in jaxprs], inputs)
    for copies in zip(*(jaxpr.eqns for jaxpr in jaxprs), strict=True):
        if len({(one.primitive, len(one.invars), len(one.outvars)) for one in copies}) > 1:
            return [domain.unknown(DIFFERENT)] * len(first.outvars)
        values = [read(atoms) for atoms in zip(*(one.invars for one in copies), strict=True)]
        write([one.outvars for one in copies], domain.outputs(copies, values))
    return [read(atoms) for atoms in zip(*(jaxpr.outvars for jaxpr in jaxprs), strict=True)]


def called(equation: Any) -> Any:
    """Returns the program that an equation runs; `None` if it runs none."""
    return next((equation.params[key] for key in ("jaxpr", "call_jaxpr") if key in equation.params), None)


def _number(literal: Any) -> Any:
    scalar = np.shape(literal.val) == ()  # maybe a Python number, without a dtype
    return np.asarray(literal.val, literal.aval.dtype)[()] if scalar else literal.val
