"""`tf.test` and `tf.sysconfig`: functions that describe the machine."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from typing import Any

import jax


def is_gpu_available(cuda_only: bool = False, min_cuda_compute_capability: Any = None) -> bool:
    """Whether JAX sees a GPU."""
    del cuda_only, min_cuda_compute_capability
    return any(device.platform in ("gpu", "cuda", "rocm") for device in jax.local_devices())


def gpu_device_name() -> str:
    """Return the name of the first GPU, or an empty string."""
    return "/device:GPU:0" if is_gpu_available() else ""


def is_built_with_cuda() -> bool:
    """Whether JAX sees a GPU."""
    return is_gpu_available()


def get_temp_dir() -> str:
    """A directory for temporary files."""
    return tempfile.gettempdir()


def is_built_with_gpu_support() -> bool:
    """Whether JAX sees a GPU."""
    return is_gpu_available()


def is_built_with_rocm() -> bool:
    """Whether JAX sees a GPU of AMD's."""
    return any(device.platform == "rocm" for device in jax.local_devices())


def is_built_with_xla() -> bool:
    """True: everything is compiled by XLA."""
    return True


def get_include() -> str:
    """There are no headers to compile operations against.

    Raises:
      NotImplementedError: always.
    """
    raise NotImplementedError(
        "trainband runs no operations that are written in C++: there are no headers of TensorFlow."
    )


def load_op_library(library_filename: str) -> Any:
    """There is no way to load operations that are written in C++.

    Raises:
      NotImplementedError: always.
    """
    raise NotImplementedError(
        f"{library_filename}: trainband runs no operations that are written in C++; write them with tf's operations."
    )


@dataclass(frozen=True, slots=True)
class Device:
    """A device as `device_lib.list_local_devices` describes it."""

    name: str
    device_type: str
    memory_limit: int
    physical_device_desc: str
    incarnation: int = 0


def list_local_devices(session_config: Any = None) -> list[Device]:
    """The CPU and the GPUs that JAX sees."""
    del session_config
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    gpus = [one for one in jax.local_devices() if one.platform in ("gpu", "cuda", "rocm")]
    return [
        Device("/device:CPU:0", "CPU", memory, ""),
        *(
            Device(f"/device:GPU:{i}", "GPU", int((one.memory_stats() or {}).get("bytes_limit", 0)), one.device_kind)
            for i, one in enumerate(gpus)
        ),
    ]
