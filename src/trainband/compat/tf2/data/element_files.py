"""Files of elements: their form as JSON, then their arrays in NumPy's format. Nothing in them is code."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from trainband.compat.tf1.graphs.errors import NotFoundError, UnimplementedError
from trainband.compat.tf2.data.blocks import Blocks, Single, elements_of
from trainband.compat.tf2.data.passes import Recipe
from trainband.compat.tf2.data.specs import spec_of_array
from trainband.compat.tf2.data.structure import pack
from trainband.runtime.regular_files import regular_file, replacing


def written_elements(blocks: Blocks, path: Path) -> Blocks:
    """The elements of blocks, which are written to a file on the way. It is there when all have come."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        for structure, leaves in elements_of(blocks):
            _write_text(file, json.dumps([_form(structure), [leaf.dtype == object for leaf in leaves]]))
            for leaf in leaves:
                _write_leaf(file, leaf)
            yield Single(structure, leaves)


def read_elements(path: Path) -> Blocks:
    """The elements of a file."""
    with regular_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        while file.tell() < size:
            form, texts = json.loads(_read_text(file))
            yield Single(_structure(form), tuple([_read_leaf(file, is_text) for is_text in texts]))


def saved(path: Path, spec: Any) -> Recipe:
    """The elements of a file.

    Raises:
      NotFoundError: there is none.
    """
    if not path.exists():
        raise NotFoundError(None, None, f"Could not find a saved dataset in {path.parent}.")

    def known() -> Any:
        if spec is not None:
            return spec
        for structure, leaves in elements_of(read_elements(path)):
            return pack(structure, [spec_of_array(leaf) for leaf in leaves])
        raise ValueError("The elements of an empty dataset are not known.")

    return Recipe(kind="saved", start=lambda _: read_elements(path), spec=known)


def _form(structure: Any) -> Any:
    if structure is None:
        return None
    if isinstance(structure, Mapping):
        return {"dict": [[key, _form(part)] for key, part in structure.items()]}
    if isinstance(structure, tuple):
        return {"tuple": [_form(part) for part in structure]}
    raise UnimplementedError(None, None, f"Elements with {structure!r} cannot be saved to a file.")


def _structure(form: Any) -> Any:
    if form is None:
        return None
    if "dict" in form:
        return {key: _structure(part) for key, part in form["dict"]}
    return tuple(_structure(part) for part in form["tuple"])


def _write_text(file: BinaryIO, text: str) -> None:
    np.save(file, np.frombuffer(text.encode(), np.uint8), allow_pickle=False)


def _read_text(file: BinaryIO) -> str:
    return bytes(np.load(file, allow_pickle=False).tobytes()).decode()


def _write_leaf(file: BinaryIO, leaf: Any) -> None:
    if leaf.dtype != object:
        np.save(file, leaf, allow_pickle=False)
        return
    texts = leaf.reshape(-1).tolist()
    if not all(isinstance(one, bytes) for one in texts):
        raise UnimplementedError(None, None, "Elements that are datasets cannot be saved to a file.")
    np.save(file, np.array(leaf.shape, np.int64), allow_pickle=False)
    np.save(file, np.array([len(one) for one in texts], np.int64), allow_pickle=False)
    np.save(file, np.frombuffer(b"".join(texts), np.uint8), allow_pickle=False)


def _read_leaf(file: BinaryIO, is_text: bool) -> Any:
    if not is_text:
        return np.load(file, allow_pickle=False)
    shape, lengths, content = (np.load(file, allow_pickle=False) for _ in range(3))
    ends = np.cumsum(lengths)
    whole = np.empty(len(lengths), object)
    for place, (end, length) in enumerate(zip(ends.tolist(), lengths.tolist(), strict=True)):
        whole[place] = content[end - length : end].tobytes()
    return whole.reshape(tuple(shape))
