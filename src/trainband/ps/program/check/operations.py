"""Which StableHLO operations a program may use, with which attributes, and what each costs.

Everything here computes its results from its operands alone, in memory that XLA has sized from fixed types: indices out
of range are clamped or skipped, and no operation waits, sends, or calls back. Collectives, feeds, dynamic shapes,
tokens and tuples are left out. Convolutions, FFTs and loops without a proven bound are for the closures of a
TensorFlow 2 job: no optimizer that we know needs them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from trainband.ps.program.check.custom_calls import ON_CPU, ON_CUDA

ELEMENT_TYPES: Mapping[str, int] = {
    "i1": 1, "i4": 1, "ui4": 1, "i8": 1, "ui8": 1, "i16": 2, "ui16": 2, "i32": 4, "ui32": 4, "i64": 8, "ui64": 8,
    "f16": 2, "bf16": 2, "f32": 4, "f64": 8, "complex<f32>": 8, "complex<f64>": 16,
    "f8E4M3FN": 1, "f8E5M2": 1, "f8E4M3B11FNUZ": 1, "f8E4M3FNUZ": 1, "f8E5M2FNUZ": 1, "f8E4M3": 1, "f8E3M4": 1,
}  # fmt: skip
"""Bytes of one element in memory."""

DTYPES: Mapping[str, str] = {
    "bool": "i1", "int4": "i4", "uint4": "ui4", "int8": "i8", "uint8": "ui8", "int16": "i16", "uint16": "ui16",
    "int32": "i32", "uint32": "ui32", "int64": "i64", "uint64": "ui64", "float16": "f16", "bfloat16": "bf16",
    "float32": "f32", "float64": "f64", "complex64": "complex<f32>", "complex128": "complex<f64>",
    "float8_e4m3fn": "f8E4M3FN", "float8_e5m2": "f8E5M2", "float8_e4m3b11fnuz": "f8E4M3B11FNUZ",
    "float8_e4m3fnuz": "f8E4M3FNUZ", "float8_e5m2fnuz": "f8E5M2FNUZ", "float8_e4m3": "f8E4M3", "float8_e3m4": "f8E3M4",
}  # fmt: skip
"""MLIR's names of NumPy's dtypes."""

INTEGERS: Mapping[str, tuple[int, int]] = {
    **{f"i{bits}": (-(1 << bits - 1), (1 << bits - 1) - 1) for bits in (8, 16, 32, 64)},
    **{f"ui{bits}": (0, (1 << bits) - 1) for bits in (8, 16, 32, 64)},
}
"""The range of each type that a loop may count in."""

_PLAIN = (
    "abs add and atan2 bitcast_convert cbrt ceil clamp complex convert cosine count_leading_zeros divide exponential "
    "exponential_minus_one floor imag is_finite log log_plus_one logistic maximum minimum multiply negate not or "
    "popcnt power real remainder reshape round_nearest_afz round_nearest_even rsqrt select shift_left "
    "shift_right_arithmetic shift_right_logical sign sine sqrt subtract tan tanh xor"
).split()

ELEMENTWISE: Mapping[str, frozenset[str]] = {
    **{f"stablehlo.{name}": frozenset({"result_accuracy"}) for name in _PLAIN},
    "stablehlo.compare": frozenset({"comparison_direction", "compare_type"}),
    "stablehlo.constant": frozenset({"value"}),
    "stablehlo.reduce_precision": frozenset({"exponent_bits", "mantissa_bits"}),
}
"""Operations without regions that cost the elements they touch; also allowed inside a reduction or a sort."""

WITHOUT_REGIONS: Mapping[str, frozenset[str]] = {
    **ELEMENTWISE,
    "stablehlo.broadcast_in_dim": frozenset({"broadcast_dimensions"}),
    "stablehlo.concatenate": frozenset({"dimension"}),
    "stablehlo.dot_general": frozenset({"dot_dimension_numbers", "precision_config"}),
    "stablehlo.dynamic_slice": frozenset({"slice_sizes"}),
    "stablehlo.dynamic_update_slice": frozenset(),
    "stablehlo.gather": frozenset({"dimension_numbers", "slice_sizes", "indices_are_sorted"}),
    "stablehlo.iota": frozenset({"iota_dimension"}),
    "stablehlo.optimization_barrier": frozenset(),
    "stablehlo.pad": frozenset({"edge_padding_low", "edge_padding_high", "interior_padding"}),
    "stablehlo.reverse": frozenset({"dimensions"}),
    "stablehlo.rng_bit_generator": frozenset({"rng_algorithm"}),
    "stablehlo.slice": frozenset({"start_indices", "limit_indices", "strides"}),
    "stablehlo.transpose": frozenset({"permutation"}),
}

COMBINING: Mapping[str, frozenset[str]] = {
    "stablehlo.reduce": frozenset({"dimensions"}),
    "stablehlo.reduce_window": frozenset(
        {"window_dimensions", "window_strides", "base_dilations", "window_dilations", "padding"}
    ),
    "stablehlo.scatter": frozenset({"scatter_dimension_numbers", "indices_are_sorted", "unique_indices"}),
    "stablehlo.select_and_scatter": frozenset({"padding", "window_dimensions", "window_strides"}),
    "stablehlo.sort": frozenset({"dimension", "is_stable"}),
}
"""Operations with functions of scalars that run for every element."""

CONTROL: Mapping[str, frozenset[str]] = {
    "stablehlo.while": frozenset(),
    "stablehlo.if": frozenset(),
    "stablehlo.case": frozenset(),
    "stablehlo.return": frozenset(),
    "func.return": frozenset(),
    "func.call": frozenset({"callee"}),
    "stablehlo.composite": frozenset({"name", "decomposition", "composite_attributes", "version"}),
    "stablehlo.custom_call": frozenset(
        (
            "api_version backend_config call_target_name called_computations has_side_effect mhlo.backend_config "
            "operand_layouts output_operand_aliases result_layouts"
        ).split()
    ),
}

_OF_UPDATES: Mapping[str, frozenset[str]] = {**WITHOUT_REGIONS, **COMBINING, **CONTROL}
_OF_CLOSURES: Mapping[str, frozenset[str]] = {
    **_OF_UPDATES,
    "stablehlo.batch_norm_grad": frozenset({"epsilon", "feature_index"}),
    "stablehlo.batch_norm_inference": frozenset({"epsilon", "feature_index"}),
    "stablehlo.batch_norm_training": frozenset({"epsilon", "feature_index"}),
    "stablehlo.cholesky": frozenset({"lower"}),
    "stablehlo.convolution": frozenset(
        (
            "batch_group_count dimension_numbers feature_group_count lhs_dilation padding precision_config "
            "rhs_dilation window_reversal window_strides"
        ).split()
    ),
    "stablehlo.dot_general": frozenset({"dot_dimension_numbers", "precision_config", "algorithm"}),
    "stablehlo.fft": frozenset({"fft_length", "fft_type"}),
    "stablehlo.get_dimension_size": frozenset({"dimension"}),
    "stablehlo.rng": frozenset({"rng_distribution"}),
    "stablehlo.triangular_solve": frozenset({"left_side", "lower", "transpose_a", "unit_diagonal"}),
}


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules for programs of one kind.

    Attributes:
      kind: the kind, for messages.
      allowed: every operation that a function may have, and its attributes. Unlisted attributes with a dialect's
        prefix (shardings, layouts, names of results) are removed.
      custom_calls: the targets of custom calls; `custom_calls.py` has their forms.
      summary: what is allowed, for messages.
      advice: what to do about a refusal.
      has_bounded_loops: whether each loop needs a proven bound, and the work of a run is limited.
      called_composites: the composites that are replaced by calls of the functions that come with them.
    """

    kind: str
    allowed: Mapping[str, frozenset[str]]
    summary: str
    advice: str
    custom_calls: frozenset[str] = ON_CPU
    has_bounded_loops: bool = True
    called_composites: frozenset[str] = frozenset()


