"""How many NVIDIA GPUs this process may use, found out without starting CUDA, which would take memory on each."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

VISIBLE = "CUDA_VISIBLE_DEVICES"
VISIBLE_TO_JAX = "JAX_CUDA_VISIBLE_DEVICES"
_ROOT = Path("/")


def jax_is_restricted(environ: Mapping[str, str] | None = None) -> bool:
    """Whether the user says himself which of the GPUs JAX is to take; `environ` as below."""
    return (os.environ if environ is None else environ).get(VISIBLE_TO_JAX, "all") != "all"


def count_gpus(environ: Mapping[str, str] | None = None, *, root: Path = _ROOT) -> int:
    """How many GPUs CUDA will show this process, numbered from 0; 0 where there are none, or nobody can tell.

    Where `CUDA_VISIBLE_DEVICES` is set, it says so. Else a GPU counts that both the driver and `/dev` have: a
    container has the files of its own GPUs alone in one of the two, and which one depends on what made it. On a
    machine whose driver has made no file in `/dev` yet, the driver's word is enough.

    Args:
      environ: the environment to look in; `os.environ` when `None`.
      root: the directory where `proc` and `dev` are.

    Source: NVIDIA, CUDA C++ Programming Guide, section "CUDA Environment Variables".
    """
    visible = (os.environ if environ is None else environ).get(VISIBLE)
    if visible is not None:
        return _count_visible(visible.split(","))
    driver = root / "proc/driver/nvidia"
    if any(driver.glob("capabilities/gpu*/mig/gi*")):
        return 0  # a GPU cut into parts, of which CUDA shows a process one, whatever their number
    known = _count(driver.glob("gpus/*"))
    files = _count(root.glob("dev/nvidia[0-9]*"))
    return min(known, files) or known or files


def _count_visible(entries: list[str]) -> int:
    """What CUDA sees of such a list: all up to the first that is no GPU, and of parts of GPUs (MIG) one alone."""
    for place, entry in enumerate(map(str.strip, entries)):
        if entry.startswith("MIG-"):
            return place or 1
        if not (entry.isdecimal() or entry.startswith("GPU-")):
            return place
    return len(entries)


def _count(paths: Iterable[Path]) -> int:
    return sum(1 for _ in paths)
