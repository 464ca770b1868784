"""`tf.profiler.experimental`: JAX's profiler, whose traces TensorBoard shows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import jax


class ProfilerOptions(NamedTuple):
    """What is traced. This changes nothing."""

    host_tracer_level: int = 2
    python_tracer_level: int = 0
    device_tracer_level: int = 1
    delay_ms: int | None = None


def start(logdir: str, options: Any = None) -> None:
    """Begin a trace."""
    del options
    jax.profiler.start_trace(str(logdir))


def stop(save: bool = True) -> None:
    """End the trace, and write it."""
    del save
    jax.profiler.stop_trace()


@contextmanager
def Profile(logdir: str, options: Any = None) -> Iterator[None]:  # noqa: N802 - TensorFlow's name
    """Traces what runs inside."""
    start(logdir, options)
    try:
        yield
    finally:
        stop()


def Trace(name: str, **kwargs: Any) -> AbstractContextManager[Any]:  # noqa: N802
    """A name for what runs inside."""
    return jax.profiler.TraceAnnotation(name, **kwargs) if name else nullcontext()
