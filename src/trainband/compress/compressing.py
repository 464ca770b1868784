"""Compressing: a checkpoint, or a program with its weights, in fewer bytes."""

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
    """A model's tensors in fewer bytes, with a report of what that costs.

    Pruning comes first, then the low rank, then 8-bit integers, then half precision for what is none. What has zeros
    enough, such as a model that was trained with `Pruning`, is stored without them.

    Args:
      source: a program (`trainband.export.program_of(path, predictor)`); or a checkpoint, or a directory of them, whose
        weights are compressed without regard to what is computed with them.
      int8: store the selected tensors as 8-bit integers, symmetric, with one scale for each output channel. Of a
        program's weights that is the axis that its products keep; of others the last, or an embedding's rows.
      calibrate: inputs of the program by name, with as many examples as are typical (some hundreds): products of
        selected tensors are computed of 8-bit integers then, with scales of the activations measured on these.
      percentile: how scales of activations are measured: by the largest magnitude, or by a percentile of magnitudes.
      prune: set this share of each selected tensor's weights to 0, the smallest ones. Without training after it, more
        than a third or so is seldom harmless; see `Pruning`.
      half: store floating-point tensors as `float16` (or `True`) or `bfloat16`.
      rank: store the selected tensors as two factors of this rank; or, below 1, of the lowest rank that keeps this
        share of the squares of the weights.
      select: which tensors.
      evaluate: inputs of the program by name and `labels`: the report has the accuracy before and after.

    Raises:
      ModelError: nothing was asked for, or there is nothing to do it to; or weights are not finite.
      DataError: the data to calibrate or evaluate with does not fit the program.
      CheckpointError: there is no checkpoint.
    """
    select = select or Selection()
    dtype = _checked(int8=int8, calibrate=calibrate, percentile=percentile, prune=prune, half=half, rank=rank)
    program, tensors, where, step = _opened(source)
    if program is None and (calibrate is not None or evaluate is not None):
        raise ModelError(
            "to calibrate or to evaluate, compress needs a program and not only a checkpoint: give "
            "trainband.export.program_of(path, trainband.Predictor(function))."
        )
    chosen: frozenset[str] = frozenset()
    if int8 or prune is not None or rank is not None:
        chosen = frozenset(select.require(_short(tensors), "prune" if not int8 and rank is None else "quantise"))
        chosen = frozenset(name for name in tensors if _short_name(name) in chosen)
    _require_finite(tensors)
    axes = {} if program is None or not int8 else _axes(program)
    stored: dict[str, NDArray[Any]] = {}
    encodings: dict[str, Encoding] = {}
    for name, values in tensors.items():
        selected = name in chosen
        kept = encode.pruned(values, prune) if selected and prune is not None else values
        axis = axes.get(name, channel_axis(name, values.shape)) if selected else 0
        encodings[name], arrays = _encoded(name, kept, axis, selected, int8=int8, rank=rank, half=dtype)
        stored |= arrays
    compressed = Compressed(stored, encodings, source=where, global_step=step)
    if program is not None and calibrate is not None:
        pruned = program if prune is None else program.with_weights(compressed.tensors())
        ranges = calibrated(pruned, chosen, calibrate, percentile)
        compressed = replace(compressed, ranges=ranges)
    return replace(compressed, report=measured(tensors, compressed, program, evaluate))


def _encoded(
    name: str, values: NDArray[Any], axis: int, selected: bool, *, int8: bool, rank: float | None, half: str | None
) -> tuple[Encoding, Arrays]:
    floating = jnp.issubdtype(values.dtype, jnp.floating)
    narrower = half if floating and half is not None and jnp.dtype(half).itemsize < values.dtype.itemsize else None
    if selected and rank is not None:
        factors = encode.low_rank(name, values, rank, narrower, integers=int8)
        if factors is not None:
            return factors
    made: tuple[Encoding, Arrays]
    made = encode.int8(name, values, axis) if selected and int8 else encode.plain(name, values, narrower)
    return encode.without_zeros(name, *made) if selected or floating else made


def _opened(
    source: InferenceProgram | Checkpoint | str | Path,
) -> tuple[InferenceProgram | None, dict[str, NDArray[Any]], str, int]:
    """(the program, the tensors, where they come from in words, their global step)."""
    if isinstance(source, InferenceProgram):
        tensors = {name: np.asarray(leaf) for name, leaf in source.weights.items()}
        return source, tensors, source.source, source.global_step
    if not isinstance(source, Checkpoint) and is_compressed(source):
        raise ModelError(f"{source} is compressed already; compress the checkpoint that it was made of.")
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
    """The dtype of half precision, if any."""
    if not int8 and prune is None and not half and rank is None:
        raise ModelError("say how to compress: int8=True, prune=0.8, half=True or rank=16 (or several of them).")
    if calibrate is not None and not int8:
        raise ModelError("a calibration set is for products of 8-bit integers; give int8=True with it.")
    if percentile is not None and calibrate is None:
        raise ModelError("a percentile is of activations on a calibration set; give calibrate= with it.")
    if prune is not None and not 0 < prune < 1:
        raise ModelError(f"prune is a share of the weights, more than 0 and less than 1, got {prune!r}.")
    if rank is not None and (rank <= 0 or (rank > 1 and rank != int(rank))):
        raise ModelError(f"rank is a whole number, or a share of the squares below 1, got {rank!r}.")
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
        raise ModelError(f"the weights of {program.name} cannot be followed through it: {exc}") from exc


def _require_finite(tensors: Arrays) -> None:
    for name, values in tensors.items():
        if jnp.issubdtype(values.dtype, jnp.floating) and not np.isfinite(values.astype(np.float64)).all():
            raise ModelError(
                f"{name} has weights that are NaN or infinite; compress a checkpoint from before the training diverged."
            )


def _short_name(name: str) -> str:
    """`hidden/kernel` of `params/hidden/kernel`: what a user calls it."""
    return name.removeprefix("params/")


def _short(tensors: Arrays) -> dict[str, Any]:
    """The params, by the names that users call them; the model state by its full ones."""
    return {_short_name(name): jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for name, leaf in tensors.items()}
