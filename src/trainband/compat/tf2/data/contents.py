"""Whole files as text, and text in parts: what `hosted` does not have of `tf.io` and `tf.strings`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from trainband.compat.ops.dtypes import array_of, as_dtype, string
from trainband.compat.tf1.datasets.file_names import matching
from trainband.compat.tf1.graphs.errors import InvalidArgumentError, NotFoundError
from trainband.compat.tf1.input.record_files import opened
from trainband.compat.tf2.data.values import array_from, boxed
from trainband.compat.tf2.eager.host_stage import computed
from trainband.compat.tf2.eager.tensor import Tensor


def text_of(value: Any, what: str) -> str:
    """One text that a script gives.

    Raises:
      InvalidArgumentError: there are several, or none.
    """
    return _one(texts_of(value), what)


def _one(texts: Any, what: str) -> str:
    if texts.ndim:
        raise InvalidArgumentError(None, None, f"{what} must be a scalar, but had shape: {list(texts.shape)}")
    return str(texts.item().decode())


def texts_of(value: Any) -> Any:
    """An array of texts.

    Raises:
      TypeError: they are none.
    """
    found = array_of(array_from(value), string)
    if not all(isinstance(one, bytes) for one in found.flat):
        raise TypeError(f"Cannot convert {value!r} to a tensor of dtype string.")
    return found


def _of_texts(key: Any, function: Callable[[Any], Any], value: Any) -> Tensor:
    """What a function gives for an array of texts, computed on the host.

    Args:
      key: what tells the function from others.
    """
    (found,) = computed(key, lambda array: [function(array_of(array, string))], [value])
    return found


def read_file(filename: Any, name: str | None = None) -> Tensor:
    """What is in a file.

    Raises:
      NotFoundError: there is none.
    """
    del name

    def read(texts: Any) -> Any:
        with opened(_one(texts, "Input filename tensor")) as file:
            return boxed(file.read())

    return _of_texts("read_file", read, filename)


def write_file(filename: Any, contents: Any, name: str | None = None) -> None:
    """Writes a file, with the directories that it is in."""
    del name
    path = Path(text_of(filename, "Input filename tensor"))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(texts_of(contents).item())


def matching_files(pattern: Any, name: str | None = None) -> Tensor:
    """The names of the files that match a pattern, or one of several, in order."""
    del name
    try:
        found = [leaf.item() for (leaf,) in matching(texts_of(pattern))]
    except NotFoundError:
        found = []
    return Tensor(array_of(found, string))


def split(input: Any, sep: Any = None, maxsplit: int = -1, name: str | None = None) -> Tensor:  # noqa: A002
    """The parts of a text.

    Raises:
      NotImplementedError: there are several texts: TensorFlow gives a ragged tensor.
    """
    del name
    glue = None if sep in (None, "", b"") else text_of(sep, "sep").encode()

    def parts(texts: Any) -> Any:
        if texts.ndim:
            raise NotImplementedError(
                "tf.strings.split of several texts gives a ragged tensor, which is not supported: split each of them, "
                "for example with `tf.data.Dataset.map`."
            )
        return array_of(texts.item().split(glue, maxsplit), string)

    return _of_texts(("split", glue, maxsplit), parts, input)


def to_number(input: Any, out_type: Any = "float32", name: str | None = None) -> Tensor:  # noqa: A002
    """Texts as numbers.

    Raises:
      InvalidArgumentError: one is none.
    """
    del name
    dtype = as_dtype(out_type)

    def numbers(texts: Any) -> Any:
        found = np.empty(texts.shape, dtype.numpy)
        for place, text in np.ndenumerate(texts):
            try:
                found[place] = (float if dtype.is_floating else int)(text)
            except (ValueError, OverflowError) as exc:
                shown = text.decode(errors="replace")
                raise InvalidArgumentError(
                    None, None, f"StringToNumberOp could not correctly convert string: {shown}"
                ) from exc
        return found

    return _of_texts(("to_number", dtype), numbers, input)


def bytes_split(input: Any, name: str | None = None) -> Tensor:  # noqa: A002
    """The single bytes of a text."""
    del name

    def parts(texts: Any) -> Any:
        text = texts.item()
        return array_of([text[place : place + 1] for place in range(len(text))], string)

    return _of_texts("bytes_split", parts, input)


def unicode_decode(input: Any, input_encoding: str = "UTF-8", **_: Any) -> Tensor:  # noqa: A002
    """The numbers of the characters of a text."""

    def numbers(texts: Any) -> Any:
        return np.array([ord(one) for one in texts.item().decode(input_encoding)], np.int32)

    return _of_texts(("unicode_decode", input_encoding), numbers, input)


def unicode_encode(input: Any, output_encoding: str = "UTF-8", **_: Any) -> Tensor:  # noqa: A002
    """The text of the characters with some numbers, along the last axis."""

    def encode(numbers: Any) -> list[Any]:
        flat = ["".join(map(chr, row)).encode(output_encoding) for row in numbers.reshape(-1, numbers.shape[-1])]
        return [array_of(flat, string).reshape(numbers.shape[:-1])]

    return computed(("unicode_encode", output_encoding), encode, [input])[0]


def unicode_split(input: Any, input_encoding: str = "UTF-8", **_: Any) -> Tensor:  # noqa: A002
    """The characters of a text."""

    def parts(texts: Any) -> Any:
        return array_of(list(texts.item().decode(input_encoding)), string)

    return _of_texts(("unicode_split", input_encoding), parts, input)
