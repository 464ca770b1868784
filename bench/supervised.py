"""Tasks that are started again when they end, as a supervisor does it: at once, under the same name."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

RESTART_S = 0.5
"""Between the end of a process and the start of the next."""
PART = 1500
"""Characters that are shown of the beginning, and of the end, of what a task has printed."""

Command = Callable[[int], Sequence[str]]
"""The command line of a task in its life of this number, from 0."""


@dataclass(slots=True)
class Life:
    """One process of a task.

    Attributes:
      number: from 0.
      said: the file with what it has printed on both streams.
      doomed: whether its end was requested.
      ended_s: when its end was noticed; None while it runs.
      code: its exit code, minus the signal's number.
    """

    task: str
    number: int
    process: subprocess.Popen[bytes]
    said: Path
    started_s: float
    doomed: bool = False
    ended_s: float | None = None
    code: int | None = None

    def shown(self) -> str:
        """Return the first lines that it has printed, which often say why it failed, and the last ones."""
        said = self.said.read_text(errors="replace")
        if len(said) <= 2 * PART:
            return said
        return f"{said[:PART]}\n[... {len(said) - 2 * PART:,} characters ...]\n{said[-PART:]}"


class Supervised:
    """Starts tasks, and starts again what ends; a context manager that leaves nothing running.

    Args:
      directory: for what they print, a file for each life.
      environment: is added to ours.
    """

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        """Start nothing yet."""
        self._directory = directory
        self._environment = {**os.environ, **environment}
        self._commands: dict[str, Command] = {}
        self.lives: dict[str, list[Life]] = {}
        """Of every task, the last one being that which runs, if one does."""
        self.restarting = True
        """Whether what ends is started again."""

    def __enter__(self) -> Self:
        """Make a request to end us (SIGTERM) an exception, so that nothing is left running then either."""
        self._handler = signal.signal(signal.SIGTERM, _exit_on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill every task and its children, and wait until they are gone."""
        for lives in self.lives.values():
            with suppress(ProcessLookupError):
                os.killpg(lives[-1].process.pid, signal.SIGKILL)
            lives[-1].process.wait()
        signal.signal(signal.SIGTERM, self._handler)

    def start(self, task: str, command: Command) -> None:
        """Start a task in its first life."""
        self._commands[task] = command
        self.lives[task] = []
        self._live(task)

    def poll(self) -> None:
        """Note who has ended, and restart what is due."""
        now = time.monotonic()
        for task, lives in self.lives.items():
            life = lives[-1]
            if life.ended_s is None:
                life.code = life.process.poll()
                if life.code is not None:
                    life.ended_s = now
            elif self.restarting and now - life.ended_s >= RESTART_S:
                self._live(task)

    def running(self, task: str) -> bool:
        """Say whether a task's process lives, as far as `poll` knows."""
        return self.lives[task][-1].ended_s is None

    def send(self, task: str, number: int) -> None:
        """Send a signal to a task's process."""
        self.lives[task][-1].process.send_signal(number)

    def end(self, task: str, number: int) -> None:
        """Send a signal that ends it."""
        self.lives[task][-1].doomed = True
        self.send(task, number)

    def unasked(self) -> list[Life]:
        """Return the lives that ended without a request, with an error or while others were to continue."""
        return [
            life
            for lives in self.lives.values()
            for life in lives
            if life.ended_s is not None and not life.doomed and (life.code != 0 or life is not lives[-1])
        ]

    def _live(self, task: str) -> None:
        number = len(self.lives[task])
        said = self._directory / f"{task.replace(':', '-')}-{number}.log"
        with said.open("wb") as file:
            process = subprocess.Popen(
                list(self._commands[task](number)),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
            )
        self.lives[task].append(Life(task, number, process, said, time.monotonic()))


def _exit_on_signal(number: int, _: object) -> None:
    raise SystemExit(128 + number)
