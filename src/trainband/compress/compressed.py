"""Compressed: a model's tensors in fewer bytes, in memory and as a directory.

The directory has two files: `weights.safetensors`, the stored arrays, and `compressed.json`: how each tensor is stored,
the source of the weights, the ranges of activations, and the report.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from numpy.typing import NDArray

from trainband.checkpoint.disk import refusal
from trainband.checkpoint.new_directory import new_directory
from trainband.compress.activations import Integers
from trainband.compress.encoding import plain
from trainband.compress.encodings import Encoding, Int8, Sparse
from trainband.compress.products import walked
from trainband.compress.report import Report
from trainband.errors import ModelMismatch, YourError
from trainband.model.inference import InferenceProgram, Tensors
from trainband.model.weights_file import write_weights
from trainband.runtime.regular_files import fixed_path, read_regular

FORMAT_VERSION = 1
WEIGHTS, RECORD = "weights.safetensors", "compressed.json"
MOST_RECORD_BYTES = 64 << 20
"""Size of the record, which lists every tensor."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of `compressed.json`.

    Attributes:
      trainband_compressed: the version of this format.
      source, global_step: of the weights.
      tensors: how each is stored.
      ranges: the largest magnitude of activations, by the tensor that they are multiplied by.
      report: the cost of the compression.
    """

    trainband_compressed: int
    source: str
    global_step: int
    tensors: dict[str, Encoding]
    ranges: dict[str, float] = {}
    report: Report | None = None


@dataclass(frozen=True, slots=True)
class Compressed:
    """A model's tensors in fewer bytes.

    Attributes:
      stored: the stored arrays by name.
      encodings: how each tensor of the checkpoint is stored in them.
      ranges: the largest magnitude of activations, by the tensor that they are multiplied by; empty if only weights
        are compressed.
      source, global_step: of the weights.
      report: the cost of the compression, if measured.
    """

    stored: Mapping[str, NDArray[Any]]
    encodings: Mapping[str, Encoding]
    ranges: Mapping[str, float] = field(default_factory=dict)
    source: str = ""
    global_step: int = 0
    report: Report | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the stored arrays."""
        return sum(array.nbytes for array in self.stored.values())

    @property
    def shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        """The shapes and dtypes of the checkpoint's tensors."""
        return {name: jax.ShapeDtypeStruct(one.shape, jnp.dtype(one.dtype)) for name, one in self.encodings.items()}

    def decode(self, stored: Tensors) -> dict[str, Any]:
        """Decodes the checkpoint's tensors from the stored arrays; traceable."""
        return {name: one.decode(name, stored) for name, one in self.encodings.items()}

    def tensors(self) -> dict[str, NDArray[Any]]:
        """Returns the checkpoint's tensors after compression."""
        one = self.unpacked()
        decoded: dict[str, NDArray[Any]] = jax.tree.map(np.asarray, jax.jit(one.decode)(dict(one.stored)))
        return decoded

    def program(self, program: InferenceProgram) -> InferenceProgram:
        """Returns a program with these weights, which it decodes when it runs.

        With ranges of activations, products by 8-bit weights are computed from 8-bit integers, except in loops and
        conditions (`jax.lax.scan`, `while_loop`, `cond`).

        Args:
          program: of the checkpoint's tensors; only their shapes matter.

        Raises:
          ModelMismatch: it is of another model.
        """
        shapes = self.shapes
        for name, leaf in program.weights.items():
            found = shapes.get(name)
            if found is None or (found.shape, found.dtype) != (tuple(leaf.shape), jnp.dtype(leaf.dtype)):
                raise ModelMismatch(
                    f"{self.source or 'the compressed model'} is of another model than {program.name}: "
                    f"{name} is {leaf.dtype}{list(leaf.shape)} there"
                    + ("." if found is None else f", but {found.dtype}{list(found.shape)} here.")
                )
        return replace(
            program.with_weights(self.stored, self._function(program.function)),
            source=self.source,
            global_step=self.global_step,
        )

    def _function(self, function: Callable[..., dict[str, Any]]) -> Callable[[Tensors, Tensors], dict[str, Any]]:
        if not self.ranges:
            return lambda stored, inputs: function(self.decode(stored), inputs)
        dtypes = {name: one.dtype for name, one in self.encodings.items()}

        def quantised(stored: Tensors, inputs: Tensors) -> dict[str, Any]:
            tensors = {name: _kept(one, name, stored) for name, one in self.encodings.items()}
            found: dict[str, Any] = walked(function, tensors, Integers(self.ranges), dict(inputs), dtypes=dtypes)
            return found

        return quantised

    def unpacked(self) -> Compressed:
        """Returns the same model without bitmaps: larger but faster to decode, for a program that runs many times."""
        stored, encodings = dict(self.stored), dict(self.encodings)
        for name, one in self.encodings.items():
            if not isinstance(one, Sparse):
                continue
            dense = _dense(one, name, self.stored)
            parts = {part: stored.pop(part) for part in one.parts(name)}
            if one.stored == "int8":
                encodings[name] = Int8(one.shape, one.dtype, one.axis)
                stored |= {f"{name}/values": dense, f"{name}/scale": parts[f"{name}/scale"]}
            else:
                made, arrays = plain(name, dense)
                encodings[name] = msgspec.structs.replace(made, dtype=one.dtype)
                stored |= arrays
        return replace(self, stored=stored, encodings=encodings)

    def save(self, out: str | Path, *, force: bool = False) -> Path:
        """Writes the directory `out`, which appears complete or not at all.

        Raises:
          YourError: `out` exists, and must not be replaced.
          CheckpointError: the file system refuses.
        """
        out = Path(out)
        record = Record(
            trainband_compressed=FORMAT_VERSION,
            source=self.source,
            global_step=self.global_step,
            tensors=dict(self.encodings),
            ranges=dict(self.ranges),
            report=self.report,
        )
        try:
            with new_directory(out, mark=RECORD, what="a compressed model", force=force) as directory:
                write_weights(directory / WEIGHTS, self.stored)
                (directory / RECORD).write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")
        except OSError as exc:
            raise refusal("write", out, exc, self.nbytes) from exc
        return out


