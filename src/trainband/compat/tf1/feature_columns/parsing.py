"""How the features of columns are read from Examples."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from trainband.compat.ops.dtypes import DType

if TYPE_CHECKING:
    from trainband.compat.tf1.feature_columns.column import FeatureColumn


def make_parse_example_spec(feature_columns: Iterable[FeatureColumn]) -> dict[str, Any]:
    """Return what `tf.parse_example` needs to read the features of some columns.

    Raises:
      ValueError: two columns want to read a feature in different ways, or something is no column.
    """
    found: dict[str, Any] = {}
    for column in feature_columns:
        if not hasattr(column, "parse_example_spec"):
            raise ValueError(f"All feature_columns must be _FeatureColumn instances. Given: {column}")
        for key, how in column.parse_example_spec.items():
            if key in found and how != found[key]:
                raise ValueError(
                    f"feature_columns contain different parse_spec for key {key}. Given {how} and {found[key]}"
                )
            found[key] = how
    return found


def fixed_length(shape: tuple[int, ...], dtype: DType, default_value: Any) -> Any:
    """A feature that every example has."""
    return _named("FixedLenFeature")(shape, dtype, default_value)


def any_length(dtype: DType) -> Any:
    """A feature that an example may have any number of."""
    return _named("VarLenFeature")(dtype)


def _named(name: str) -> Any:
    from trainband.compat.tf1.namespace import find

    return find("tf", name)
