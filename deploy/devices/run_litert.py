"""Runs a LiteRT file (.tflite) with only NumPy and ai-edge-litert: on a Raspberry Pi, or to simulate a device.

    python run_litert.py digits/model.tflite digit.png
    python run_litert.py digits/model.tflite images.npz --top 3 --labels names.txt
    python run_litert.py digits/model.tflite --benchmark 1000 --threads 4

The input is an .npy with a batch, an .npz with one array for each input by name, or an 8-bit PNG, PGM or PPM image of
the size that the model expects. Without an input, random values are run.
"""

from __future__ import annotations

import argparse
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Arrays = Mapping[str, Array]

WARM_UP = 20
"""Untimed runs: the first ones allocate memory and wake the CPU."""
_CHANNELS = {0: 1, 2: 3, 4: 2, 6: 4}
"""Of PNG's colour types; a palette is not among them."""


class InputError(Exception):
    """The input is invalid; the message is a sentence for the user."""


class LiteRTModel:
    """A file, loaded.

    Args:
      path: of the file, or of the directory that `trainband export --to litert` wrote.
      threads: of the CPU.

    Attributes:
      inputs, outputs: by name, with `dtype` and `shape_signature`, in which -1 is a length that may change.
      load_ms: what loading took.

    Raises:
      InputError: it is no LiteRT file.
    """

    def __init__(self, path: Path, threads: int = 1) -> None:
        from ai_edge_litert.interpreter import Interpreter

        self.path = path / "model.tflite" if path.is_dir() else path
        if not self.path.is_file():
            raise InputError(f"there is no file {self.path}.")
        began = time.perf_counter()
        try:
            interpreter = Interpreter(model_path=str(self.path), num_threads=threads)
        except ValueError as exc:
            raise InputError(f"{self.path} is no LiteRT file: {exc}") from exc
        names = list(interpreter.get_signature_list())
        if not names:
            raise InputError(f"{self.path} has no signature, so that its inputs have no names; export it again.")
        self._runner = interpreter.get_signature_runner("serving_default" if "serving_default" in names else names[0])
        self.inputs: Mapping[str, Any] = self._runner.get_input_details()
        self.outputs: Mapping[str, Any] = self._runner.get_output_details()
        self.load_ms = 1e3 * (time.perf_counter() - began)

    @property
    def batch(self) -> int | None:
        """How many examples every run has; `None` for any number."""
        lengths = {int(detail["shape_signature"][0]) for detail in self.inputs.values()}
        (length,) = lengths if len(lengths) == 1 else (-1,)
        return None if length == -1 else length

    def run(self, inputs: Arrays) -> dict[str, Array]:
        """Outputs of any number of examples: all at once, or in batches of the size that the file has.

        Raises:
          InputError: an input is missing, unknown, or of another shape or dtype.
        """
        arrays = self._checked(inputs)
        count = len(next(iter(arrays.values())))
        size = self.batch or count
        parts = []
        for start in range(0, count, size):
            part = {name: _padded(array[start : start + size], size) for name, array in arrays.items()}
            parts.append({name: array.copy() for name, array in self._runner(**part).items()})
        return {name: np.concatenate([part[name] for part in parts])[:count] for name in parts[0]}

    def random(self, count: int) -> dict[str, Array]:
        """So many examples of random values: 0 to 255, as pixels have."""
        random = np.random.default_rng(0)
        found = {}
        for name, detail in self.inputs.items():
            shape = [count, *(abs(int(length)) for length in detail["shape_signature"][1:])]
            found[name] = random.integers(0, 256, shape).astype(detail["dtype"])
        return found

    def _checked(self, inputs: Arrays) -> dict[str, Array]:
        wanted = "; ".join(described(name, detail) for name, detail in self.inputs.items())
        if inputs.keys() != self.inputs.keys():
            raise InputError(f"the inputs given are {', '.join(inputs)}; {self.path} wants {wanted}.")
        found = {}
        for name, array in inputs.items():
            detail = self.inputs[name]
            shape = [int(length) for length in detail["shape_signature"]]
            fits = array.ndim == len(shape) and all(
                want in (-1, length) for want, length in zip(shape[1:], array.shape[1:], strict=True)
            )
            if not fits or not len(array):
                raise InputError(f"{name} is {array.dtype}{list(array.shape)}; {self.path} wants {wanted}.")
            if not np.can_cast(array.dtype, detail["dtype"], "same_kind"):
                raise InputError(f"{name} is {array.dtype}, and {self.path} wants {np.dtype(detail['dtype']).name}.")
            found[name] = np.ascontiguousarray(array, detail["dtype"])
        return found


def described(name: str, detail: Mapping[str, Any]) -> str:
    """A tensor in words, such as `images: float32[?, 28, 28]`."""
    shape = ", ".join("?" if length == -1 else str(length) for length in detail["shape_signature"])
    return f"{name}: {np.dtype(detail['dtype']).name}[{shape}]"