def is_compressed(path: str | Path) -> bool:
    """Whether a directory was written by `Compressed.save`."""
    return (Path(path) / RECORD).is_file()


def load(path: str | Path) -> Compressed:
    """Reads a compressed model.

    Raises:
      YourError: there is none, or it is damaged, or a newer trainband wrote it.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    directory = Path(path)
    try:
        record = msgspec.json.decode(read_regular(directory / RECORD, MOST_RECORD_BYTES), type=Record)
        if not (directory / WEIGHTS).resolve().is_relative_to(directory.resolve()):
            raise ValueError(f"{WEIGHTS} is a link that leads out of it")
        with fixed_path(directory / WEIGHTS) as weights:
            stored = load_file(weights)
        wanted = {name: encoding.parts(name) for name, encoding in record.tensors.items()}
    except OSError as exc:
        raise YourError(f"{directory} is not a compressed model: {exc.strerror or exc}.") from exc
    except (msgspec.MsgspecError, SafetensorError, ValueError, LookupError, TypeError, RecursionError) as exc:
        raise YourError(f"{directory} is a damaged compressed model: {exc}. Compress the checkpoint again.") from exc
    if record.trainband_compressed > FORMAT_VERSION:
        raise YourError(f"{directory} was written by a newer trainband; upgrade this one.")
    for name, encoding in record.tensors.items():
        for part, (shape, dtype) in wanted[name].items():
            found = stored.get(part)
            if found is None or found.shape != shape or found.dtype.name != dtype:
                what = "missing" if found is None else f"{found.dtype}{list(found.shape)}"
                raise YourError(
                    f"{directory} is a damaged compressed model: {part} is {what}, but should be "
                    f"{dtype}{list(shape)}. Compress the checkpoint again."
                )
        if isinstance(encoding, Sparse) and _bits_set(stored[f"{name}/bitmap"]) > encoding.count:
            # Decoding does not check bounds, so it would read beyond the values.
            raise YourError(
                f"{directory} is a damaged compressed model: the bitmap of {name} has more bits than there are values. "
                "Compress the checkpoint again."
            )
    return Compressed(stored, record.tensors, record.ranges, record.source, record.global_step, record.report)


def _bits_set(bitmap: NDArray[Any]) -> int:
    return int(np.bitwise_count(bitmap).sum(dtype=np.int64))


def _dense(encoding: Sparse, name: str, stored: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    """Returns a tensor's values, including the zeros, on the host."""
    values, size = stored[f"{name}/values"], math.prod(encoding.shape)
    dense = np.zeros(size, values.dtype)
    dense[np.unpackbits(stored[f"{name}/bitmap"], count=size, bitorder="little") != 0] = values[: encoding.count]
    return dense.reshape(encoding.shape)


def _kept(encoding: Encoding, name: str, stored: Tensors) -> Any:
    """Returns a tensor as integers with their scales if stored so; else as floats."""
    if isinstance(encoding, Int8) or (isinstance(encoding, Sparse) and encoding.stored == "int8"):
        return encoding.scaled(name, stored)
    return encoding.decode(name, stored)
