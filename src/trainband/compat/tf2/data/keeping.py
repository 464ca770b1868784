"""Elements that are kept, or computed ahead: caches and prefetching."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainband.compat.tf1.datasets.prefetching import Prefetching
from trainband.compat.tf2.data.blocks import Block, Blocks
from trainband.compat.tf2.data.element_files import read_elements, written_elements
from trainband.compat.tf2.data.passes import Pass, Recipe
from trainband.compat.tf2.data.values import array_from, number

DEFAULT_PREFETCHED = 2
"""How many elements are computed ahead where the script leaves it open."""


def prefetched(parent: Recipe, buffer_size: Any) -> Recipe:
    """The same elements, computed ahead by a thread; where they come from memory, no thread is worth it."""
    given = number(buffer_size, "buffer_size")
    size = DEFAULT_PREFETCHED if given < 0 else given

    def start(run: Pass) -> Blocks:
        if size == 0 or parent.is_cheap:
            return parent.start(run)
        ahead: Any = Prefetching(parent.start(run), size)  # type: ignore[arg-type]  # blocks are elements to it
        run.closes(ahead)
        return _closing(ahead)

    return Recipe(kind="prefetch", start=start, spec=parent.spec, count=parent.count, is_cheap=parent.is_cheap)


def _closing(ahead: Any) -> Iterator[Any]:
    try:
        yield from ahead
    finally:
        ahead.close()


def cached(parent: Recipe, filename: Any) -> Recipe:
    """The elements of the first whole pass, in memory or in a file."""
    name = array_from(filename).item().decode() if not isinstance(filename, str) else filename
    if name:
        return _in_file(parent, Path(name))
    kept: list[list[Block]] = []

    def start(run: Pass) -> Blocks:
        if kept:
            yield from kept[0]
            return
        found: list[Block] = []
        for block in parent.start(run):
            found.append(block)
            yield block
        kept[:] = [found]

    return Recipe(kind="cache", start=start, spec=parent.spec, count=parent.count, is_cheap=parent.is_cheap)


def _in_file(parent: Recipe, path: Path) -> Recipe:
    index = path.with_name(f"{path.name}.index")

    def start(run: Pass) -> Blocks:
        return read_elements(index) if index.exists() else written_elements(parent.start(run), index)

    return Recipe(kind="cache", start=start, spec=parent.spec, count=parent.count)
