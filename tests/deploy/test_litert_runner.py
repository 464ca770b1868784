"""The command-line runner of LiteRT files: what it prints is what the model computes."""

from __future__ import annotations

import importlib.util
import re
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from types import ModuleType
from typing import Any

import flatbuffers  # type: ignore[import-untyped]
import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema
from numpy.typing import NDArray

RUNNER = Path(__file__).parents[2] / "deploy" / "devices" / "run_litert.py"
CLASSES = 10


def runner() -> ModuleType:
    """The runner, as a module."""
    spec = importlib.util.spec_from_file_location("run_litert", RUNNER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def weights() -> NDArray[np.float32]:
    """float32[10, 4]."""
    return np.random.default_rng(0).standard_normal((CLASSES, 4)).astype(np.float32)


def write_model(path: Path, batch: int) -> None:
    """A LiteRT file: images float32[batch, 2, 2] -> softmax(weights @ pixels), made without a converter.

    Args:
      path: to write.
      batch: -1 for any.
    """

    def tensor(name: str, shape: list[int], buffer: int) -> Any:
        made = schema.TensorT()
        made.name, made.buffer, made.type = name.encode(), buffer, schema.TensorType.FLOAT32
        made.shape = [abs(length) for length in shape]
        if -1 in shape:
            made.shapeSignature = shape
        return made

    def operator(index: int, inputs: list[int], output: int, kind: int, options: Any) -> Any:
        made = schema.OperatorT()
        made.opcodeIndex, made.inputs, made.outputs = index, inputs, [output]
        made.builtinOptionsType, made.builtinOptions = kind, options
        return made

    def code(builtin: int) -> Any:
        made = schema.OperatorCodeT()
        made.builtinCode, made.deprecatedBuiltinCode, made.version = builtin, builtin, 1
        return made

    def buffer(array: NDArray[Any] | None) -> Any:
        made = schema.BufferT()
        made.data = None if array is None else np.frombuffer(array.tobytes(), np.uint8)
        return made

    def named(name: str, index: int) -> Any:
        made = schema.TensorMapT()
        made.name, made.tensorIndex = name.encode(), index
        return made

    reshape, softmax = schema.ReshapeOptionsT(), schema.SoftmaxOptionsT()
    reshape.newShape, softmax.beta = [-1, 4], 1.0
    target = tensor("shape", [2], 2)
    target.type = schema.TensorType.INT32
    graph = schema.SubGraphT()
    graph.tensors = [
        tensor("images", [batch, 2, 2], 0),
        tensor("weights", [CLASSES, 4], 1),
        target,
        tensor("flat", [batch, 4], 0),
        tensor("logits", [batch, CLASSES], 0),
        tensor("probabilities", [batch, CLASSES], 0),
    ]
    graph.inputs, graph.outputs = [0], [5]
    options = schema.BuiltinOptions
    graph.operators = [
        operator(0, [0, 2], 3, options.ReshapeOptions, reshape),
        operator(1, [3, 1, -1], 4, options.FullyConnectedOptions, schema.FullyConnectedOptionsT()),
        operator(2, [4], 5, options.SoftmaxOptions, softmax),
    ]
    signature = schema.SignatureDefT()
    signature.signatureKey, signature.subgraphIndex = b"serving_default", 0
    signature.inputs, signature.outputs = [named("images", 0)], [named("probabilities", 5)]
    model = schema.ModelT()
    model.version, model.subgraphs, model.signatureDefs = 3, [graph], [signature]
    model.buffers = [buffer(None), buffer(weights()), buffer(np.array([-1, 4], np.int32))]
    builtin = schema.BuiltinOperator
    model.operatorCodes = [code(builtin.RESHAPE), code(builtin.FULLY_CONNECTED), code(builtin.SOFTMAX)]
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    path.write_bytes(bytes(builder.Output()))


def expected(images: NDArray[Any]) -> NDArray[np.float32]:
    """What the model is to compute."""
    logits: NDArray[Any] = images.reshape(len(images), 4).astype(np.float32) @ weights().T
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    result: NDArray[np.float32] = powers / powers.sum(axis=1, keepdims=True)
    return result


def png(pixels: NDArray[np.uint8], filters: list[int]) -> bytes:
    """A PNG of uint8[height, width, channels], with the filter of each row."""
    height, width, channels = pixels.shape
    rows = []
    for row, kind in enumerate(filters):
        line = pixels[row].reshape(-1).astype(int)
        up = pixels[row - 1].reshape(-1).astype(int) if row else np.zeros_like(line)
        left = np.concatenate([np.zeros(channels, int), line[:-channels]])
        corner = np.concatenate([np.zeros(channels, int), up[:-channels]])
        near = np.stack([left, up, corner])
        paeth = np.take_along_axis(near, np.abs(left + up - corner - near).argmin(axis=0)[None], axis=0)[0]
        guess = [np.zeros_like(line), left, up, (left + up) // 2, paeth][kind]
        rows.append(bytes([kind]) + ((line - guess) % 256).astype(np.uint8).tobytes())

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    colour = {1: 0, 2: 4, 3: 2, 4: 6}[channels]
    header = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    data = zlib.compress(b"".join(rows))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


@pytest.mark.smoke
@pytest.mark.parametrize("batch", [-1, 2])
def test_the_runner_prints_what_the_model_computes(tmp_path: Path, batch: int) -> None:
    write_model(tmp_path / "model.tflite", batch)
    images = np.random.default_rng(1).integers(0, 3, (3, 2, 2)).astype(np.uint8)
    np.save(tmp_path / "images.npy", images)
    (tmp_path / "names.txt").write_text("\n".join(f"class-{number}" for number in range(CLASSES)), encoding="utf-8")
    command = [sys.executable, RUNNER, tmp_path, tmp_path / "images.npy", "--top", "2", "--benchmark", "5"]
    done = subprocess.run([*map(str, command), "--labels", str(tmp_path / "names.txt")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    about, *lines, timing = done.stdout.splitlines()
    assert f"images: float32[{'?' if batch == -1 else batch}, 2, 2] -> probabilities: float32[" in about
    for number, (line, row) in enumerate(zip(lines, expected(images), strict=True)):
        first, second = np.argsort(-row)[:2]
        assert line == f"example {number}: class-{first} ({row[first]:.1%}), class-{second} ({row[second]:.1%})"
    assert re.fullmatch(
        r"5 runs: median [\d.]+ ms, 90% within .* ms, 99% within .* ms, fastest .* ms; 1 thread", timing
    )


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_a_png_is_read_whatever_its_filters(channels: int) -> None:
    pixels = np.random.default_rng(2).integers(0, 256, (5, 7, channels)).astype(np.uint8)
    read = runner().read_png(png(pixels, [0, 1, 2, 3, 4]))
    if channels in (2, 4):
        pixels = np.rint(pixels[..., :-1] * (pixels[..., -1:] / 255)).astype(np.uint8)
    assert np.array_equal(read, pixels)


def test_a_netpbm_image_is_read() -> None:
    assert runner().read_netpbm(b"P5\n# by hand\n3 1\n255\n\x01\x0a\x20").tolist() == [[[1], [10], [32]]]
    assert runner().read_netpbm(b"P6 1 1 255\nabc").tolist() == [[[97, 98, 99]]]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.npy",
            np.zeros((1, 3, 2), np.float32),
            r"images is float32\[1, 3, 2\]; .* wants images: float32\[\?",
        ),
        ("a.npy", np.zeros((0, 2, 2), np.float32), r"images is float32\[0, 2, 2\]"),
        ("a.npz", {"pictures": np.zeros((1, 2, 2), np.float32)}, "the inputs given are pictures; .* wants images"),
        ("a.npy", np.zeros((1, 2, 2), np.complex64), "images is complex64, and .* wants float32"),
        ("a.png", b"GIF89a", "a.png cannot be read: it is no PNG"),
        ("a.png", png(np.zeros((2, 2, 1), np.uint8), [0, 0])[:50], "a.png cannot be read"),
        ("a.pgm", b"P5\n2", "a.pgm cannot be read: its header ends too soon"),
        ("a.pgm", b"P5\n2 2\n255\n\x01", "a.pgm cannot be read"),
        ("a.gif", b"GIF89a", "a.gif is no .npy, .npz, .png, .pgm or .ppm"),
        ("a.npy", b"nothing", "a.npy cannot be read"),
    ],
)
def test_what_does_not_fit_is_said(tmp_path: Path, name: str, content: Any, message: str) -> None:
    module = runner()
    write_model(tmp_path / "model.tflite", -1)
    path = tmp_path / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, dict):
        np.savez(path, **content)
    else:
        np.save(path, content)
    model = module.LiteRTModel(tmp_path)
    with pytest.raises(module.InputError, match=message):
        model.run(module.read_inputs(path, model, 1.0))


def test_a_file_that_is_none_is_said(tmp_path: Path) -> None:
    module = runner()
    (tmp_path / "model.tflite").write_bytes(b"nothing at all")
    with pytest.raises(module.InputError, match="is no LiteRT file"):
        module.LiteRTModel(tmp_path)
    with pytest.raises(module.InputError, match="there is no file"):
        module.LiteRTModel(tmp_path / "other.tflite")
