"""Ctrl-C during a compiled loop, which Python cannot interrupt: the loop asks for it, and ends."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

EVERY = 64
"""Iterations after which a loop asks whether it has been interrupted."""


class _Interrupts:
    """Whether Ctrl-C has been pressed since the current run began.

    Python calls its signal handlers in the main thread, which waits for the run. Only the descriptor that
    `signal.set_wakeup_fd` names learns of a signal at once.
    """

    def __init__(self) -> None:
        self._ear: socket.socket | None = None
        """Receives the numbers of the signals, while a run is watched."""
        self._came = False

    @contextmanager
    def watched(self) -> Iterator[None]:
        """For a run that contains loops: Ctrl-C ends them, and takes effect when the run is over.

        The second Ctrl-C takes effect at once.
        """
        handler = signal.getsignal(signal.SIGINT)
        is_watched = self._ear is not None
        if threading.current_thread() is not threading.main_thread() or is_watched or not callable(handler):
            yield
            return
        pressed: list[FrameType | None] = []

        def note(number: int, frame: FrameType | None) -> None:
            pressed.append(frame)
            if len(pressed) > 1:
                handler(number, frame)

        ear, mouth = socket.socketpair()
        with ear, mouth:
            ear.setblocking(False)
            mouth.setblocking(False)
            wakeup = signal.set_wakeup_fd(mouth.fileno(), warn_on_full_buffer=False)
            signal.signal(signal.SIGINT, note)
            self._ear = ear
            try:
                yield
            finally:
                signal.signal(signal.SIGINT, handler)
                signal.set_wakeup_fd(wakeup)
                self._ear, self._came = None, False
        if pressed:
            handler(signal.SIGINT, pressed[0])

    def check(self, _: Any) -> np.bool_:
        """Whether Ctrl-C was pressed."""
        ear = self._ear
        if ear is not None and not self._came:
            with suppress(OSError):  # nothing has come, or a second Ctrl-C has just ended the run
                self._came = signal.SIGINT in ear.recv(4096)
        return np.bool_(self._came)


_interrupts = _Interrupts()
watched = _interrupts.watched


@jax.custom_batching.custom_vmap
def asked(number: Any) -> Any:
    """Whether the loop should end after `number` iterations, because Ctrl-C was pressed."""

    def ask(number: Any) -> Any:
        return jax.pure_callback(_interrupts.check, jax.ShapeDtypeStruct((), np.bool_), number)

    return jax.lax.cond(number % EVERY == EVERY - 1, ask, lambda _: jnp.bool_(False), number)


@asked.def_vmap
def _never_asked(axis_size: int, in_batched: Sequence[bool], number: Any) -> tuple[Any, bool]:
    # Many loops at once, as for elements of a dataset: each would ask in each iteration.
    del in_batched, number
    return jnp.zeros(axis_size, bool), True
