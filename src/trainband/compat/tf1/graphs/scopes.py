"""The default graph's scopes as functions, and switches that have no effect."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from trainband.compat.tf1.graphs.graph import get_default_graph
from trainband.compat.tf1.graphs.record import name_scope as name_scope


def device(device_name_or_function: Any) -> Any:
    """Operations made inside get this device."""
    return get_default_graph().device(device_name_or_function)


def control_dependencies(control_inputs: Any) -> Any:
    """Operations made inside run after these."""
    return get_default_graph().control_dependencies(control_inputs)


@contextmanager
def op_scope(values: Any, name: str | None, default_name: str | None = None) -> Iterator[str]:
    """TensorFlow 0.x's `name_scope`."""
    with name_scope(name, default_name, values) as scope:
        yield scope


@contextmanager
def colocate_with(op: Any, ignore_existing: bool = False) -> Iterator[None]:  # noqa: ARG001 - all is in one program
    """Gives operations made inside the device of another."""
    with get_default_graph().device(getattr(op, "device", "") or None):
        yield


@contextmanager
def container(container_name: str) -> Iterator[str]:
    """Changes nothing: there are no containers."""
    yield container_name


def add_to_collection(name: Any, value: Any) -> None:
    """Puts something into a collection."""
    get_default_graph().add_to_collection(name, value)


def get_collection(key: Any, scope: str | None = None) -> list[Any]:
    """What is in a collection."""
    return get_default_graph().get_collection(key, scope)


def get_collection_ref(key: Any) -> list[Any]:
    """A collection itself, to change."""
    return get_default_graph().get_collection_ref(key)


def disable_v2_behavior() -> None:
    """Changes nothing: this is TensorFlow 1."""


disable_eager_execution = disable_v2_behavior
disable_resource_variables = disable_v2_behavior
enable_resource_variables = disable_v2_behavior
disable_v2_tensorshape = disable_v2_behavior


def enable_eager_execution(*_: Any, **__: Any) -> None:
    """Not supported.

    Raises:
      NotImplementedError: always.
    """
    raise NotImplementedError("Eager execution is not supported: use TensorFlow 1's graphs and sessions.")


enable_v2_behavior = enable_eager_execution


def executing_eagerly() -> bool:
    """No."""
    return False
