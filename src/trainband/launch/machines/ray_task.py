"""RayTask: a task in a Ray actor, as a job's supervision follows it."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

from trainband.cluster.task import Task
from trainband.errors import DeadlineExceeded, YourError
from trainband.launch.machines.ray_actor import Place
from trainband.launch.machines.ray_bundle import RayBundle
from trainband.runtime.waiting import Waiting

_UNREAD_LINES = 10_000
"""Above this, the thread waits for the launcher to read, and the task for the thread."""
_TURN_S = 0.5
_GONE_S = 30.0
"""How long Ray may take to detect whether a silent actor is dead. It takes 8 s by default."""


class RayTask:
    """A task on Ray, as `RunningTask`. A thread follows the actor; two pipes wake the selector.

    Args:
      first: returns the header for `remote_task` at a place.
      host: where the other tasks expect it; `None` for a task that no other task calls.
      place_s: how long it may take until Ray has a place for it.
    """

    reports_exit = True

    def __init__(
        self,
        task: Task,
        bundle: RayBundle,
        first: Callable[[Place], bytes],
        *,
        host: str | None,
        place_s: float,
        keep_lines: int,
    ) -> None:
        self.task = task
        self.last_lines: deque[str] = deque(maxlen=keep_lines)
        self.address_lost = False
        """Whether it has failed because it can no longer run at its address."""
        self._bundle = bundle
        self._first = first
        self._host = host
        self._place_s = place_s
        self._lines: deque[tuple[str, str]] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._runs = False
        self._status: int | None = None
        self._output, self._output_end = _pipe()
        self._exit, self._exit_end = _pipe()
        self._thread = threading.Thread(target=self._follow, name=f"actor of {task}", daemon=True)
        self._thread.start()

    def register(self, selector: selectors.BaseSelector) -> None:
        selector.register(self._output, selectors.EVENT_READ, (self, False))
        selector.register(self._exit, selectors.EVENT_READ, (self, True))

    def read(self, selector: selectors.BaseSelector) -> Iterator[tuple[str, str]]:  # noqa: ARG002 - a protocol
        with self._changed:
            with contextlib.suppress(BlockingIOError):
                os.read(self._output, 4096)
            lines = list(self._lines)
            self._lines.clear()
            self._changed.notify_all()
        self.last_lines.extend(line for _, line in lines)
        yield from lines

    def finish(self) -> Iterator[tuple[str, str]]:
        return iter(())  # its actor has sent the last lines whole

    def status(self) -> int | None:
        return self._status

    def unregister_exit(self, selector: selectors.BaseSelector) -> None:
        selector.unregister(self._exit)
        selector.unregister(self._output)

    def send(self, number: int) -> bool:
        with self._changed:
            if self._status is not None:
                return False
            if not self._runs:
                self._end(-number)  # nothing has been started yet
                return True
        self._bundle.send(number)
        return True

    def close(self) -> None:
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
            over = self._status is not None
        if not over:
            self._bundle.kill()
        self._thread.join(10.0)
        with self._changed:
            for end in (self._output, self._output_end, self._exit, self._exit_end):
                os.close(end)

    def _follow(self) -> None:
        from ray.exceptions import RayError

        try:
            place = self._wait_for_place()
            if place is not None:
                self._run(place)
        except (YourError, DeadlineExceeded, OSError) as exc:
            self._fail(str(exc), 1)
        except RayError as exc:
            self._fail(f"Ray cannot run it: {exc}", 1)
        finally:
            self._end(1)  # no effect, unless an error of the launcher is about to be printed

    def _wait_for_place(self) -> Place | None:
        """Returns where it will run; `None` if it was ended first."""
        waiting = Waiting(self._place_s, lambda text: self._enqueue([("stderr", f"trainband: {text}")]))
        while self._status is None and not self._closed:
            began = time.monotonic()
            place = self._bundle.place(_TURN_S)
            if place is not None:
                return place
            waiting.check(f"Ray to place {self.task}", "see `ray status` for the resources and the demands")
            time.sleep(max(0.0, began + _TURN_S - time.monotonic()))
        return None

    def _run(self, place: Place) -> None:
        from ray.exceptions import RayActorError

        if self._host is not None and place.host != self._host:
            self.address_lost = True
            self._fail(f"Ray has moved {self.task} from {self._host} to {place.host}", -signal.SIGKILL)
            return
        first = self._first(place)
        with self._changed:
            if self._status is not None or self._closed:
                return
            self._runs = True
        try:
            for piece in self._bundle.run(self.task, first):
                if isinstance(piece, int):
                    self._end(piece)
                else:
                    self._enqueue(piece)
        except RayActorError as exc:
            if not self._closed:
                self._fail(self._why_lost(place, exc), -signal.SIGKILL)

    def _why_lost(self, place: Place, exc: Exception) -> str:
        """Returns why the actor is gone. Waits until Ray knows that it is, so that no task runs twice."""
        import ray

        until = time.monotonic() + _GONE_S
        while not (dead := self._bundle.is_dead(_TURN_S)) and time.monotonic() < until and not self._closed:
            time.sleep(_TURN_S)
        self._bundle.kill()
        alive = any(node["NodeID"] == place.node and node["Alive"] for node in ray.nodes())
        self.address_lost = self._host is not None and not alive
        if not alive:
            return f"lost {self.task}: the Ray node {place.host} has died"
        how = "has died" if dead else f"has not answered for {_GONE_S:g} s"
        return f"lost {self.task}: its Ray actor on {place.host} {how}: {_first_lines(exc)}"

    def _fail(self, text: str, status: int) -> None:
        self._enqueue([("stderr", f"trainband: {text}")])
        self._end(status)

    def _enqueue(self, lines: list[tuple[str, str]]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: len(self._lines) < _UNREAD_LINES or self._closed)
            if not self._closed and lines:
                self._lines.extend(lines)
                _wake(self._output_end)

    def _end(self, status: int) -> None:
        with self._changed:
            if self._status is None:
                self._status = status
                if not self._closed:
                    _wake(self._exit_end)


def _pipe() -> tuple[int, int]:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    return reader, writer


def _wake(end: int) -> None:
    with contextlib.suppress(BlockingIOError):  # the pipe is full, so the reader is awake
        os.write(end, b".")


def _first_lines(exc: Exception) -> str:
    return " ".join(line.strip() for line in str(exc).strip().splitlines()[:2])
