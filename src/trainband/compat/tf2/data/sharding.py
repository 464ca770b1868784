"""How a dataset is divided over workers: by its files, by its elements, or where the script says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trainband.compat.tf1.graphs.errors import InvalidArgumentError, NotFoundError
from trainband.compat.tf2.data import batching, selecting
from trainband.compat.tf2.data.blocks import Blocks, elements_of
from trainband.compat.tf2.data.function import ElementFunction
from trainband.compat.tf2.data.options import AutoShardPolicy
from trainband.compat.tf2.data.passes import Pass, Recipe


def auto_sharded(dataset: Any, num: int, index: int, policy: AutoShardPolicy, job: str) -> Any:
    """The part for worker `index` of `num` of a job, whose id gives all of them one order of the elements.

    Raises:
      InvalidArgumentError: it cannot be divided in this way.
    """
    if num <= 1 or policy == AutoShardPolicy.OFF:
        return dataset
    if policy == AutoShardPolicy.HINT:
        return _hinted(dataset, num, index, job)
    if policy in (AutoShardPolicy.FILE, AutoShardPolicy.AUTO):
        try:
            return _by_files(dataset, num, index)
        except InvalidArgumentError:
            if policy == AutoShardPolicy.FILE:
                raise
    return _by_elements(dataset, num, index, job)


def _by_elements(dataset: Any, num: int, index: int, job: str) -> Any:
    if dataset.recipe.kind in ("prefetch", "options"):
        return _with_parents(dataset, [_by_elements(dataset.parents[0], num, index, job)])
    return dataset.then(_part, num, index, job)


def _part(parent: Recipe, num: int, index: int, job: str) -> Recipe:
    part = selecting.sharded(parent, num, index)

    def start(run: Pass) -> Blocks:
        run.job = job
        return part.start(run)

    return replace(part, kind="auto_shard", start=start)


def rebatched(dataset: Any, num_replicas: int) -> Any:
    """Each batch as one for each replica: before a division by elements, and before prefetching."""
    if dataset.recipe.kind in ("auto_shard", "prefetch", "options"):
        return _with_parents(dataset, [rebatched(dataset.parents[0], num_replicas)])
    return dataset.then(batching.divided, num_replicas)


def _with_parents(dataset: Any, parents: list[Any]) -> Any:
    recipe: Recipe = dataset.again(*(one.recipe for one in parents))
    return type(dataset)(recipe, parents, dataset.again).with_options(dataset.options())


def _by_files(dataset: Any, num: int, index: int) -> Any:
    """The dataset of some of the files."""
    kind = dataset.recipe.kind
    if kind == "files" or (kind in ("flat_map", "interleave") and _reads_files(dataset)):
        _enough(dataset.parents[0].recipe, num)
        return _with_parents(dataset, [_some_names(dataset.parents[0], num, index)])
    if not dataset.parents:
        raise InvalidArgumentError(
            None, None, f"Did not find a shardable source, walked to a node which is not a dataset of files: {kind}. "
            "Turn off auto-sharding, or switch the auto_shard_policy to DATA to shard this dataset."
        )  # fmt: skip
    return _with_parents(dataset, [_by_files(parent, num, index) for parent in dataset.parents])


def _some_names(names: Any, num: int, index: int) -> Any:
    """Each `num`-th name, in the order before it is shuffled, which may differ between workers."""
    if names.recipe.kind in ("shuffle", "options", "prefetch"):
        return _with_parents(names, [_some_names(names.parents[0], num, index)])
    return names.then(selecting.sharded, num, index)


def _enough(names: Recipe, num: int) -> None:
    count = names.count()
    if 0 <= count < num:
        raise InvalidArgumentError(
            None, None, f"There aren't enough input files for {num} workers: {count}. "
            "Use more files, or switch the auto_shard_policy to DATA."
        )  # fmt: skip


def _reads_files(dataset: Any) -> bool:
    """Whether the function of a dataset gives datasets of files."""
    function = dataset.function
    if not isinstance(function, ElementFunction):
        return False
    run = Pass()
    try:
        work = function.begin(run)
        for structure, leaves in elements_of(dataset.parents[0].recipe.start(run)):
            return _is_of_files(work.value(structure, leaves))
    except NotFoundError:
        return False
    finally:
        run.close()
    return False


def _is_of_files(dataset: Any) -> bool:
    kind = getattr(getattr(dataset, "recipe", None), "kind", "")
    return kind == "files" or any(_is_of_files(parent) for parent in getattr(dataset, "parents", ()))


def _hinted(dataset: Any, num: int, index: int, job: str) -> Any:
    """The dataset with `shard(SHARD_HINT, SHARD_HINT)` filled in; as it is where there is none."""
    if dataset.recipe.kind == "shard_hint":
        return dataset.parents[0].then(_part, num, index, job)
    if not dataset.parents:
        return dataset
    return _with_parents(dataset, [_hinted(parent, num, index, job) for parent in dataset.parents])
