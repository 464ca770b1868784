"""The custom calls that a program may make: those of `jax.numpy.linalg`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainband.ps.program.check import jax_internals as inside
from trainband.ps.program.check import lapack
from trainband.ps.program.check.lapack import LARGEST, Tensor

ON_CPU = lapack.TARGETS
"""jaxlib's CPU kernels do not compare the shapes of these, so `lapack` does."""
ON_CUDA = frozenset(
    f"cusolver_{name}_ffi" for name in ("potrf", "getrf", "geqrf", "orgqr", "syevd", "gesvdj", "gesvd")
) | {"cu_lu_pivots_to_permutation"}
"""jaxlib's GPU kernels compare the shapes of these. Only the lengths of sides, which they multiply, are bounded."""


def work_of(
    target: str, attributes: Mapping[str, Any], operands: Sequence[Tensor], results: Sequence[Tensor]
) -> int | None:
    """The work of a call (see `ProgramLimits`); `None` if JAX does not make such a call."""
    if not _is_typed(attributes):
        return None
    if target in ON_CUDA:
        matrices = operands[:1] if target.startswith("cusolver") else ()
        return 0 if all(side <= LARGEST for shape, _ in matrices for side in shape[-2:]) else None
    settings = {str(entry.name): _setting(str(entry.attr)) for entry in attributes["mhlo.backend_config"]}
    layouts = [
        [inside.integers(one) for one in attributes[key]] if key in attributes else []
        for key in ("operand_layouts", "result_layouts")
    ]
    key = "output_operand_aliases"
    aliases = [str(one) for one in attributes[key]] if key in attributes else []
    return lapack.work_of(target, operands, results, settings, (layouts[0], layouts[1]), aliases)


def _is_typed(attributes: Mapping[str, Any]) -> bool:
    """Whether it calls a typed handler, which gets only its operands and settings, and no bare pointer."""

    def is_one_of(key: str, *values: str) -> bool:
        return key not in attributes or str(attributes[key]) in values

    return (
        "mhlo.backend_config" in attributes
        and is_one_of("api_version", "4 : i32")
        and is_one_of("backend_config", "", '""', "{}")
        and is_one_of("called_computations", "[]")
        and is_one_of("has_side_effect", "false")
    )


def _setting(text: str) -> int:
    """Returns a setting of a custom call as a number; -1 if JAX never writes such a setting."""
    if text in ("true", "false"):
        return int(text == "true")
    number, _, kind = text.partition(" : ")
    return int(number) if kind == "ui8" and number.isdecimal() else -1
