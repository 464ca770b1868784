"""Executor: one thread that runs the batches of a served model."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainband.runtime.waiting import Say
from trainband.serve.batching import BatchQueue, Tensors, Work, buckets_up_to
from trainband.serve.model import LoadedVersion, ServedModel
from trainband.serve.options import ServeOptions


@dataclass(frozen=True, slots=True)
class BatchStatistics:
    """The cost of one batch.

    Attributes:
      examples: without padding.
      padded: with it.
      seconds: in total, copies included.
    """

    examples: int
    padded: int
    seconds: float


Delivered = list[tuple[Work, Tensors | Exception, LoadedVersion | None]]


class Executor:
    """Runs requests in batches, if the model's signature allows; see `BatchQueue`.

    Args:
      model: to run.
      options: of the batches.
      deliver: called with finished requests and their batch's statistics, in the executor's thread.
      say: prints lines for the user.
      clock: seconds, monotonic.
    """

    def __init__(
        self,
        model: ServedModel,
        options: ServeOptions,
        deliver: Callable[[Delivered, BatchStatistics | None], None],
        *,
        say: Say,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._model = model
        self._deliver = deliver
        self._say = say
        self._clock = clock
        self.batched = model.signature.batched
        """Whether requests share a batch."""
        self._free = {
            spec.name: [at for at, n in enumerate(spec.shape) if at and isinstance(n, str)]
            for spec in model.signature.inputs
        }
        self._max_batch = options.max_batch
        self._buckets = buckets_up_to(options.max_batch)
        self._queue = BatchQueue(options.max_batch, options.max_delay_s)
        self._changed = threading.Condition()
        self._closed = False
        self._idle = False
        self._thread = threading.Thread(target=self._work, name="trainband-serve", daemon=True)

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._queue)

    def start(self) -> None:
        """Runs the model once per batch size, so that no request waits for a compilation; then accepts requests."""
        if self.batched:
            self._require_separate_examples()
        for size in self._buckets if self.batched else self._buckets[:1]:
            self._model.current.run(self._model.inputs_of(size))
        self._thread.start()

    def key(self, inputs: Tensors) -> Hashable:
        """Returns the key that requests of a batch share: all lengths except the number of examples."""
        if not self.batched:
            return None
        return tuple(inputs[name].shape[at] for name, axes in self._free.items() for at in axes)

    def examples(self, inputs: Tensors) -> int:
        """Returns the number of examples in a request."""
        return len(next(iter(inputs.values()))) if self.batched else 1

    def submit(self, works: Iterable[Work]) -> None:
        """Queues requests.

        Raises:
          RuntimeError: the executor is closed.
        """
        with self._changed:
            if self._closed:
                raise RuntimeError("the executor is closed")
            for work in works:
                self._queue.add(work)
            if self._idle:
                self._changed.notify()

    def close(self, timeout_s: float) -> bool:
        """Finishes the queue and ends the thread; returns whether it has ended."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _require_separate_examples(self) -> None:
        """Serves each request alone if an example's outputs depend on the others of its batch, as by a batch's mean."""
        one, other = self._model.inputs_of(2), self._model.inputs_of(2, seed=1)
        for name, leaf in one.items():
            other[name] = np.concatenate([leaf[:1], other[name][1:] * 3 if leaf.dtype.kind == "f" else other[name][1:]])
        run = self._model.current.run
        first, second = run(one), run(other)
        for name, leaf in first.items():
            if not np.allclose(leaf[0], second[name][0], rtol=1e-3, atol=1e-5, equal_nan=True):
                self.batched = False
                self._say(
                    f"{self._model.name}: the output {name!r} of an example depends on the other examples of its "
                    "batch, so requests are computed one at a time"
                )
                return

    def _work(self) -> None:
        while True:
            with self._changed:
                self._idle = True
                while (due := self._queue.due_in(self._clock())) != 0.0 and not (self._closed and due is None):
                    self._changed.wait(due)
                self._idle = False
                now = self._clock()
                late = self._queue.expired(now)
                batch = self._queue.pop_batch()
                if self._closed and not batch and not late:
                    return
            if late:
                self._deliver([(work, TimeoutError(), None) for work in late], None)
            if batch:
                self._run(batch)

    def _run(self, batch: list[Work]) -> None:
        version = batch[0].version or self._model.current
        try:
            self._compute(batch, version)
        except Exception as exc:  # any error of a model's runtime answers these requests
            self._deliver([(work, exc, version) for work in batch], None)

    def _compute(self, batch: list[Work], version: LoadedVersion) -> None:
        started = self._clock()
        first = batch[0]
        if self.batched and first.examples > self._max_batch:
            part = {name: leaf[first.at : first.at + self._max_batch] for name, leaf in first.inputs.items()}
        elif len(batch) == 1:
            part = dict(first.inputs)
        else:
            part = {name: np.concatenate([work.inputs[name] for work in batch]) for name in first.inputs}
        count = self.examples(part)
        padded = self._bucket(count) if self.batched else count
        if self.batched:
            part = {name: _padded(leaf, padded) for name, leaf in part.items()}
        outputs = version.run(part)
        statistics = BatchStatistics(count, padded, self._clock() - started)
        if self.batched and first.examples > self._max_batch:
            self._record_part(first, outputs, count, version, statistics)
            return
        done: Delivered = []
        at = 0
        for work in batch:
            end = at + work.examples
            own = {name: leaf[at:end] for name, leaf in outputs.items()} if self.batched else outputs
            done.append((work, own, version))
            at = end
        self._deliver(done, statistics)

    def _record_part(
        self,
        work: Work,
        outputs: Mapping[str, NDArray[Any]],
        count: int,
        version: LoadedVersion,
        statistics: BatchStatistics,
    ) -> None:
        work.version = version
        work.at += count
        work.parts.append({name: leaf[:count] for name, leaf in outputs.items()})
        if work.at == work.examples:
            whole = {name: np.concatenate([part[name] for part in work.parts]) for name in outputs}
            self._deliver([(work, whole, version)], statistics)
            return
        self._deliver([], statistics)
        with self._changed:
            self._queue.add(work)

    def _bucket(self, count: int) -> int:
        return next(size for size in self._buckets if size >= count)


def _padded(leaf: NDArray[Any], size: int) -> NDArray[Any]:
    """Pads with copies of the last example: a value that the model accepts, which zeros might not be."""
    if len(leaf) == size:
        return leaf
    return np.concatenate([leaf, np.broadcast_to(leaf[-1:], (size - len(leaf), *leaf.shape[1:]))])
