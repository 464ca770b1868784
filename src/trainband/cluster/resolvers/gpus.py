"""Counting the NVIDIA GPUs that this process may use, without starting CUDA, which would take memory on each."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

VISIBLE = "CUDA_VISIBLE_DEVICES"
VISIBLE_TO_JAX = "JAX_CUDA_VISIBLE_DEVICES"
_ROOT = Path("/")


def jax_is_restricted(environ: Mapping[str, str] | None = None) -> bool:
    """Whether the user has chosen JAX's GPUs; `environ` as below."""
    return (os.environ if environ is None else environ).get(VISIBLE_TO_JAX, "all") != "all"


def count_gpus(environ: Mapping[str, str] | None = None, *, root: Path = _ROOT) -> int:
    """Returns how many GPUs CUDA will show this process, numbered from 0; 0 if there are none or the number is unknown.

    `CUDA_VISIBLE_DEVICES` decides if it is set. Otherwise a GPU counts if both the driver and `/dev` list it: a
    container has only its own GPUs' files in one of the two, and which one depends on the container runtime. On a
    machine whose driver has not yet made files in `/dev`, the driver's list is enough.

    Args:
      environ: the environment to read; `os.environ` when `None`.
      root: the directory where `proc` and `dev` are.

    Source: NVIDIA, CUDA C++ Programming Guide, section "CUDA Environment Variables".
    """
    visible = (os.environ if environ is None else environ).get(VISIBLE)
    if visible is not None:
        return _count_visible(visible.split(","))
    driver = root / "proc/driver/nvidia"
    if any(driver.glob("capabilities/gpu*/mig/gi*")):
        return 0  # a partitioned GPU (MIG), of which CUDA shows a process one part, whatever their number
    known = _count(driver.glob("gpus/*"))
    files = _count(root.glob("dev/nvidia[0-9]*"))
    return min(known, files) or known or files


def _count_visible(entries: list[str]) -> int:
    """Returns how many GPUs of a list CUDA uses: those before the first invalid entry, and only one GPU part (MIG)."""
    for place, entry in enumerate(map(str.strip, entries)):
        if entry.startswith("MIG-"):
            return place or 1
        if not (entry.isdecimal() or entry.startswith("GPU-")):
            return place
    return len(entries)


def _count(paths: Iterable[Path]) -> int:
    return sum(1 for _ in paths)
