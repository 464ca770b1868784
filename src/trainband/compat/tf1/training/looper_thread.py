"""LooperThread: calls a function at intervals until its coordinator says to stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainband.compat.tf1.training.coordinator import Coordinator
from trainband.runtime.overrides import override


class LooperThread(threading.Thread):
    """A thread that calls a function again and again; an error in it stops all threads of the coordinator.

    Args:
      timer_interval_secs: the time between two calls; `None`: no pause.
      target: the function; when left out, a subclass overrides `run_loop`.

    Raises:
      ValueError: there is no coordinator, or there are arguments without a function.
    """

    def __init__(
        self,
        coord: Coordinator,
        timer_interval_secs: float | None,
        target: Callable[..., Any] | None = None,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(coord, Coordinator):
            raise ValueError(f"'coord' argument must be a Coordinator: {coord}")
        if target is None and (args or kwargs):
            raise ValueError("'args' and 'kwargs' argument require that you also pass 'target'")
        super().__init__(daemon=True)
        self._coord, self._interval_s = coord, timer_interval_secs
        self._call, self._call_args, self._call_kwargs = target, tuple(args or ()), dict(kwargs or {})
        coord.register_thread(self)

    @staticmethod
    def loop(
        coord: Coordinator,
        timer_interval_secs: float | None,
        target: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> LooperThread:
        """Starts a thread that calls a function, and returns it."""
        looper = LooperThread(coord, timer_interval_secs, target, args, kwargs)
        looper.start()
        return looper

    @override
    def run(self) -> None:
        with self._coord.stop_on_exception():
            self.start_loop()
            if self._interval_s is None:
                while not self._coord.should_stop():
                    self.run_loop()
            else:
                due_s = time.monotonic()
                while not self._coord.wait_for_stop(max(0.0, due_s - time.monotonic())):
                    due_s += self._interval_s
                    self.run_loop()
            self.stop_loop()

    def start_loop(self) -> None:
        """Called once, before the first call."""

    def stop_loop(self) -> None:
        """Called once, after the last call."""

    def run_loop(self) -> None:
        """Calls the function."""
        if self._call is not None:
            self._call(*self._call_args, **self._call_kwargs)
