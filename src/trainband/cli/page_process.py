"""The page that `trainband run` shows of a job: `trainband dashboard` in a process of its own."""

from __future__ import annotations

import contextlib
import importlib.util
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from types import TracebackType

from trainband.cluster.address import Address
from trainband.cluster.spec import ClusterSpec
from trainband.runtime.formatting import printable

LOOK_S = 0.5
ANSWER_S = 1.0
LEAVE_S = 4.0
"""For the server to tell the page that the job has ended, and to end."""


def can_show_page() -> bool:
    """Whether the extra that serves the page is installed."""
    return all(importlib.util.find_spec(name) is not None for name in ("starlette", "uvicorn"))


class PageProcess:
    """Serves the page of a job for as long as its context lasts, and tells its address once it is there.

    It begins when ps:0 listens, so that the tasks have the cores while they start; it runs at a low priority, and
    nothing that goes wrong with it ends or delays the job.

    Args:
      spec: of the job, which has a ps.
      environ: of the launcher, with what decides on the security of the job.
      say: takes a line for the user; called from another thread.
    """

    def __init__(self, spec: ClusterSpec, environ: Mapping[str, str], say: Callable[[str], None]) -> None:
        self._address = spec.address(spec.ps[0])
        self._environ = dict(environ)
        self._say = say
        self._stop = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._run, name="trainband-page-process", daemon=True)

    def __enter__(self) -> PageProcess:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        process = self._process
        if process is not None:
            if process.stdin is not None:
                with contextlib.suppress(OSError):
                    process.stdin.close()  # by which it knows that the job has ended
            try:
                process.wait(LEAVE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._thread.join()

    def _run(self) -> None:
        if not self._await_listener():
            return
        command = [sys.executable, "-m", "trainband.cli.main", "dashboard", self._address, "--of-launcher"]
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=self._environ,
            start_new_session=True,  # Ctrl-C is for the tasks; their end is the end of the page
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
                self._say(f"there is no page of this job: {printable(first, 500) or 'its server ended at once'}")
            for _ in lines:
                pass  # whoever prints much must not wait for a reader

    def _await_listener(self) -> bool:
        """Whether the ps listens; `False` when the job ended before it did."""
        address = Address.parse(self._address, "ps:0")
        while not self._stop.wait(LOOK_S):
            try:
                socket.create_connection((address.host, address.port), timeout=ANSWER_S).close()
            except OSError:
                continue
            return True
        return False