UPDATE = Rules(
    "update program",
    _OF_UPDATES,
    summary="arithmetic, indexing, sorting, counted loops and jax.numpy.linalg",
    advice="take it out of the optimizer, or train with a strategy that has no ps",
)
"""The rules for an optimizer, on a ps."""

_CLOSURE = Rules(
    "program of a closure",
    _OF_CLOSURES,
    summary="arithmetic, indexing, sorting, convolutions, FFTs, loops and jax.numpy.linalg",
    advice="take it out of the function that is scheduled",
    has_bounded_loops=False,
    called_composites=frozenset({"chlo.scan"}),
)
CLOSURES: Mapping[str, Rules] = {"cpu": _CLOSURE, "cuda": replace(_CLOSURE, custom_calls=ON_CUDA)}
"""The rules for a TensorFlow 2 coordinator's closures, by the platform that the worker computes on."""

STEP_WORK = 50
"""Cost of each operation besides its elements: XLA's thunk for a scalar takes 50 ns."""

CALL_WORK = 1_000
"""Cost of a sort or a custom call besides its elements: a decomposition of a 2 x 2 matrix takes 0.3 to 2.5 us."""

ELEMENT_WORK: Mapping[str, int] = {
    "stablehlo.atan2": 20, "stablehlo.cbrt": 15, "stablehlo.cosine": 8, "stablehlo.exponential": 2,
    "stablehlo.exponential_minus_one": 4, "stablehlo.gather": 3, "stablehlo.log": 4, "stablehlo.log_plus_one": 15,
    "stablehlo.logistic": 2, "stablehlo.power": 30, "stablehlo.remainder": 4, "stablehlo.scatter": 3,
    "stablehlo.sine": 8, "stablehlo.sort": 8, "stablehlo.tan": 8,
}  # fmt: skip
"""Cost of an element if it is more than 1. 1 stands for at most 1 ns on one core, for the most expensive element type:
measured on an AMD EPYC, with arrays of 2 and of 16,384 elements, nothing took more than 0.9 ns."""

MATRIX_SAVES = 8
"""A multiplication costs this many times less in a product of matrices with no side below `MATRIX_SIDE`."""
MATRIX_SIDE = 16
