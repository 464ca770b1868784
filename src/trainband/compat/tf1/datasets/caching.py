"""Caches of elements, in memory or in a file."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from trainband.compat.ops.dtypes import string
from trainband.compat.tf1.datasets.elements import Element, Elements, Spec
from trainband.runtime.regular_files import regular_file, replacing


def cached(begin: Callable[[], Elements], path: str, kept: list[Any], specs: Sequence[Spec]) -> Elements:
    """The elements of a cache that is full, or else those of the source, which fill it.

    Args:
      begin: begins a pass over the source.
      path: of the file; empty for a cache in memory.
      kept: the cache in memory: empty, or a list with the elements.
    """
    if path:
        return _read(Path(path), specs) if Path(path).exists() else _written(begin(), Path(path), specs)
    return iter(kept[0]) if kept else _remembered(begin(), kept)


def _remembered(elements: Elements, kept: list[Any]) -> Elements:
    found: list[Element] = []
    for element in elements:
        found.append(element)
        yield element
    kept[:] = [found]


def _written(elements: Elements, path: Path, specs: Sequence[Spec]) -> Elements:
    with replacing(path) as file:
        for element in elements:
            for leaf, spec in zip(element, specs, strict=True):
                _write(file, leaf, spec)
            yield element


def _write(file: BinaryIO, leaf: Any, spec: Spec) -> None:
    if spec.dtype != string:
        np.save(file, np.asarray(leaf), allow_pickle=False)
        return
    texts = [bytes(one) for one in np.ravel(leaf)]
    np.save(file, np.array(leaf.shape, np.int64), allow_pickle=False)
    np.save(file, np.array([len(one) for one in texts], np.int64), allow_pickle=False)
    np.save(file, np.frombuffer(b"".join(texts), np.uint8), allow_pickle=False)


def _read(path: Path, specs: Sequence[Spec]) -> Elements:
    with regular_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        while file.tell() < size:
            yield tuple([_leaf(file, spec) for spec in specs])


def _leaf(file: BinaryIO, spec: Spec) -> Any:
    if spec.dtype != string:
        return np.load(file, allow_pickle=False)
    shape, lengths, content = (np.load(file, allow_pickle=False) for _ in range(3))
    ends = np.cumsum(lengths)
    whole = np.empty(int(np.prod(shape)), object)
    whole[:] = [content[end - length : end].tobytes() for end, length in zip(ends, lengths, strict=True)]
    return whole.reshape(tuple(shape))
