"""Dataset: where elements come from, and what combines several datasets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trainband.compat.ops.dtypes import int64
from trainband.compat.tf1.graphs.errors import InvalidArgumentError, NotFoundError
from trainband.compat.tf2.data import combining, element_files, selecting, sources
from trainband.compat.tf2.data.passes import Pass, Recipe
from trainband.compat.tf2.data.structure import along, flatten, pack, template
from trainband.compat.tf2.data.transforming import Transforming, datasets_in
from trainband.compat.tf2.data.values import array_from
from trainband.compat.tf2.eager.execute import convert

AUTOTUNE = -1
INFINITE_CARDINALITY = -1
UNKNOWN_CARDINALITY = -2


class Dataset(Transforming):
    """Elements of one structure, one after the other."""

    @staticmethod
    def from_tensors(tensors: Any, name: str | None = None) -> Dataset:
        """A dataset of one element."""
        del name
        return Dataset(sources.whole(tensors))

    @staticmethod
    def from_tensor_slices(tensors: Any, name: str | None = None) -> Dataset:
        """A dataset of the rows of arrays.

        Raises:
          ValueError: an array is a scalar, or they differ in their number of rows.
        """
        del name
        return Dataset(sources.rows(tensors))

    @staticmethod
    def from_generator(
        generator: Callable[..., Any],
        output_types: Any = None,
        output_shapes: Any = None,
        args: Any = None,
        output_signature: Any = None,
        name: str | None = None,
    ) -> Dataset:
        """A dataset of what a generator yields; `args` are tensors whose values it is called with.

        Raises:
          TypeError: it cannot be called, or nothing says what it yields.
        """
        del name
        return Dataset(sources.yielded(generator, output_types, output_shapes, args, output_signature))

    @staticmethod
    def range(*args: Any, output_type: Any = int64, name: str | None = None) -> Dataset:
        """A dataset of whole numbers: to `stop`, from `start`, by `step`.

        Raises:
          ValueError: there are none or more than three arguments.
        """
        del name
        return Dataset(sources.numbers(*args, output_type=output_type))

    @staticmethod
    def counter(start: Any = 0, step: Any = 1, dtype: Any = int64, name: str | None = None) -> Dataset:
        """Whole numbers without end."""
        del name
        return Dataset(sources.counted(start, step, dtype))

    @staticmethod
    def random(seed: Any = None, rerandomize_each_iteration: bool | None = None, name: str | None = None) -> Dataset:
        """Random whole numbers below 2**32, without end."""
        del rerandomize_each_iteration, name
        return Dataset(sources.drawn(seed))

    @staticmethod
    def list_files(file_pattern: Any, shuffle: Any = None, seed: Any = None, name: str | None = None) -> Dataset:
        """The names of the files that match a pattern, or one of several: shuffled, if nothing else is said.

        Raises:
          InvalidArgumentError: there are none.
        """
        del name
        found = Dataset(sources.file_names(file_pattern))
        try:
            count = found.recipe.count()
        except NotFoundError as exc:
            raise InvalidArgumentError(None, None, str(exc)) from exc
        return found if shuffle is False else found.shuffle(max(1, count), seed)

    @staticmethod
    def zip(*args: Any, datasets: Any = None, name: str | None = None) -> Dataset:
        """The elements of several datasets side by side, as long as all have some.

        Raises:
          TypeError: there are no datasets.
        """
        del name
        if not args and datasets is None:
            raise TypeError("Must pass at least one dataset to `zip`.")
        structure = datasets if datasets is not None else args[0] if len(args) == 1 else args
        if isinstance(structure, list):
            raise TypeError("Invalid input to `zip`. Inputs are expected to be (nested) structures of `tf.data.Dataset`"
                            " objects. Python `list` is not supported.")  # fmt: skip
        parents = datasets_in(structure)
        form = template(structure)

        def again(*recipes: Recipe) -> Recipe:
            return combining.zipped(form, recipes)

        return Dataset(again(*(parent.recipe for parent in parents)), parents, again)

    @staticmethod
    def choose_from_datasets(
        datasets: Sequence[Any], choice_dataset: Any, stop_on_empty_dataset: bool = True
    ) -> Dataset:
        """Elements of the datasets whose numbers another one gives."""
        parents = [*datasets_in(tuple(datasets)), choice_dataset]

        def again(*recipes: Recipe) -> Recipe:
            return combining.chosen(recipes[:-1], recipes[-1], stop_on_empty_dataset)

        return Dataset(again(*(parent.recipe for parent in parents)), parents, again)

    @staticmethod
    def sample_from_datasets(
        datasets: Sequence[Any],
        weights: Any = None,
        seed: Any = None,
        stop_on_empty_dataset: bool = False,
        rerandomize_each_iteration: bool | None = None,
    ) -> Dataset:
        """Elements of datasets that are drawn with some weights."""
        parents = datasets_in(tuple(datasets))
        rerandomizes = rerandomize_each_iteration is not False

        def again(*recipes: Recipe) -> Recipe:
            return combining.sampled(recipes, weights, seed, stop_on_empty_dataset, rerandomizes)

        return Dataset(again(*(parent.recipe for parent in parents)), parents, again)

    def save(self, path: Any, compression: Any = None, shard_func: Any = None, checkpoint_args: Any = None) -> None:
        """Writes all elements to a directory, which `load` reads; not in TensorFlow's format."""
        del compression, shard_func, checkpoint_args
        run = Pass()
        try:
            for _ in element_files.written_elements(self.recipe.start(run), _elements_in(path)):
                pass
        finally:
            run.close()

    @staticmethod
    def load(path: Any, element_spec: Any = None, compression: Any = None, reader_func: Any = None) -> Dataset:
        """The elements that `save` wrote."""
        del compression, reader_func
        return Dataset(element_files.saved(_elements_in(path), element_spec))

    def snapshot(self, path: Any, *_: Any, **__: Any) -> Dataset:
        """The elements of the first whole pass, kept in a directory."""
        found: Dataset = self.cache(str(_elements_in(path)))
        return found

    def ignore_errors(self, log_warning: bool = False, name: str | None = None) -> Dataset:
        """The elements that raise no error."""
        del name
        found: Dataset = self.then(selecting.without_errors, log_warning)
        return found

    def bucket_by_sequence_length(
        self,
        element_length_func: Callable[..., Any],
        bucket_boundaries: Sequence[int],
        bucket_batch_sizes: Sequence[int],
        padded_shapes: Any = None,
        padding_values: Any = None,
        pad_to_bucket_boundary: bool = False,
        no_padding: bool = False,
        drop_remainder: bool = False,
        name: str | None = None,
    ) -> Dataset:
        """Padded batches of elements whose lengths are in one bucket.

        Raises:
          ValueError: there is not one batch size more than boundaries.
        """
        del name
        if len(bucket_batch_sizes) != len(bucket_boundaries) + 1:
            raise ValueError(f"`len(bucket_batch_sizes)` must equal `len(bucket_boundaries) + 1` but "
                             f"`len(bucket_batch_sizes)={len(bucket_batch_sizes)}` and "
                             f"`len(bucket_boundaries)={len(bucket_boundaries)}`.")  # fmt: skip
        bounds, sizes = [int(one) for one in bucket_boundaries], [int(one) for one in bucket_batch_sizes]

        def key(*parts: Any) -> Any:
            length = int(np.asarray(convert(element_length_func(*parts)).array))
            return np.int64(np.searchsorted(bounds, length, side="right"))

        def batch(bucket: Any, window: Any) -> Any:
            size = sizes[int(bucket)]
            if no_padding:
                return window.batch(size, drop_remainder)
            shapes = padded_shapes
            if pad_to_bucket_boundary:
                if int(bucket) == len(bounds):
                    raise ValueError("When `pad_to_bucket_boundary=True`, elements must have length < "
                                     "max(bucket_boundaries).")  # fmt: skip
                shapes = _bounded(window.element_spec, padded_shapes, bounds[int(bucket)] - 1)
            return window.padded_batch(size, shapes, padding_values, drop_remainder)

        found: Dataset = self.group_by_window(key, batch, window_size_func=lambda bucket: sizes[int(bucket)])
        return found


def _bounded(spec: Any, shapes: Any, size: int) -> Any:
    given = [one.shape for one in flatten(spec)] if shapes is None else along(spec, shapes)
    sizes = [one.sizes if hasattr(one, "sizes") else tuple(one) for one in given]
    return pack(template(spec), [[size if one in (None, -1) else one for one in shape or ()] for shape in sizes])


def _elements_in(path: Any) -> Path:
    text = array_from(path).item()
    return Path(text.decode() if isinstance(text, bytes) else text) / "elements"
