"""Decoding and encoding of images, by Pillow."""

from __future__ import annotations

import importlib
import io
from typing import Any

import numpy as np

from trainband.compat.ops.dtypes import as_dtype, string, uint8
from trainband.compat.tf1.graphs.errors import InvalidArgumentError, UnimplementedError
from trainband.compat.tf1.graphs.graph import Tensor
from trainband.compat.tf1.graphs.hosted import record_source
from trainband.compat.tf1.graphs.record import convert

_MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}


def _pillow() -> Any:
    try:
        return importlib.import_module("PIL.Image")
    except ImportError as exc:
        raise UnimplementedError(None, None, "Decoding and encoding images needs Pillow: pip install pillow") from exc


def _opened(content: Any) -> Any:
    image = _pillow()
    try:
        return image.open(io.BytesIO(content.item()))
    except (OSError, SyntaxError, ValueError) as exc:
        raise InvalidArgumentError(None, None, f"Unknown image file format, or a damaged image: {exc}") from exc


def _pixels(picture: Any, channels: int, kind: Any) -> Any:
    wide = picture.mode.startswith("I") and kind == np.uint16
    if not wide:
        own = {"1": 1, "L": 1, "I": 1, "F": 1, "LA": 2, "RGBA": 4}.get(picture.mode, 3)
        if picture.mode == "P" and "transparency" in picture.info:
            own = 4
        picture = picture.convert(_MODES[channels or own])
    try:
        found = np.asarray(picture)
    except OSError as exc:
        raise InvalidArgumentError(None, None, f"A damaged image: {exc}") from exc
    found = found[..., None] if found.ndim == 2 else found
    return found.astype(kind) * (257 if kind == np.uint16 and not wide else 1)


def _decoded(contents: Any, channels: int | None, dtype: Any, name: str | None, type_: str) -> Tensor:
    many, kind = channels or 0, as_dtype(dtype)
    if many not in (0, 1, 3, 4):
        raise ValueError(f"channels must be 0, 1, 3, or 4, got {many}")

    def decode(_: Any, content: Any) -> list[Any]:
        return [_pixels(_opened(content), many, kind.numpy)]

    return record_source(
        type_, decode, [convert(contents, string)], dtypes=[kind], shapes=[[None, None, many or None]], name=name
    ).outputs[0]


def decode_png(contents: Any, channels: int = 0, dtype: Any = uint8, name: str | None = None) -> Tensor:
    """A PNG image: [height, width, channels].

    Raises:
      InvalidArgumentError (in a run): it is none.
      UnimplementedError (in a run): Pillow is not installed.
    """
    return _decoded(contents, channels, dtype, name, "DecodePng")


def decode_jpeg(
    contents: Any,
    channels: int = 0,
    ratio: int = 1,
    fancy_upscaling: bool = True,
    try_recover_truncated: bool = False,
    acceptable_fraction: float = 1,
    dct_method: str = "",
    name: str | None = None,
) -> Tensor:
    """A JPEG image: [height, width, channels]; with `ratio`, only every so many pixels."""
    del fancy_upscaling, try_recover_truncated, acceptable_fraction, dct_method
    found = _decoded(contents, channels, uint8, name, "DecodeJpeg")
    return found if ratio == 1 else found[::ratio, ::ratio]  # type: ignore[index]


def decode_bmp(contents: Any, channels: int = 0, name: str | None = None) -> Tensor:
    """A BMP image: [height, width, channels]."""
    return _decoded(contents, channels, uint8, name, "DecodeBmp")


def decode_gif(contents: Any, name: str | None = None) -> Tensor:
    """The pictures of a GIF: [pictures, height, width, 3]."""

    def decode(_: Any, content: Any) -> list[Any]:
        picture = _opened(content)
        found = []
        for number in range(getattr(picture, "n_frames", 1)):
            picture.seek(number)
            found.append(_pixels(picture, 3, np.uint8))
        return [np.stack(found)]

    return record_source(
        "DecodeGif", decode, [convert(contents, string)], dtypes=[uint8], shapes=[[None, None, None, 3]], name=name
    ).outputs[0]


def decode_image(
    contents: Any,
    channels: int | None = None,
    dtype: Any = uint8,
    name: str | None = None,
    expand_animations: bool = True,
) -> Tensor:
    """An image of any format; a GIF has an axis of pictures. Its rank is not known."""
    many, kind = channels or 0, as_dtype(dtype)

    def decode(_: Any, content: Any) -> list[Any]:
        picture = _opened(content)
        found = _pixels(picture, many, np.uint8)
        if picture.format == "GIF" and expand_animations:
            frames = []
            for number in range(getattr(picture, "n_frames", 1)):
                picture.seek(number)
                frames.append(_pixels(picture, 3, np.uint8))
            found = np.stack(frames)
        return [found if kind == uint8 else (found / np.float32(255)).astype(kind.numpy)]

    return record_source(
        "DecodeImage", decode, [convert(contents, string)], dtypes=[kind], shapes=[None], name=name
    ).outputs[0]


def _encoded(image: Any, format_: str, name: str | None, **settings: Any) -> Tensor:
    def encode(_: Any, pixels: Any) -> list[Any]:
        array = pixels[..., 0] if pixels.shape[-1] == 1 else pixels
        file = io.BytesIO()
        _pillow().fromarray(array).save(file, format_, **settings)
        found = np.empty((), object)
        found[()] = file.getvalue()
        return [found]

    return record_source(
        f"Encode{format_.title()}", encode, [convert(image)], dtypes=[string], shapes=[[]], name=name
    ).outputs[0]


def encode_png(image: Any, compression: int = -1, name: str | None = None) -> Tensor:
    """An image as a PNG file."""
    return _encoded(image, "PNG", name, **({} if compression < 0 else {"compress_level": compression}))


def encode_jpeg(
    image: Any,
    format: str = "",  # noqa: A002
    quality: int = 95,
    progressive: bool = False,
    optimize_size: bool = False,
    **more: Any,
) -> Tensor:
    """An image as a JPEG file."""
    del format
    return _encoded(image, "JPEG", more.get("name"), quality=quality, progressive=progressive, optimize=optimize_size)
