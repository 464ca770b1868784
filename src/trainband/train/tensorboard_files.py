"""EventFiles: the TensorBoard files of one session."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from trainband.runtime.waiting import Say

if TYPE_CHECKING:
    from trainband.train.tensorboard_file import EventFile


class EventFiles:
    """One event file for each directory, shared by all hooks of a session; a context manager.

    TensorBoard reads only the newest of several files of a directory that grow at the same time.
    """

    def __init__(self, say: Say) -> None:
        self._say = say
        self._stack = ExitStack()
        self._files: dict[Path, EventFile] = {}
        self._chiefs: set[Path] = set()

    def open(self, path: Path, *, global_step: int, is_chief: bool) -> EventFile:
        """Returns the file of a directory; a new one drops an earlier run's steps after `global_step`."""
        if path not in self._files:
            from trainband.train.tensorboard_file import EventFile  # here: the import takes a while, and few need it

            self._files[path] = self._stack.enter_context(EventFile(path, self._say, resumed_at=global_step))
            if is_chief:
                self._chiefs.add(path)
        return self._files[path]

    def close_chiefs(self) -> None:
        """Closes the files that were opened as the chief: another worker is the chief, with its own file."""
        for path in self._chiefs:
            self._files.pop(path).close()
        self._chiefs.clear()

    def __enter__(self) -> EventFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, exc, trace)
