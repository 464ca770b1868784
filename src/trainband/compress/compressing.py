"""Compressing: stores a checkpoint, or a program with its weights, in fewer bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from trainband.checkpoint import Checkpoint
from trainband.compress import encoding as encode
from trainband.compress.activations import calibrated
from trainband.compress.compressed import Compressed, is_compressed
from trainband.compress.encodings import Encoding
from trainband.compress.measuring import measured
from trainband.compress.products import channel_axes
from trainband.compress.selection import Selection, channel_axis
from trainband.errors import DataError, ModelError
from trainband.model.inference import InferenceProgram
from trainband.model.saved_weights import newest_checkpoint, weights_of
from trainband.model.signature import structs

HALVES = ("float16", "bfloat16")

Arrays = Mapping[str, NDArray[Any]]


def compress(
    source: InferenceProgram | Checkpoint | str | Path,
    *,
    int8: bool = False,
    calibrate: Arrays | None = None,
    percentile: float | None = None,
    prune: float | None = None,
    half: str | bool = False,
    rank: float | None = None,
    select: Selection | None = None,
    evaluate: Arrays | None = None,
) -> Compressed:
    """Returns a model's tensors in fewer bytes, with a report of the cost.

    Pruning comes first, then the low rank, then 8-bit integers, then half precision for the rest. A tensor with enough
    zeros, as in a model trained with `Pruning`, is stored without them.

    Args:
      source: a program (`trainband.export.program_of(path, predictor)`); or a checkpoint, or a directory of them, whose
        weights are compressed without regard to their use.
      int8: store the selected tensors as 8-bit integers, symmetric, with one scale per output channel. For a program's
        weights that is the axis that its products keep; for others the last, or an embedding's rows.
      calibrate: inputs of the program by name, with a typical set of examples (some hundreds): products of selected
        tensors are then computed from 8-bit integers, with activation scales measured on these.
      percentile: of the magnitudes, for the scales of activations; by default, the largest magnitude.
      prune: set this share of each selected tensor's weights to 0, the smallest ones. Without further training, more
        than about a third is seldom harmless; see `Pruning`.
      half: store floating-point tensors as `float16` (or `True`) or `bfloat16`.
      rank: store the selected tensors as two factors of this rank; or, below 1, of the lowest rank that keeps this
        share of the squares of the weights.
      select: the tensors to compress.
      evaluate: inputs of the program by name and `labels`: the report has the accuracy before and after.

    Raises:
      ModelError: nothing was requested, or no tensor is eligible, or weights are not finite.
      DataError: the data to calibrate or evaluate with does not fit the program.
      CheckpointError: there is no checkpoint.
    """
    dtype = _checked(int8=int8, calibrate=calibrate, percentile=percentile, prune=prune, half=half, rank=rank)
    program, tensors, where, step = _opened(source, needs_program=calibrate is not None or evaluate is not None)
    chosen: frozenset[str] = frozenset()
    if int8 or prune is not None or rank is not None:
        chosen = _chosen(select or Selection(), tensors, "prune" if not int8 and rank is None else "quantise")
    _require_finite(tensors)
    axes = {} if program is None or not int8 else _axes(program)
    stored: dict[str, NDArray[Any]] = {}
    encodings: dict[str, Encoding] = {}
    for name, values in tensors.items():
        selected = name in chosen
        kept = encode.pruned(values, prune) if selected and prune is not None else values
        encodings[name], arrays = _encoded(name, kept, axes.get(name), selected, int8=int8, rank=rank, half=dtype)
        stored |= arrays
    compressed = Compressed(stored, encodings, source=where, global_step=step)
    if program is not None and calibrate is not None:
        pruned = program if prune is None else program.with_weights(compressed.tensors())
        compressed = replace(compressed, ranges=calibrated(pruned, chosen, calibrate, percentile))
    return replace(compressed, report=measured(tensors, compressed, program, evaluate))


def _chosen(select: Selection, tensors: Arrays, what_for: str) -> frozenset[str]:
    """Returns the names of the selected tensors."""
    chosen = select.require(_short(tensors), what_for)
    return frozenset(name for name in tensors if _short_name(name) in chosen)


def _encoded(
    name: str,
    values: NDArray[Any],
    axis: int | None,
    selected: bool,
    *,
    int8: bool,
    rank: float | None,
    half: str | None,
) -> tuple[Encoding, Arrays]:
    floating = jnp.issubdtype(values.dtype, jnp.floating)
    narrower = half if floating and half is not None and jnp.dtype(half).itemsize < values.dtype.itemsize else None
    if selected and rank is not None:
        factors = encode.low_rank(name, values, rank, narrower, integers=int8)
        if factors is not None:
            return factors
    made: tuple[Encoding, Arrays]
    if selected and int8:
        made = encode.int8(name, values, channel_axis(name, values.shape) if axis is None else axis)
    else:
        made = encode.plain(name, values, narrower)
    return encode.without_zeros(name, *made) if selected or floating else made


def _opened(
    source: InferenceProgram | Checkpoint | str | Path, *, needs_program: bool
) -> tuple[InferenceProgram | None, dict[str, NDArray[Any]], str, int]:
    """Returns the program, the tensors, a description of their source, and their global step."""
    if isinstance(source, InferenceProgram):
        tensors = {name: np.asarray(leaf) for name, leaf in source.weights.items()}
        return source, tensors, source.source, source.global_step
    if not isinstance(source, Checkpoint) and is_compressed(source):
        raise ModelError(f"{source} is already compressed; compress its original checkpoint.")
    if needs_program:
        raise ModelError(
            "to calibrate or to evaluate, compress needs a program, not just a checkpoint: give "
            "trainband.export.program_of(path, trainband.Predictor(function))."
        )
    checkpoint = source if isinstance(source, Checkpoint) else newest_checkpoint(Path(source))
    return None, weights_of(checkpoint), str(checkpoint.path), checkpoint.global_step


def _checked(
    *,
    int8: bool,
    calibrate: Arrays | None,
    percentile: float | None,
    prune: float | None,
    half: str | bool,
    rank: float | None,
) -> str | None:
    """Validates the arguments; returns the dtype of half precision, if any."""
    if not int8 and prune is None and not half and rank is None:
        raise ModelError("say how to compress: int8=True, prune=0.8, half=True or rank=16 (or several of them).")
    if calibrate is not None and not int8:
        raise ModelError("calibrate= needs int8=True: a calibration set is for products of 8-bit integers.")
    if percentile is not None and calibrate is None:
        raise ModelError("percentile= needs calibrate=: it is measured on a calibration set.")
    if prune is not None and not 0 < prune < 1:
        raise ModelError(f"prune must be a share of the weights, more than 0 and less than 1, got {prune!r}.")
    if rank is not None and (rank <= 0 or (rank > 1 and rank != int(rank))):
        raise ModelError(f"rank must be a whole number, or a share of the squares below 1, got {rank!r}.")
    dtype = "float16" if half is True else half or None
    if dtype is not None and dtype not in HALVES:
        raise ModelError(f"half must be one of {', '.join(HALVES)}, got {half!r}.")
    return dtype


def _axes(program: InferenceProgram) -> dict[str, int]:
    try:
        return channel_axes(program.function, program.weights, structs(program.signature.inputs))
    except DataError:
        raise
    except Exception as exc:
        raise ModelError(f"cannot trace the weights of {program.name}: {exc}") from exc


def _require_finite(tensors: Arrays) -> None:
    for name, values in tensors.items():
        if jnp.issubdtype(values.dtype, jnp.floating) and not np.isfinite(values.astype(np.float64)).all():
            raise ModelError(
                f"{name} has weights that are NaN or infinite; compress a checkpoint from before the training diverged."
            )


def _short_name(name: str) -> str:
    """Returns the user's name of a param: `hidden/kernel` for `params/hidden/kernel`."""
    return name.removeprefix("params/")


def _short(tensors: Arrays) -> dict[str, Any]:
    """Returns the params by their users' names; the model state by its full names."""
    return {_short_name(name): jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for name, leaf in tensors.items()}
