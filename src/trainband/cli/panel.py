"""The live picture of a job that `trainband run` shows at the bottom of a terminal."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
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
"""Silence after which the panel reports it; a ps that ends with its job stays below."""
BETWEEN_DRAWS_S = 0.05
"""Lines within this time are written together: drawing takes 2 ms, and a task may print a lot."""

MOST_LINES = 2000
"""Most lines in the queue. A task that prints more waits for the terminal, as without a panel."""


class _Raw:
    """Text that goes to the terminal unchanged, including the tasks' escape sequences."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Segment(self._text)


class Panel:
    """Shows a job's progress below the lines that are written through it.

    A thread asks ps:0, as `trainband status` does. Its failures neither end nor delay the job; while there is no
    answer, the panel shows which ps it is waiting for.
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

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._wake.set()
        try:
            for thread in self._threads:
                thread.join()
            self._show()
        finally:
            self._live.stop()

    def _draw(self) -> None:
        # If the terminal is gone, the next write of a line notices it.
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
        # Imported late, because starting tasks need the cores more than the panel does.
        from trainband.job.reports import progress_of
        from trainband.monitor.inquiry import Inquiry
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
        """Waits until the ps listens; `False` if the panel was closed first."""
        address = Address.parse(self._address, self._task)
        while not self._stop.wait(ASK_EVERY_S):
            try:
                socket.create_connection((address.host, address.port), timeout=ANSWER_S).close()
            except OSError:
                continue
            return True
        return False