def _padded(array: Array, size: int) -> Array:
    missing = size - len(array)
    return np.concatenate([array, np.repeat(array[-1:], missing, axis=0)]) if missing else array


def read_inputs(path: Path, model: LiteRTModel, scale: float) -> dict[str, Array]:
    """What is in a file, for the inputs of a model.

    Args:
      path: .npy, .npz, .png, .pgm or .ppm.
      model: that is to take it.
      scale: by which pixels are divided.

    Raises:
      InputError: the file cannot be read, or a model of several inputs needs an .npz.
    """
    try:
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as arrays:
                return dict(arrays)
        if len(model.inputs) != 1:
            raise InputError(f"{model.path} has {len(model.inputs)} inputs ({', '.join(model.inputs)}): give an .npz.")
        ((name, detail),) = model.inputs.items()
        if path.suffix == ".npy":
            return {name: np.load(path, allow_pickle=False)}
        readers: dict[str, Callable[[bytes], Array]] = {".png": read_png, ".pgm": read_netpbm, ".ppm": read_netpbm}
        if path.suffix not in readers:
            raise InputError(f"{path} is no .npy, .npz, .png, .pgm or .ppm.")
        image = readers[path.suffix](path.read_bytes())
    except (OSError, ValueError, EOFError, zlib.error) as exc:
        raise InputError(f"{path} cannot be read: {exc}") from exc
    return {name: _as_input(image, detail, scale)}


def _as_input(image: Array, detail: Mapping[str, Any], scale: float) -> Array:
    """uint8[height, width, channels] as a batch of one, with the channels that the model wants."""
    shape = [int(length) for length in detail["shape_signature"]]
    channels = shape[-1] if len(shape) == 4 else 1
    if channels == 1 and image.shape[-1] == 3:
        image = np.rint(image @ np.array([0.299, 0.587, 0.114])).astype(np.uint8)[..., None]
    elif channels == 3 and image.shape[-1] == 1:
        image = np.repeat(image, 3, axis=-1)
    pixels = image if scale == 1 else (image / scale).astype(np.float32)
    return pixels[None] if len(shape) == 4 else pixels[None, ..., 0]


def read_netpbm(data: bytes) -> Array:
    """uint8[height, width, 1 or 3] of a binary PGM or PPM file.

    Raises:
      ValueError: it is none.
    """
    kinds = {b"P5": 1, b"P6": 3}
    fields: list[bytes] = []
    at = 0
    while len(fields) < 4:
        end = at
        if data[at : at + 1] == b"#":
            at = data.index(b"\n", at) + 1
            continue
        while end < len(data) and not data[end : end + 1].isspace():
            end += 1
        if end > at:
            fields.append(data[at:end])
        at = end + 1
        if at > len(data):
            raise ValueError("its header ends too soon.")
    kind, width, height, largest = fields
    if kind not in kinds or int(largest) != 255:
        raise ValueError("only binary PGM and PPM files of 8 bits (P5 and P6, 255) are read.")
    shape = (int(height), int(width), kinds[kind])
    return np.frombuffer(data, np.uint8, int(np.prod(shape)), at).reshape(shape)


def read_png(data: bytes) -> Array:
    """uint8[height, width, 1 or 3] of a PNG of 8 bits a channel; what is transparent is laid on black.

    Source: PNG specification, third edition, sections 5 and 9 (W3C 2025).

    Raises:
      ValueError: it is none, is interlaced, or has a palette or other than 8 bits.
    """
    if not data.startswith(b"\x89PNG\r\n\x1a\n"):
        raise ValueError("it is no PNG.")
    chunks = list(_chunks(data))
    if not chunks or chunks[0][0] != b"IHDR":
        raise ValueError("it has no header.")
    header = chunks[0][1]
    width, height = int.from_bytes(header[:4], "big"), int.from_bytes(header[4:8], "big")
    depth, colour, interlaced = header[8], header[9], header[12]
    if depth != 8 or colour not in _CHANNELS or interlaced:
        raise ValueError("only PNGs of 8 bits, without palette and interlacing, are read; save it as one.")
    channels = _CHANNELS[colour]
    raw = zlib.decompress(b"".join(content for kind, content in chunks if kind == b"IDAT"))
    rows = np.frombuffer(raw, np.uint8, height * (1 + width * channels)).reshape(height, -1)
    image = np.zeros((height + 1, (width + 1) * channels), np.int32)  # a row above, and a pixel to the left, of zeros
    for row, (filter_type, *line) in enumerate(rows.tolist(), start=1):
        _unfilter(filter_type, np.array(line, np.int32), image[row - 1], image[row], channels)
    pixels = image[1:, channels:].reshape(height, width, channels).astype(np.uint8)
    if channels in (1, 3):
        return pixels
    return np.rint(pixels[..., :-1] * (pixels[..., -1:] / 255)).astype(np.uint8)


