"""JAX's devices, told without starting JAX where it has not started: a strategy may have to start it with others."""

from __future__ import annotations

import functools
import subprocess
import sys
from importlib.util import find_spec

import jax

from trainband.spmd.jax_internals import backends_have_started

_PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin", "jax_rocm60_plugin", "jax_rocm7_plugin", "libtpu")
_ASK = "import jax; print(*(one.platform for one in jax.local_devices()))"
_DEADLINE_S = 60.0


def accelerators() -> list[str]:
    """The platform of each device of this process that is no CPU."""
    if backends_have_started():
        return [one.platform for one in jax.local_devices() if one.platform != "cpu"]
    if jax.config.jax_platforms == "cpu" or not any(map(find_spec, _PLUGINS)):
        return []
    return list(_asked())


@functools.cache
def _asked() -> tuple[str, ...]:
    """What another process finds, which starts JAX for itself."""
    try:
        done = subprocess.run([sys.executable, "-c", _ASK], capture_output=True, text=True, timeout=_DEADLINE_S)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return tuple(one for one in done.stdout.split() if one != "cpu") if done.returncode == 0 else ()


def cpu_devices() -> int:
    """How many devices JAX makes of the CPU, where that is all there is."""
    if backends_have_started():
        return jax.local_device_count() if jax.local_devices()[0].platform == "cpu" else 1
    return max(1, int(jax.config.jax_num_cpu_devices))


def divide_cpu(count: int) -> bool:
    """Has JAX make so many devices of the CPU. Returns whether it does: it is too late once JAX has started."""
    if backends_have_started():
        return jax.local_device_count() >= count
    jax.config.update("jax_num_cpu_devices", count)
    return True
