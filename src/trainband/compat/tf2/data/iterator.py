"""Iterators over datasets: elements as tensors, or as NumPy's arrays."""

from __future__ import annotations

from collections.abc import Iterator as PythonIterator
from typing import Any

from trainband.compat.tf1.graphs.errors import OutOfRangeError
from trainband.compat.tf2.data.blocks import elements_of
from trainband.compat.tf2.data.optional import Optional
from trainband.compat.tf2.data.passes import Pass, Recipe
from trainband.compat.tf2.data.structure import LEAF, pack
from trainband.compat.tf2.data.values import is_dataset, tensor_of
from trainband.compat.tf2.eager.captured import NotCaptured, is_tracing


class Iterator:
    """Goes once over the elements of a dataset, as tensors."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._pass = Pass()
        self._elements = elements_of(recipe.start(self._pass))

    def __iter__(self) -> Iterator:
        return self

    def __next__(self) -> Any:
        if is_tracing():  # else its values would become constants of the trace
            raise NotCaptured
        try:
            structure, leaves = next(self._elements)
        except BaseException:
            self._pass.close()
            raise
        if structure is LEAF:
            return tensor_of(leaves[0])
        return pack(structure, [tensor_of(leaf) for leaf in leaves])

    def __del__(self) -> None:
        if hasattr(self, "_pass"):
            self._pass.close()

    @property
    def element_spec(self) -> Any:
        """What is known of the elements."""
        return self._recipe.spec()

    def get_next(self) -> Any:
        """The next element.

        Raises:
          OutOfRangeError: there are no more.
        """
        try:
            return next(self)
        except StopIteration:
            raise OutOfRangeError(None, None, "End of sequence") from None

    def get_next_as_optional(self) -> Optional:
        """The next element, if there is one."""
        try:
            return Optional(next(self), True, self._recipe.spec)
        except StopIteration:
            return Optional(None, False, self._recipe.spec)


class NumpyIterator:
    """Goes once over the elements of a dataset, as NumPy's arrays and scalars."""

    def __init__(self, recipe: Recipe) -> None:
        self._pass = Pass()
        self._elements = elements_of(recipe.start(self._pass))

    def __iter__(self) -> PythonIterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            structure, leaves = next(self._elements)
        except BaseException:
            self._pass.close()
            raise
        return pack(structure, [_numpy(leaf) for leaf in leaves])

    def __del__(self) -> None:
        if hasattr(self, "_pass"):
            self._pass.close()


def _numpy(leaf: Any) -> Any:
    if is_dataset(leaf):
        return NumpyIterator(leaf.item().recipe)
    if not leaf.ndim:
        return leaf[()]
    found = leaf.view()
    found.setflags(write=False)  # it may be a part of the dataset
    return found