def _chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = 8
    while at + 8 <= len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        content = data[at + 8 : at + 8 + length]
        if len(content) < length:
            raise ValueError("it ends too soon.")
        yield data[at + 4 : at + 8], content
        at += 12 + length


def _unfilter(kind: int, line: Array, above: Array, row: Array, channels: int) -> None:
    """Writes a row whose bytes were stored as differences from their neighbours."""
    if kind == 0:
        row[channels:] = line
    elif kind == 2:
        row[channels:] = (line + above[channels:]) % 256
    elif kind in (1, 3, 4):
        for at in range(channels, len(row)):
            left, up, corner = int(row[at - channels]), int(above[at]), int(above[at - channels])
            if kind == 1:
                guess = left
            elif kind == 3:
                guess = (left + up) // 2
            else:
                far = left + up - corner
                guess = min((left, up, corner), key=lambda value: abs(far - value))
            row[at] = (line[at - channels] + guess) % 256
    else:
        raise ValueError(f"it has a filter of type {kind}.")


def top_classes(scores: Array, count: int, names: list[str]) -> list[str]:
    """For each example, its best classes, as probabilities where the scores are some, else as they are.

    Args:
      scores: [examples, classes].
      count: of classes to tell of.
      names: of the classes; their numbers where there are none.
    """
    probabilities = bool((scores >= 0).all() and np.allclose(scores.sum(axis=1), 1, atol=1e-2))
    lines = []
    for number, row in enumerate(scores):
        best = np.argsort(-row, kind="stable")[:count]
        parts = [
            f"{names[at] if at < len(names) else at} ({f'{row[at]:.1%}' if probabilities else f'{row[at]:.4g}'})"
            for at in best
        ]
        lines.append(f"example {number}: {', '.join(parts)}")
    return lines


def benchmark(model: LiteRTModel, inputs: Arrays, runs: int) -> str:
    """The latency of one run, in words."""
    for _ in range(WARM_UP):
        model.run(inputs)
    seconds = np.empty(runs)
    for number in range(runs):
        began = time.perf_counter()
        model.run(inputs)
        seconds[number] = time.perf_counter() - began
    median, most, nearly_all = 1e3 * np.quantile(seconds, (0.5, 0.9, 0.99))
    return (
        f"{runs} runs: median {median:.3f} ms, 90% within {most:.3f} ms, 99% within {nearly_all:.3f} ms, "
        f"fastest {1e3 * seconds.min():.3f} ms"
    )


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path, help="a .tflite, or the directory of an export")
    parser.add_argument("input", type=Path, nargs="?", help="an .npy, .npz, .png, .pgm or .ppm; random without")
    parser.add_argument("--output", help="which output has the classes  [default: the first]")
    parser.add_argument("--top", type=int, default=3, help="classes to show  [default: 3]")
    parser.add_argument("--labels", type=Path, help="a file with the name of a class in each line")
    parser.add_argument("--scale", type=float, default=1.0, help="pixels are divided by it  [default: 1]")
    parser.add_argument("--threads", type=int, default=1, help="of the CPU  [default: 1]")
    parser.add_argument("--benchmark", type=int, default=0, metavar="N", help="time N runs of the first example")
    flags = parser.parse_args(arguments)
    if flags.top < 1 or flags.threads < 1 or flags.benchmark < 0 or flags.scale <= 0:
        parser.error("--top, --threads and --scale must be greater than 0, and --benchmark not negative")

    model = LiteRTModel(flags.model, flags.threads)
    takes, gives = (
        ", ".join(described(name, detail) for name, detail in details.items())
        for details in (model.inputs, model.outputs)
    )
    print(f"{model.path}: {model.path.stat().st_size:,} bytes, loaded in {model.load_ms:.1f} ms; {takes} -> {gives}")
    if flags.input is not None:
        inputs = read_inputs(flags.input, model, flags.scale)
        output = flags.output or next(iter(model.outputs))
        if output not in model.outputs:
            raise InputError(f"there is no output {output!r}; there is {', '.join(model.outputs)}.")
        names = flags.labels.read_text(encoding="utf-8").splitlines() if flags.labels else []
        scores = model.run(inputs)[output]
        print("\n".join(top_classes(scores.reshape(len(scores), -1), flags.top, names)))
    else:
        inputs = model.random(model.batch or 1)
        model.run(inputs)
    if flags.benchmark:
        first = {name: array[: model.batch or 1] for name, array in inputs.items()}
        print(f"{benchmark(model, first, flags.benchmark)}; {flags.threads} thread{'s' * (flags.threads != 1)}")


if __name__ == "__main__":
    try:
        main()
    except (InputError, OSError) as error:
        sys.exit(f"error: {error}")
