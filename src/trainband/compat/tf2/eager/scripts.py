"""What scripts ask of the library itself: its version, its devices, printing, and settings that change nothing here."""

from __future__ import annotations

import builtins
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import numpy as np

from trainband.compat.ops.dtypes import DType, array_of, as_dtype
from trainband.compat.tf1.graphs.errors import InvalidArgumentError
from trainband.compat.tf2.eager.captured import keep_out_of_traces
from trainband.compat.tf2.eager.execute import convert
from trainband.compat.tf2.eager.host_stage import computed, on_host, raise_if_hosted
from trainband.compat.tf2.eager.structure import map_structure
from trainband.compat.tf2.eager.tensor import Tensor

VERSION = "2.21.0"


def executing_eagerly() -> bool:
    """Whether operations give values: always."""
    return True


@contextmanager
def init_scope() -> Iterator[None]:
    """A scope that changes nothing."""
    yield


def get_logger() -> logging.Logger:
    """TensorFlow's."""
    return logging.getLogger("tensorflow")


def print(*inputs: Any, output_stream: Any = None, end: str = "\n", sep: str = " ", **_: Any) -> None:  # noqa: A001
    """Prints the values of tensors."""
    raise_if_hosted()
    keep_out_of_traces()
    shown = [map_structure(_value_of, one) for one in inputs]
    stream = output_stream if hasattr(output_stream, "write") else sys.stderr
    builtins.print(*shown, file=stream, end=end, sep=sep)


def _value_of(value: Any) -> Any:
    return value.numpy() if hasattr(value, "numpy") else value


def py_function(func: Callable[..., Any], inp: Any, Tout: Any, name: str | None = None) -> Any:  # noqa: N803
    """What a Python function gives for tensors."""
    del name
    if not on_host(inp):
        return func(*map(convert, inp))

    def cast(found: Any, dtype: DType) -> Any:
        return array_of(np.asarray(convert(found).array), dtype)

    return _hosted(func, lambda *arrays: func(*map(Tensor, arrays)), inp, Tout, cast)


def numpy_function(
    func: Callable[..., Any],
    inp: Any,
    Tout: Any,  # noqa: N803 - TensorFlow's name
    stateful: bool = True,
    name: str | None = None,
) -> Any:
    """What a Python function of NumPy's arrays gives.

    Raises:
      InvalidArgumentError (in the function of a dataset): it gives other dtypes than were said.
    """
    del stateful, name

    def call(*arrays: Any) -> Any:
        return func(*(one if one.ndim else one[()] for one in arrays))

    if not on_host(inp):
        found = call(*(np.asarray(convert(one).array) for one in inp))
        return [convert(one) for one in found] if isinstance(found, list | tuple) else convert(np.asarray(found))

    def checked(found: Any, dtype: DType) -> Any:
        array = np.asarray(found) if not isinstance(found, str | bytes) else array_of(found)
        if as_dtype(array.dtype) is not dtype and not isinstance(found, int | float):
            raise InvalidArgumentError(
                None, None, f"A value returned by {func!r} is {as_dtype(array.dtype).name}, but expects {dtype.name}"
            )
        return array_of(array, dtype)

    return _hosted(func, call, inp, Tout, checked)


def _hosted(
    func: Callable[..., Any], call: Callable[..., Any], inputs: Any, kinds: Any, converted: Callable[[Any, DType], Any]
) -> Any:
    """What a function of arrays gives, computed on the host: tensors of some dtypes, or one of one."""
    several = isinstance(kinds, list | tuple)
    dtypes = [as_dtype(one) for one in (kinds if several else [kinds])]

    def flat(*arrays: Any) -> list[Any]:
        found = call(*arrays)
        given = found if isinstance(found, list | tuple) and (several or len(dtypes) != 1) else [found]
        return [converted(one, dtype) for one, dtype in zip(given, dtypes, strict=bool(dtypes))]

    cells = [cell.cell_contents for cell in getattr(func, "__closure__", None) or ()]
    if any(isinstance(one, Tensor) for one in cells):  # of the call in which it was made
        raise_if_hosted()
    results = computed(("python", getattr(func, "__code__", func)), flat, inputs)
    return results if several else results[0]


class PhysicalDevice(NamedTuple):
    """A device of this machine."""

    name: str
    device_type: str


def list_physical_devices(device_type: str | None = None) -> list[PhysicalDevice]:
    """The devices of this process: `CPU`, `GPU`, `TPU`."""
    found = [PhysicalDevice("/physical_device:CPU:0", "CPU")]
    for index, device in enumerate(one for one in jax.local_devices() if one.platform != "cpu"):
        kind = "TPU" if device.platform == "tpu" else "GPU"
        found.append(PhysicalDevice(f"/physical_device:{kind}:{index}", kind))
    return [one for one in found if device_type in (None, one.device_type)]


def list_logical_devices(device_type: str | None = None) -> list[PhysicalDevice]:
    """The same."""
    return [PhysicalDevice(name.replace("physical_", ""), kind) for name, kind in list_physical_devices(device_type)]


def run_functions_eagerly(run_eagerly: bool) -> None:
    """Changes nothing: the results are the same."""
    del run_eagerly


def set_soft_device_placement(enabled: bool) -> None:
    """Changes nothing."""
    del enabled


def set_memory_growth(device: Any, enable: bool) -> None:
    """Changes nothing: JAX has a setting of its own, XLA_PYTHON_CLIENT_PREALLOCATE."""
    del device, enable


def set_log_device_placement(enabled: bool) -> None:
    """Changes nothing."""
    del enabled


def set_verbosity(level: int, alsologtostdout: bool = False) -> None:
    """Changes nothing."""
    del level, alsologtostdout


def do_not_convert(func: Any = None) -> Any:
    """The function itself: none is converted."""
    return (lambda one: one) if func is None else func


def assert_equal(x: Any, y: Any, message: str | None = None, summarize: Any = None, name: str | None = None) -> None:
    """Demands that two tensors are equal.

    Raises:
      InvalidArgumentError: they are not.
    """
    del summarize, name
    a, b = (np.asarray(convert(one).numpy()) for one in (x, y))
    if not np.all(a == b):
        raise InvalidArgumentError(None, None, f"{message or ''} Condition x == y did not hold: {a} {b}".strip())
