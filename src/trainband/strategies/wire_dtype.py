"""WireDtype: narrower dtypes for what travels between workers and parameter servers."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import jax.numpy as jnp

from trainband.errors import ModelError
from trainband.model.layout import WIRE_DTYPES


@dataclass(frozen=True, kw_only=True, slots=True)
class WireDtype:
    """The dtypes in which gradients and params of float32 or float64 travel; `None` does not narrow them.

    Args:
      push: of the gradients, such as `jnp.bfloat16`.
      pull: of the params with which a ps answers a push.

    Raises:
      ModelError: one of them is not such a dtype.
    """

    push: Any = None
    pull: Any = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            object.__setattr__(self, field.name, None if value is None else _checked(value))


def _checked(dtype: Any) -> str:
    """Returns the dtype's name."""
    try:
        name = str(jnp.dtype(dtype).name)
    except TypeError:
        name = str(dtype)
    if name not in WIRE_DTYPES:
        raise ModelError(f"ParameterServer: wire_dtype must be bfloat16 or float16 (or float32), got {name}.")
    return name
