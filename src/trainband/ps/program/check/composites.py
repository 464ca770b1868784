"""The composite operations that a program may have.

XLA uses a composite's name and settings, not the function that comes with it, so they must match that function.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trainband.ps.program.check.lapack import Tensor

NAMES = frozenset(
    f"chlo.{name}"
    for name in (
        "acos acosh asin asinh atan atanh bessel_i1e conj cosh digamma erf erf_inv erfc lgamma polygamma sinh square "
        "tan top_k zeta next_after"
    ).split()
)
"""Composites that XLA may compute in its own way instead of by the function that comes with them."""


def fits(name: str, operands: Sequence[Tensor], results: Sequence[Tensor], settings: Mapping[str, str]) -> bool:
    """Whether a composite of `NAMES` has the types and settings that JAX gives it."""
    if name != "chlo.top_k":
        return not settings and len(results) == 1 and all(one == results[0] for one in operands)
    if len(operands) != 1 or len(results) != 2 or not operands[0][0] or not results[0][0]:
        return False
    (shape, element), k = operands[0], results[0][0][-1]
    return (
        list(results) == [((*shape[:-1], k), element), ((*shape[:-1], k), "i32")]
        and k <= shape[-1]
        and settings.get("is_stable", "true") in ("true", "false")
        and {key: value for key, value in settings.items() if key != "is_stable"} == {"k": str(k)}
    )
