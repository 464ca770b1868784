"""Which device a replica computes on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import jax

from trainband.errors import ClusterError
from trainband.wire.patience import Say


def choose_device(wanted: str | None, index: int, task: str, say: Say) -> jax.Device:
    """The device for a task.

    Args:
      wanted: `None`: an accelerator if JAX has one, the task's own share of them; else the CPU. Or a name,
        such as `cpu`, `gpu`, `gpu:1`.
      index: which of the host's training tasks this is: it takes device `index` modulo their number.
      task: for the message.
      say: told when the CPU has to do.

    Raises:
      ClusterError: `wanted` does not read `platform` or `platform:number`.
    """
    platform, colon, number = (wanted or "").partition(":")
    if colon and not number.isdigit():
        raise ClusterError(f"device must read like cpu, gpu or gpu:1, got {wanted!r}.")
    try:
        devices = jax.local_devices(backend=platform) if platform else jax.local_devices()
    except RuntimeError:
        devices = []
    if number and int(number) < len(devices):
        return devices[int(number)]
    if devices and not number:
        if not platform and devices[0].platform == "cpu":
            say(f"{task} computes on the CPU: JAX sees no accelerator")
        return devices[index % len(devices)]
    say(f"{task} computes on the CPU: there is no device {wanted}")
    return jax.local_devices(backend="cpu")[0]


def on_device(device: jax.Device) -> AbstractContextManager[object]:
    """A context in which fresh arrays go to `device`; costs nothing where they do so anyway."""
    if device == jax.local_devices()[0]:
        return nullcontext()
    context: AbstractContextManager[object] = jax.default_device(device)
    return context


def placer(device: jax.Device) -> Callable[[Any], Any] | None:
    """What moves a batch to this device; `None` for the CPU, which takes NumPy's arrays as they are."""
    return None if device.platform == "cpu" else partial(jax.device_put, device=device)
