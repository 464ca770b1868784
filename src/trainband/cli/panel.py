"""The live picture of a job that `trainband run` shows at the bottom of a terminal."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from types import TracebackType
from typing import TextIO

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.text import Text

from trainband.cluster.address import Address
from trainband.errors import TrainbandError

ASK_EVERY_S = 0.5
ANSWER_S = 1.0
SILENCE_S = 2.0
"""Without an answer, until the panel says so: a ps that has ended with its job is no news."""
BETWEEN_DRAWS_S = 0.05
"""Lines that come within this time are written together: drawing takes 2 ms, and a task may print much."""

MOST_LINES = 2000
"""That wait to be written. Whoever prints more waits for the terminal, as without a panel."""


class _Raw:
    """Text that goes to the terminal as it is, with the escape sequences that tasks put into it."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Segment(self._text)


class Panel:
    """Shows how far a job is, for as long as it is open, below the lines that are written through it.

    It asks ps:0 as `trainband status` does, in a thread of its own, and nothing that goes wrong there ends or
    delays the job: while nobody answers, it says whom it waits for.

    Args:
      task, address: the ps to ask.
      terminal: where it is shown.
    """

    def __init__(self, task: str, address: str, terminal: TextIO) -> None:
        self._task = task
        self._address = address
        self._console = Console(file=terminal)
        self._picture: RenderableType = Text(f"waiting for {task} at {address} to come up", style="dim")
        self._live = Live(
            self._picture,
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._lines: list[str] = []
        self._lock = threading.Lock()
        self._drawing = threading.Lock()
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=target, name=f"trainband-panel-{target.__name__}", daemon=True)
            for target in (self._ask, self._draw)
        ]

    def write(self, line: str) -> None:
        """Writes a line, with its end, above the picture."""
        with self._lock:
            self._lines.append(line)
            many = len(self._lines) > MOST_LINES
        self._wake.set()
        if many:
            self._show()

    def __enter__(self) -> Panel:
        self._live.start(refresh=True)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._wake.set()
        try:
            for thread in self._threads:
                thread.join()
            self._show()
        finally:
            self._live.stop()

    def _draw(self) -> None:
        # A terminal that has gone is noticed by whoever writes the next line to it.
        with contextlib.suppress(OSError):
            while not self._stop.is_set():
                self._wake.wait()
                self._wake.clear()
                self._show()
                self._stop.wait(BETWEEN_DRAWS_S)

    def _show(self) -> None:
        with self._drawing:
            with self._lock:
                text, picture = "".join(self._lines), self._picture
                self._lines.clear()
            self._live.update(picture, refresh=not text)
            if text:
                self._console.print(_Raw(text), crop=False)  # draws the picture again below

    def _set(self, picture: RenderableType) -> None:
        with self._lock:
            self._picture = picture
        self._wake.set()

    def _ask(self) -> None:
        if not self._await_listener():
            return
        # Late and lazily: the tasks want the cores while they start, and need no panel that is loaded by then.
        from trainband.monitor.inquiry import Inquiry
        from trainband.strategies.parameter_server_replica import progress_of
        from trainband.train.console import picture

        shown: RenderableType = Text()
        answered = time.monotonic()
        with Inquiry(self._address, ANSWER_S) as inquiry:
            while not self._stop.is_set():
                try:
                    shown = picture(progress_of(inquiry.ask()))
                    answered = time.monotonic()
                    self._set(shown)
                except TrainbandError:
                    silent_s = time.monotonic() - answered
                    if silent_s >= SILENCE_S:
                        text = f"waiting for {self._task} at {self._address} to answer ({silent_s:.0f} s)"
                        self._set(Group(shown, Text(text, style="yellow")))
                self._stop.wait(ASK_EVERY_S)

    def _await_listener(self) -> bool:
        """Whether the ps listens; `False` when the panel was closed before it did."""
        address = Address.parse(self._address, self._task)
        while not self._stop.wait(ASK_EVERY_S):
            try:
                socket.create_connection((address.host, address.port), timeout=ANSWER_S).close()
            except OSError:
                continue
            return True
        return False
