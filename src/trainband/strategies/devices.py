"""The device that a replica computes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import jax

from trainband.cluster.resolvers.gpus import count_gpus, jax_is_restricted
from trainband.errors import ClusterError
from trainband.runtime.waiting import Say
from trainband.spmd.jax_internals import backends_have_started

_GPUS = ("gpu", "cuda", "rocm")
"""JAX's names of the platforms whose devices are GPUs."""
_COMMON = ("cpu", "tpu", *_GPUS)
"""Platforms whose names people also write in capitals."""
_OPTIONS = ("jax_cuda_visible_devices", "jax_rocm_visible_devices")
_ALL = "all"
_ROOT = Path("/")


def reserve_gpu(
    index: int, environ: Mapping[str, str] | None = None, *, wanted: str | None = None, root: Path = _ROOT
) -> str | None:
    """Restricts this process to one of the machine's GPUs, so that it takes no memory on the others.

    JAX takes three quarters of the memory of every GPU that it sees, as soon as its backends start: two workers
    on a machine with two GPUs would not both start. So call this before anything that starts them, such as
    `jax.devices()`, or any array; once they have started, it does nothing.

    It also does nothing if the machine has fewer than two NVIDIA GPUs, or if the user has decided: by the option
    `jax_cuda_visible_devices` or the variable of that name, by platforms without GPUs, or by a `wanted` that
    is not a GPU or has a number (which counts the GPUs that this process sees).

    Args:
      index: which of the host's training tasks this is: it takes GPU `index` modulo their number.
      environ: the environment to read; `os.environ` when `None`.
      wanted: as in `choose_device`.
      root: the directory that contains `proc` and `dev`.

    Returns:
      The action taken, to follow the task's name in a message: `takes GPU 1 of 4`. `None`: nothing.
    """
    if wanted is not None and wanted not in _GPUS:
        return None
    options = jax.config.values
    platforms = options.get("jax_platforms")
    if platforms and not set(platforms.split(",")) & set(_GPUS):
        return None
    if jax_is_restricted(environ) or any(options.get(name, _ALL) != _ALL for name in _OPTIONS):
        return None
    count = count_gpus(environ, root=root)
    if count < 2 or backends_have_started():
        return None
    gpu = index % count
    for name in _OPTIONS:
        jax.config.update(name, str(gpu))
    return f"takes GPU {gpu} of {count}"


def find_device(wanted: str | jax.Device | None, index: int = 0) -> jax.Device | None:
    """Returns the requested device of this process, see `choose_device`; `None` if it does not exist.

    Raises:
      ClusterError: `wanted` does not read `platform` or `platform:number`.
    """
    if isinstance(wanted, jax.Device):
        return wanted if wanted in jax.local_devices(backend=wanted.platform) else None
    if wanted is not None and not isinstance(wanted, str):
        raise ClusterError(f"device must have the form cpu, gpu or gpu:1, or be one of jax.devices(), got {wanted!r}.")
    # TensorFlow's names are accepted, too: /gpu:1, GPU:1, /device:GPU:1.
    name = (wanted or "").removeprefix("/").removeprefix("device:")
    platform, colon, number = name.partition(":")
    if platform.lower() in _COMMON:
        platform = platform.lower()
    if (wanted and not platform.replace("_", "").isalnum()) or (colon and not number.isdecimal()):
        raise ClusterError(f"device must have the form cpu, gpu or gpu:1, got {wanted!r}.")
    try:
        devices = jax.local_devices(backend=platform) if platform else jax.local_devices()
    except RuntimeError:
        return None
    if not number:
        return devices[index % len(devices)] if devices else None
    return devices[int(number)] if int(number) < len(devices) else None


def choose_device(
    wanted: str | jax.Device | None, index: int, task: str, say: Say, *, strict: bool = False
) -> jax.Device:
    """Returns the device for a task.

    Args:
      wanted: `None`: an accelerator if JAX has one, the task's own share of them; else the CPU. Or a name,
        such as `cpu`, `gpu`, `gpu:1`; or one of `jax.devices()`.
      index: which of the host's training tasks this is: it takes device `index` modulo their number.
      task: for the message.
      say: told when the CPU is used instead.
      strict: do not use the CPU in place of a requested device.

    Raises:
      ClusterError: `wanted` does not read `platform` or `platform:number`; or `strict`, and the device does not exist.
    """
    device = find_device(wanted, index)
    if device is not None:
        if wanted is None and device.platform == "cpu":
            say(f"{task} computes on the CPU: JAX sees no accelerator")
        return device
    return cpu_instead([str(wanted)], task, say, strict=strict)


def cpu_instead(missing: Sequence[str], task: str, say: Say, *, strict: bool) -> jax.Device:
    """Returns the CPU, in place of missing devices; `task`, `say` and `strict` as in `choose_device`.

    Raises:
      ClusterError: `strict` is set.
    """
    named = ", ".join(missing)
    if strict:
        raise ClusterError(
            f"{task} should compute on {named}, but JAX sees only {', '.join(_names()) or 'none'}; with strict=False "
            "it would compute on the CPU."
        )
    say(f"{task} computes on the CPU: there is no device {named}")
    return jax.local_devices(backend="cpu")[0]


def shown_devices(devices: Sequence[jax.Device]) -> str:
    """Formats devices for a message, by names that `find_device` accepts: `gpu:0, gpu:1`, or `8 devices, gpu:0 to
    gpu:7`.
    """
    numbers = [jax.local_devices(backend=device.platform).index(device) for device in devices]
    names = [f"{device.platform}:{number}" for device, number in zip(devices, numbers, strict=True)]
    return ", ".join(names) if len(names) < 4 else f"{len(names)} devices, {names[0]} to {names[-1]}"


def on_device(device: jax.Device) -> AbstractContextManager[object]:
    """Returns a context in which fresh arrays go to `device`; costs nothing if they do so anyway."""
    if device == jax.local_devices()[0]:
        return nullcontext()
    context: AbstractContextManager[object] = jax.default_device(device)
    return context


def placer(device: jax.Device) -> Callable[[Any], Any] | None:
    """Returns a function that moves a batch to this device; `None` for the CPU, which takes NumPy's arrays directly."""
    return None if device.platform == "cpu" else partial(jax.device_put, device=device)


def _names() -> list[str]:
    """Returns the devices of this process by the names that request them."""
    devices: list[jax.Device] = []
    with suppress(RuntimeError):  # no platform in JAX_PLATFORMS is available
        devices += jax.local_devices()
    if all(device.platform != "cpu" for device in devices):
        with suppress(RuntimeError):  # the CPU is not among them
            devices += jax.local_devices(backend="cpu")
    platforms = [device.platform for device in devices]
    return [f"{platform}:{platforms[:place].count(platform)}" for place, platform in enumerate(platforms)]
