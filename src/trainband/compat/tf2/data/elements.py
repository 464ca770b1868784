"""What is asked of a dataset: its elements, what is known of them, and its parts for workers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from trainband.compat.tf1.graphs.errors import InvalidArgumentError
from trainband.compat.tf2.data import mapping, sharding
from trainband.compat.tf2.data.blocks import elements_of
from trainband.compat.tf2.data.function import ElementFunction
from trainband.compat.tf2.data.iterator import Iterator, NumpyIterator
from trainband.compat.tf2.data.options import AutoShardPolicy, Options
from trainband.compat.tf2.data.passes import INFINITE, UNKNOWN, Pass, Recipe
from trainband.compat.tf2.data.structure import map_structure, pack
from trainband.compat.tf2.data.values import tensor_of
from trainband.compat.tf2.eager.tensor import Tensor

Again = Callable[..., Recipe]
"""Of the recipes of a dataset's parents, its own."""


class Elements:
    """A recipe for elements, which iterators follow.

    Args:
      recipe: of the elements.
      parents: the datasets that it takes elements from.
      again: makes the recipe for other parents.
    """

    def __init__(
        self,
        recipe: Recipe,
        parents: Sequence[Any] = (),
        again: Again | None = None,
    ) -> None:
        self.recipe = recipe
        self.parents = tuple(parents)
        self.again = again
        self.merged_options = Options()
        for parent in self.parents:
            self.merged_options = self.merged_options.merge(parent.options())

    @functools.cached_property
    def element_spec(self) -> Any:
        """What is known of the elements: `TensorSpec`s in their structure."""
        return self.recipe.spec()

    def __iter__(self) -> Iterator:
        return Iterator(self.recipe)

    def as_numpy_iterator(self) -> NumpyIterator:
        """An iterator over the elements as NumPy's arrays and scalars."""
        return NumpyIterator(self.recipe)

    def cardinality(self, name: str | None = None) -> Tensor:
        """How many elements there are; `INFINITE_CARDINALITY` (-1) and `UNKNOWN_CARDINALITY` (-2) where that is so."""
        del name
        return Tensor(np.asarray(self.recipe.count(), np.int64))

    def __len__(self) -> int:
        count = self.recipe.count()
        if count == INFINITE:
            raise TypeError("The dataset is infinite.")
        if count == UNKNOWN:
            raise TypeError("The dataset length is unknown.")
        return count

    def __bool__(self) -> bool:
        return True

    def options(self) -> Options:
        """Its options, and those of what it is made of."""
        return self.merged_options

    def with_options(self, options: Options, name: str | None = None) -> Any:
        """The dataset with more options."""
        del name
        found = type(self)(_same(self.recipe), [self], _same)
        found.merged_options = self.merged_options.merge(options)
        return found

    def then(self, make: Callable[..., Recipe], *arguments: Any, others: Sequence[Elements] = ()) -> Any:
        """The dataset whose recipe `make` gives for this one's, and for those of others, and some arguments."""

        def again(*recipes: Recipe) -> Recipe:
            return make(*recipes, *arguments)

        return type(self)(again(self.recipe, *(one.recipe for one in others)), [self, *others], again)

    def auto_sharded(self, num: int, index: int, policy: AutoShardPolicy | None = None, *, job: str = "") -> Any:
        """The part for worker `index` of `num`, by a policy, or by that of its options.

        By elements, each worker gets each `num`-th element, or of a `rebatched` dataset each `num`-th part of a batch,
        in whatever order the two are called. A shuffle without a seed has one order for all workers that give the same
        id of their `job`; without one it has an order of its own, and elements come twice or not at all.

        Raises:
          InvalidArgumentError: it is to be divided by files, and does not come from enough of them.
        """
        policy = self.options().auto_shard_policy if policy is None else policy
        return sharding.auto_sharded(self, num, index, policy, job)

    def rebatched(self, num_replicas: int) -> Any:
        """Each batch as one for each replica. Where there are too few rows, the last ones are smaller or empty."""
        return self if num_replicas == 1 else sharding.rebatched(self, num_replicas)

    def get_single_element(self, name: str | None = None) -> Any:
        """The only element.

        Raises:
          InvalidArgumentError: there are none, or several.
        """
        del name
        run = Pass()
        try:
            elements = elements_of(self.recipe.start(run))
            first = next(elements, None)
            if first is None:
                raise InvalidArgumentError(None, None, "Dataset was empty.")
            if next(elements, None) is not None:
                raise InvalidArgumentError(None, None, "Dataset had more than one element.")
        finally:
            run.close()
        return pack(first[0], [tensor_of(leaf) for leaf in first[1]])

    def reduce(self, initial_state: Any, reduce_func: Callable[..., Any], name: str | None = None) -> Any:
        """The state that is left when a function of it and an element has gone over all elements."""
        del name
        run = Pass()
        try:
            structure, leaves = mapping.reduced(self.recipe, initial_state, ElementFunction(reduce_func), run)
        finally:
            run.close()
        return pack(structure, [tensor_of(leaf) for leaf in leaves])

    @property
    def output_types(self) -> Any:
        """The dtypes of the elements, nested as these are."""
        return map_structure(lambda one: one.dtype, self.element_spec)

    @property
    def output_shapes(self) -> Any:
        """The shapes of the elements, nested as these are."""
        return map_structure(lambda one: one.shape, self.element_spec)

    def __repr__(self) -> str:
        try:
            shown = repr(self.element_spec)
        except Exception as exc:  # of the script's function, which nobody asked for
            shown = f"not known ({exc})"
        return f"<_{self.recipe.kind.title().replace('_', '')}Dataset element_spec={shown}>"


def _same(parent: Recipe) -> Recipe:
    return replace(parent, kind="options")
