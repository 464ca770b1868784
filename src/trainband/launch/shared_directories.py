"""Directories of this machine that a job's tasks and launcher share, removed with the job."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from trainband.cluster.resolvers import joined
from trainband.launch.environment import COMPILATION_CACHE, compiled_environment


class SharedDirectories:
    """The directories of one job.

    Attributes:
      paths: all of them.
      joined: the file that the first task to take part in the job creates; `None` if this is not tracked.
    """

    def __init__(self) -> None:
        self.paths: list[Path] = []
        self.joined: Path | None = None

    def _make(self, name: str) -> Path:
        self.paths.append(Path(tempfile.mkdtemp(prefix=f"trainband-{name}-")))
        return self.paths[-1]

    def share_what_is_compiled(self, environ: Mapping[str, str], note: Callable[[str], None]) -> dict[str, str]:
        """Returns the environment in which tasks share JAX's compilation cache."""
        if COMPILATION_CACHE not in environ:
            try:
                return compiled_environment(environ, self._make("compiled"))
            except OSError as exc:
                note(f"restarted tasks will compile their programs again: {exc}")
        return dict(environ)

    def listen_who_joins(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Returns the environment in which tasks report that they take part in the job."""
        with contextlib.suppress(OSError):  # then it stays unknown, and the job can still start
            self.joined = self._make("joined") / "joined"
            return {**environ, joined.VARIABLE: str(self.joined)}
        return dict(environ)

    def close(self) -> None:
        """Removes them."""
        for path in self.paths:
            shutil.rmtree(path, ignore_errors=True)
