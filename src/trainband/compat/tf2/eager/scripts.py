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

from trainband.compat.tf2.eager.execute import convert
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


def print(*inputs: Any, output_stream: Any = sys.stderr, end: str = "\n", sep: str = " ", **_: Any) -> None:  # noqa: A001
    """Prints the values of tensors."""
    shown = [map_structure(_value_of, one) for one in inputs]
    stream = output_stream if hasattr(output_stream, "write") else sys.stderr
    builtins.print(*shown, file=stream, end=end, sep=sep)


def _value_of(value: Any) -> Any:
    return value.numpy() if hasattr(value, "numpy") else value


def py_function(func: Callable[..., Any], inp: Any, Tout: Any, name: str | None = None) -> Any:  # noqa: N803
    """What a Python function gives for tensors."""
    del Tout, name
    return func(*map(convert, inp))


def numpy_function(
    func: Callable[..., Any],
    inp: Any,
    Tout: Any,  # noqa: N803 - TensorFlow's name
    stateful: bool = True,
    name: str | None = None,
) -> Any:
    """What a Python function of NumPy's arrays gives."""
    del Tout, stateful, name
    found = func(*(np.asarray(convert(one).numpy()) for one in inp))
    return [Tensor(np.asarray(one)) for one in found] if isinstance(found, list | tuple) else Tensor(np.asarray(found))


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
    from trainband.compat.tf1.graphs.errors import InvalidArgumentError

    del summarize, name
    a, b = (np.asarray(convert(one).numpy()) for one in (x, y))
    if not np.all(a == b):
        raise InvalidArgumentError(None, None, f"{message or ''} Condition x == y did not hold: {a} {b}".strip())
