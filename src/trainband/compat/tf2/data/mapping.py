"""Functions that are applied to each element, in order."""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from trainband.compat.tf2.data.blocks import Blocks, Leaves, Raising, Result, Single, elements_of
from trainband.compat.tf2.data.chunks import chunks
from trainband.compat.tf2.data.function import Applied, ElementFunction
from trainband.compat.tf2.data.passes import Pass, Recipe
from trainband.compat.tf2.data.specs import common, sizes_for, spec_of_array
from trainband.compat.tf2.data.structure import flatten, map_structure, pack, template
from trainband.compat.tf2.data.values import array_from, number
from trainband.compat.tf2.eager.function import TensorSpec

UNSURE = (3, 5)
"""Numbers that stand for a size that is not known: what differs between them is not known of the results either."""


def mapped(parent: Recipe, function: ElementFunction, num_parallel_calls: Any) -> Recipe:
    """What a function gives for each element.

    Args:
      num_parallel_calls: how many threads run a function that is not compiled; -1 for as many as there are processors.
    """
    threads = 1 if num_parallel_calls is None else number(num_parallel_calls, "num_parallel_calls")
    threads = (os.cpu_count() or 1) if threads < 0 else threads

    def start(run: Pass) -> Blocks:
        work = function.begin(run)
        parts = chunks(parent.start(run), work)
        if threads == 1:
            return Raising(found for part in parts for found in work.results(part))
        return Raising(_by_threads(parts, work, threads, run))

    def spec() -> Any:
        return _inferred(parent, function) or _seen(parent, start)

    return Recipe(kind="map", start=start, spec=spec, count=parent.count)


def _by_threads(parts: Blocks, work: Applied, threads: int, run: Pass) -> Iterator[Result]:
    """The results, in order. Threads compute what Python does: of the elements of a part, or part by part."""
    pool = _Pool(threads)
    run.closes(pool)
    try:
        for part in parts:
            if part.size > 1 or work.is_compiled(part):
                yield from work.results(part, pool.spread)
                continue
            numbered = ((one, work.reserved(one)) for one in itertools.chain([part], parts))
            for found in pool.results(lambda one: work.results(one[0], bases=one[1]), numbered):
                yield from found
    finally:
        pool.close()


class _Pool:
    """Threads that compute elements ahead."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="dataset-map")

    def spread(self, call: Callable[[Any], Any], values: Iterable[Any]) -> Iterator[Any]:
        """The results for some values, in their order."""
        return self._pool.map(call, values)

    def results(self, call: Callable[[Any], Any], values: Iterator[Any]) -> Iterator[Any]:
        """The results for values that come one after the other, in their order. An error comes in its place."""
        pending: deque[Future[Any]] = deque()
        failure: BaseException | None = None
        while True:
            while failure is None and len(pending) < self._threads:
                try:
                    pending.append(self._pool.submit(call, next(values)))
                except BaseException as exc:
                    failure = exc
            if pending:
                yield pending.popleft().result()
            elif failure is None or isinstance(failure, StopIteration):
                return
            else:
                raise failure

    def close(self) -> None:
        """Ends the threads. Idempotent."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _inferred(parent: Recipe, function: ElementFunction) -> Any:
    """What is known of the results from what is known of the elements; `None` where the function is not traced."""
    known = parent.spec()
    found = []
    for unknown in UNSURE:
        kinds = sizes_for(known, unknown)
        plan = None if kinds is None else function.traced(template(known), tuple(kinds))
        if plan is None:
            return None
        leaves = []
        for source, place in plan.outputs:
            if source == "fixed":
                leaves.append(spec_of_array(place))
            elif source == "leaf":
                leaves.append(flatten(known)[place])
            else:
                leaves.append(TensorSpec(plan.avals[place].shape, plan.avals[place].dtype))
        found.append(pack(plan.structure, leaves))
    return common(found)


def _seen(parent: Recipe, start: Callable[[Pass], Blocks]) -> Any:
    """What the first elements show: sizes in which they differ, or which come from unknown ones, are not known.

    Raises:
      ValueError: there are none.
    """
    run, found = Pass(), []
    try:
        for structure, leaves in elements_of(start(run)):
            found.append(pack(structure, [spec_of_array(leaf) for leaf in leaves]))
            if len(found) == 2:
                break
    finally:
        run.close()
    if not found:
        raise ValueError("The elements of an empty dataset are not known if its function is not traced.")
    known = common(found)
    sizes = [one.shape.sizes for one in flatten(parent.spec())]
    if sizes and all(one and one[0] is None for one in sizes):
        return map_structure(_of_any_batch, known)
    return known


def _of_any_batch(spec: Any) -> Any:
    sizes = spec.shape.sizes
    return TensorSpec([None, *sizes[1:]], spec.dtype) if sizes and isinstance(spec, TensorSpec) else spec


def scanned(parent: Recipe, initial_state: Any, function: ElementFunction) -> Recipe:
    """What a function of a state and an element gives beside the next state."""
    first = map_structure(array_from, initial_state)

    def start(run: Pass) -> Blocks:
        work = function.begin(run)
        form, state = template(first), tuple(flatten(first))
        for structure, leaves in elements_of(parent.start(run)):
            found, results = work.of_element((form, structure), (*state, *leaves))
            if type(found) is not tuple or len(found) != 2:
                raise TypeError("Invalid `scan_func`: it must return a pair, the new state and the output value.")
            count = len(flatten(found[0]))
            state = results[:count]
            yield Single(found[1], results[count:])

    return Recipe(kind="scan", start=start, spec=lambda: _seen(parent, start), count=parent.count)


def reduced(parent: Recipe, initial_state: Any, function: ElementFunction, run: Pass) -> tuple[Any, Leaves]:
    """The state that is left when a function of it and an element has gone over all elements: (structure, leaves).

    Raises:
      TypeError: the function gives a state of another form.
    """
    first = map_structure(array_from, initial_state)
    work = function.begin(run)
    form, state = template(first), tuple(flatten(first))
    for structure, leaves in elements_of(parent.start(run)):
        found, state = work.of_element((form, structure), (*state, *leaves))
        if found != form:
            raise TypeError(f"The structure of the state changed from {form!r} to {found!r} in `reduce`.")
    return form, state
