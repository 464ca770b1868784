"""Replicas in lockstep: a function of each replica's inputs runs as it stands, and they wait for one another at merges.

The replicas of a process run in turn, each in a thread of its own, up to where all must come together.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from trainband.compat.tf2.distribute import context
from trainband.compat.tf2.distribute.context import ReplicaContext, cross_replica
from trainband.compat.tf2.distribute.reduce_op import ReduceOp
from trainband.compat.tf2.distribute.values import local, regrouped
from trainband.compat.tf2.distribute.written import Own
from trainband.compat.tf2.eager import captured
from trainband.compat.tf2.eager.execute import convert
from trainband.compat.tf2.eager.recording import OPEN
from trainband.compat.tf2.eager.replica import being
from trainband.compat.tf2.eager.structure import flatten, pack
from trainband.compat.tf2.eager.tensor import Tensor

Action = Callable[[Sequence[Any]], Sequence[Any]]
"""What is done once, of what each replica of this process gives: what each gets."""


class _Stopped(BaseException):
    """Another replica has failed."""


class LockstepContext(ReplicaContext):
    """A replica that meets the others."""

    def __init__(self, strategy: Any, replica_id: int, meet: Callable[[Any, Action], Any]) -> None:
        super().__init__(strategy, replica_id)
        self._meet = meet

    def merge_call(
        self, merge_fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        def action(given: Sequence[Any]) -> Sequence[Any]:
            positional, keywords = regrouped(list(given))
            with cross_replica(self.strategy):
                result = merge_fn(self.strategy, *positional, **keywords)
            return [local(result, number) for number in range(len(given))]

        return self._meet((tuple(args), dict(kwargs or {})), action)

    def all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        del options
        tensors = [convert(one) for one in flatten(value)]
        sums = self._meet(tensors, lambda given: [self.strategy.sums(given)] * len(given))
        count = self.num_replicas_in_sync
        found = sums if ReduceOp.of(reduce_op) is ReduceOp.SUM else [_mean(one, count) for one in sums]
        return pack(value, found)

    def all_gather(self, value: Any, axis: int, options: Any = None) -> Any:
        del options
        tensors = [convert(one) for one in flatten(value)]

        def action(given: Sequence[Any]) -> Sequence[Any]:
            gathered = [self.strategy.gathered(list(parts), axis) for parts in zip(*given, strict=True)]
            return [gathered] * len(given)

        return pack(value, self._meet(tensors, action))

    def merged(self, function: Callable[[Sequence[Tensor]], Any], tensors: Sequence[Tensor]) -> Any:
        def action(given: Sequence[Any]) -> Sequence[Any]:
            with cross_replica(self.strategy):
                return [function(self.strategy.sums(given))] * len(given)

        return self._meet(list(tensors), action)


def _mean(tensor: Tensor, count: int) -> Tensor:
    from trainband.compat.tf2.eager.execute import cast_to

    return tensor / cast_to(float(count), tensor.dtype)


class _Thread:
    """A replica of several in this process."""

    def __init__(self, number: int, own: Own, strategy: Any, body: Callable[[int], Any]) -> None:
        self.own = own
        self.action: Action | None = None
        self.value: Any = None
        self.answer: Any = None
        self.result: Any = None
        self.error: BaseException | None = None
        self.done = False
        self._stopped = False
        self._turn = threading.Event()
        self._paused = threading.Event()
        outer = captured.opened(), list(OPEN.tapes), context.entered()
        place = LockstepContext(strategy, strategy.first_replica + number, self._meet)

        def run() -> None:
            self._wait()
            try:
                captures, OPEN.tapes, scopes = outer
                captured.open_all(captures)
                context.enter_all(scopes)
                with place, being(place), captured.capturing(own):
                    self.result = body(number)
            except BaseException as exc:  # given to the thread that waits
                self.error = exc
            self.done = True
            self._paused.set()

        self._thread = threading.Thread(target=run, name=f"replica {number}", daemon=True)
        self._thread.start()

    def advance(self) -> None:
        """Lets it run until it comes to a merge or its end."""
        self._paused.clear()
        self._turn.set()
        self._paused.wait()

    def stop(self) -> None:
        """Ends it, for another has failed."""
        self._stopped = True
        if not self.done:
            self.advance()

    def _wait(self) -> None:
        self._turn.wait()
        self._turn.clear()

    def _meet(self, value: Any, action: Action) -> Any:
        self.value, self.action = value, action
        self._paused.set()
        self._wait()
        if self._stopped:
            raise _Stopped
        return self.answer


def run_in_lockstep(strategy: Any, count: int, body: Callable[[int], Any]) -> tuple[list[Any], list[Own]]:
    """What the replicas of this process give, and what they have assigned.

    Args:
      strategy: whose replicas they are.
      count: how many are in this process.
      body: of the number of a replica.

    Raises:
      ValueError: some have come to a merge, and others to their end.
    """
    owns = [Own(strategy.first_replica + number) for number in range(count)]
    if count == 1:
        return [_run_alone(strategy, owns[0], body)], owns
    threads = [_Thread(number, own, strategy, body) for number, own in enumerate(owns)]
    try:
        while True:
            for thread in threads:
                thread.advance()
                if thread.error is not None:
                    raise thread.error
            ended = [thread.done for thread in threads]
            if all(ended):
                return [thread.result for thread in threads], owns
            if any(ended):
                raise ValueError(
                    "Some replicas reached a merge (apply_gradients, all_reduce or merge_call), others the end of the "
                    "function: all must call the same number of merges."
                )
            action = threads[0].action
            assert action is not None
            for thread, answer in zip(threads, action([thread.value for thread in threads]), strict=True):
                thread.answer = answer
    finally:
        for thread in threads:
            if not thread.done:
                thread.stop()


def _run_alone(strategy: Any, own: Own, body: Callable[[int], Any]) -> Any:
    """The only replica of this process: it needs no thread, and meets those of other processes where it is."""

    def meet(value: Any, action: Action) -> Any:
        with ExitStack() as stack:
            stack.enter_context(being(None))
            stack.enter_context(captured.left(own))
            return action([value])[0]

    place = LockstepContext(strategy, strategy.first_replica, meet)
    with place, being(place), captured.capturing(own):
        return body(0)
