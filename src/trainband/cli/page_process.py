"""The page of a job that `trainband run` serves: `trainband dashboard` in its own process."""

from __future__ import annotations

import contextlib
import importlib.util
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from trainband.cluster.address import Address
from trainband.cluster.resolvers.joined import reported_history
from trainband.cluster.spec import ClusterSpec
from trainband.runtime.formatting import printable

LOOK_S = 0.5
ANSWER_S = 1.0
LEAVE_S = 4.0
"""Time for the server to tell the page that the job has ended, and to stop."""


def can_show_page() -> bool:
    """Whether the extra that serves the page is installed."""
    return all(importlib.util.find_spec(name) is not None for name in ("starlette", "uvicorn"))


class PageProcess:
    """Serves the page of a job while its context is open, and reports its address once it is served.

    It begins when there is something to show, so that the tasks have the cores while they start. It runs at low
    priority, and its failures neither end nor delay the job.

    Args:
      find: returns the arguments of `trainband dashboard`, or `None` while there is nothing to show. Polled from
        another thread; see `ps_of` and `history_of`.
      environ: of the launcher, including the job's security settings.
      say: takes a line for the user; called from another thread.
    """

    def __init__(
        self, find: Callable[[], Sequence[str] | None], environ: Mapping[str, str], say: Callable[[str], None]
    ) -> None:
        self._find = find
        self._environ = dict(environ)
        self._say = say
        self._stop = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._run, name="trainband-page-process", daemon=True)

    def __enter__(self) -> PageProcess:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        process = self._process
        if process is not None:
            if process.stdin is not None:
                with contextlib.suppress(OSError):
                    process.stdin.close()  # tells it that the job has ended
            try:
                process.wait(LEAVE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._thread.join()

    def _run(self) -> None:
        while (found := self._find()) is None:
            if self._stop.wait(LOOK_S):
                return
        command = [sys.executable, "-m", "trainband.cli.main", "dashboard", *found, "--of-launcher"]
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=self._environ,
            start_new_session=True,  # Ctrl-C is for the tasks; the page ends when they do
        )
        self._process = process
        if self._stop.is_set() and process.stdin is not None:
            process.stdin.close()
        assert process.stdout is not None
        with process.stdout as lines:
            first = lines.readline().decode(errors="replace").strip()
            if first.startswith("http"):
                self._say(f"the page of this job is at {first}")
            elif not self._stop.is_set():
                self._say(f"could not serve a page of this job: {printable(first, 500) or 'its server ended at once'}")
            for _ in lines:
                pass  # a server that prints a lot must not block on a full pipe


def ps_of(spec: ClusterSpec, shared: Path | None) -> Callable[[], Sequence[str] | None]:
    """Finds the first ps of a job once it listens.

    Args:
      shared: as for `history_of`: the page also follows the history, if there is one. `None` if tasks run elsewhere.
    """
    address = spec.address(spec.ps[0])
    target = Address.parse(address, "ps:0")

    def find() -> Sequence[str] | None:
        try:
            socket.create_connection((target.host, target.port), timeout=ANSWER_S).close()
        except OSError:
            return None
        return [address] if shared is None else [address, "--shared", str(shared)]

    return find


def history_of(shared: Path) -> Callable[[], Sequence[str] | None]:
    """Finds the history of a job once its chief has recorded where it is.

    Args:
      shared: the directory that the tasks share with the launcher; see `Run.shared_directory`.
    """

    def find() -> Sequence[str] | None:
        directory = reported_history(shared)
        return None if directory is None else ["--checkpoint-dir", str(directory)]

    return find
