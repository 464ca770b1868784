"""The names of NumPy 1 that NumPy 2 has removed, for scripts of that time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

_SCALARS: dict[str, Any] = {
    "float": float, "int": int, "object": object, "str": str, "complex": complex, "long": int,
    "unicode": str, "float_": np.float64, "complex_": np.complex128, "cfloat": np.complex128,
    "singlecomplex": np.complex64, "longfloat": np.longdouble, "longcomplex": np.clongdouble, "unicode_": np.str_,
    "string_": np.bytes_, "Inf": np.inf, "Infinity": np.inf, "infty": np.inf, "PINF": np.inf, "NINF": -np.inf,
    "NaN": np.nan, "PZERO": 0.0, "NZERO": -0.0, "product": np.prod, "cumproduct": np.cumprod, "alltrue": np.all,
    "sometrue": np.any, "round_": np.round, "row_stack": np.vstack, "trapz": np.trapezoid, "in1d": np.isin,
    "asscalar": lambda a: a.item(), "asfarray": lambda a, dtype=np.float64: np.asarray(a, dtype),
    "msort": lambda a: np.sort(a, axis=0), "rank": np.ndim, "issubclass_": issubclass,
    "find_common_type": lambda arrays, scalars: np.result_type(*arrays, *scalars),
    "sctypes": {
        "int": [np.int8, np.int16, np.int32, np.int64], "uint": [np.uint8, np.uint16, np.uint32, np.uint64],
        "float": [np.float16, np.float32, np.float64, np.longdouble], "complex": [np.complex64, np.complex128],
        "others": [bool, object, bytes, str, np.void],
    },
}  # fmt: skip


def install_numpy_names(say: Callable[[str], None]) -> Callable[[], None]:
    """Give NumPy its old names; the first use is said once. Returns a function that takes them away again.

    Args:
      say: called once, with a line that tells the user.
    """
    own: Callable[[str], Any] = np.__getattr__
    said = False

    def look_up(name: str) -> Any:
        nonlocal said
        if name not in _SCALARS:
            return own(name)
        if not said:
            said = True
            say(f"np.{name} is a name of NumPy 1: this script gets such names, which NumPy 2 no longer has")
        return _SCALARS[name]

    def restore() -> None:
        np.__getattr__ = own  # type: ignore[method-assign]

    np.__getattr__ = look_up  # type: ignore[method-assign]
    return restore
