"""Which StableHLO operations an update program may use, with which attributes, and what each costs.

Everything here computes its results from its operands alone, in memory that XLA has sized from types which are fixed:
indices are clamped or skipped where they lie outside, and no operation waits, sends, or calls back. What is left out
(convolutions, FFTs, collectives, feeds, dynamic shapes, tokens, tuples) no optimizer that we know needs.
"""

from __future__ import annotations

from collections.abc import Mapping

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
"""Operations without regions whose cost is the elements that they touch, allowed inside a reduction or a sort too."""

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
    "stablehlo.sort": frozenset({"dimension", "is_stable"}),
}
"""Operations with one region, a function of scalars that is run for every element."""

CONTROL: Mapping[str, frozenset[str]] = {
    "stablehlo.while": frozenset(),
    "stablehlo.if": frozenset(),
    "stablehlo.case": frozenset(),
    "stablehlo.return": frozenset(),
    "func.return": frozenset(),
    "func.call": frozenset({"callee"}),
    "stablehlo.composite": frozenset({"name", "decomposition", "composite_attributes", "version"}),
    "stablehlo.custom_call": frozenset(
        {
            "api_version",
            "backend_config",
            "call_target_name",
            "called_computations",
            "has_side_effect",
            "mhlo.backend_config",
            "operand_layouts",
            "output_operand_aliases",
            "result_layouts",
        }
    ),
}

ALLOWED: Mapping[str, frozenset[str]] = {**WITHOUT_REGIONS, **COMBINING, **CONTROL}
"""Every operation that may stand in a function, and the attributes that it may have.

Attributes with a dialect's prefix that are not named here (shardings, layouts, names of results) are taken away.
"""

COMPOSITES = frozenset(
    f"chlo.{name}"
    for name in (
        "acos acosh asin asinh atan atanh bessel_i1e conj cosh digamma erf erf_inv erfc lgamma polygamma sinh square "
        "tan top_k zeta next_after"
    ).split()
)
"""Composites that XLA may compute in its own way instead of by the function that comes with them."""

STEP_WORK = 50
"""What each operation costs beside its elements: XLA's thunk for a scalar takes 50 ns."""
