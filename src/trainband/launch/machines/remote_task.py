"""Run as a script on another machine, by ssh or srun: one task of a job, until the launcher is gone.

`python -m trainband.launch.machines.remote_task < pipe`

The first line on standard input is a JSON object, see `header`. Each later one is `signal` and a number, for the
task, or empty. When the input ends, or no line comes for a minute, the launcher or the connection to it is gone: the
task gets SIGTERM and, after `stop_s`, SIGKILL, so that nothing stays behind. The task's output goes where this
process's output goes. Last, a line on stderr that begins with `REPORT` reports how the task ended.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import selectors
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainband.cluster.resolvers import tf_config
from trainband.cluster.resolvers.own_environment import own_environment
from trainband.launch.environment import task_environment
from trainband.launch.events import exit_code_of
from trainband.launch.machine import FILES, TaskProgram
from trainband.launch.machines.remote_input import SILENT_S
from trainband.launch.machines.this_machine import cores
from trainband.launch.process import Reaper, TaskProcess
from trainband.runtime.signals import SignalPipe, signal_pipe

REPORT = "\x1etrainband "
"""Precedes a number: the task's status, as `TaskProcess.status`."""


def header(program: TaskProgram, task_config: str, *, directory: str, threads: int | None, stop_s: float) -> bytes:
    """Returns the first line for a task on another machine.

    Args:
      program: what it runs, with the environment to send.
      task_config: the task's `TF_CONFIG`.
      threads: the size of its XLA thread pool; its share of the machine's cores when `None`.
      stop_s: seconds between SIGTERM and SIGKILL when the launcher is gone.
    """
    paths = [] if program.files is None else [path for path in program.files.iterdir() if path.is_file()]
    files = {path.name: path.read_bytes() for path in paths}
    content = {
        "command": list(program.command),
        "environment": dict(program.environment),
        "task": task_config,
        "directory": directory,
        "threads": threads,
        "stop_s": stop_s,
        "files": {name: base64.b64encode(data).decode() for name, data in files.items()},
    }
    return json.dumps(content).encode()


class RemoteTask:
    """The task of this process."""

    def __init__(self, content: Mapping[str, Any], rest: bytes) -> None:
        self._content = content
        self._directory = Path(tempfile.mkdtemp(prefix="trainband-task-"))  # only this user can enter it
        self._stop_at: float | None = None
        self._heard_at = time.monotonic()
        self._input = rest

    def run(self) -> int:
        """Runs it to completion; returns its status, as `TaskProcess.status`."""
        with contextlib.ExitStack() as owned:
            owned.callback(shutil.rmtree, self._directory, ignore_errors=True)
            for name, data in self._content["files"].items():
                path = self._directory / Path(name).name
                path.write_bytes(base64.b64decode(data))
                path.chmod(0o600)
            os.chdir(self._content["directory"])
            reaper = Reaper(stop_s=self._content["stop_s"], directories=[self._directory])
            owned.callback(reaper.close)
            selector = owned.enter_context(selectors.DefaultSelector())
            process = self._start(reaper)
            owned.callback(process.close)
            process.register(selector)
            selector.register(0, selectors.EVENT_READ, None)
            signals = owned.enter_context(signal_pipe((signal.SIGINT, signal.SIGHUP, signal.SIGTERM)))
            if signals is not None:
                selector.register(signals, selectors.EVENT_READ, None)
            return self._follow(process, selector)

    def _start(self, reaper: Reaper) -> TaskProcess:
        content, place = self._content, str(self._directory)
        config = {tf_config.VARIABLE: content["task"]}
        cluster = tf_config.resolve(config)
        if cluster is None:
            raise ValueError(f"the launcher's header has no task: {content['task']!r}")
        environment = {name: value.replace(FILES, place) for name, value in content["environment"].items()}
        environment = task_environment(
            {**own_environment(), **environment},
            cluster=cluster,
            trainers=cluster.trainers_here,
            cores=cores(),
            threads=content["threads"],
        )
        command = [word.replace(FILES, place) for word in content["command"]]
        return TaskProcess(cluster.task, command, environ=environment, reaper=reaper, keep_lines=0)

    def _follow(self, process: TaskProcess, selector: selectors.BaseSelector) -> int:
        while (status := process.status()) is None:
            for key, _ in selector.select(self._timeout_s(process)):
                if key.fd == 0:
                    self._read_input(process, selector)
                elif key.data is None:  # a signal, as srun sends when its job ends
                    assert isinstance(key.fileobj, SignalPipe)
                    if key.fileobj.read():
                        self._end(process)
                elif not key.data[1]:
                    self._show(process, selector)
            now = time.monotonic()
            if now - self._heard_at >= SILENT_S:
                self._end(process)
            if self._stop_at is not None and now >= self._stop_at:
                process.send(signal.SIGKILL)
        self._show(process, selector)
        for name, line in process.finish():
            _write(name, line)
        process.unregister_exit(selector)
        return status

    def _timeout_s(self, process: TaskProcess) -> float:
        waits = [SILENT_S] if process.reports_exit else [0.05]
        due = self._heard_at + SILENT_S if self._stop_at is None else self._stop_at
        return min(*waits, max(0.05, due - time.monotonic()))

    def _read_input(self, process: TaskProcess, selector: selectors.BaseSelector) -> None:
        data = os.read(0, 4096)
        if not data:
            selector.unregister(0)
            self._end(process)
            return
        self._heard_at = time.monotonic()
        *lines, self._input = (self._input + data).split(b"\n")
        for line in lines:
            if line.startswith(b"signal "):
                process.send(int(line.removeprefix(b"signal ")))

    def _end(self, process: TaskProcess) -> None:
        if self._stop_at is None:
            self._stop_at = time.monotonic() + self._content["stop_s"]
            process.send(signal.SIGTERM)

    def _show(self, process: TaskProcess, selector: selectors.BaseSelector) -> None:
        for name, line in process.read(selector):
            if self._stop_at is None:
                try:
                    _write(name, line)
                except OSError:  # it is no longer read
                    self._end(process)


def _write(name: str, line: str) -> None:
    stream = sys.stdout if name == "stdout" else sys.stderr
    stream.write(line + "\n")
    stream.flush()


def main() -> None:
    """Reads the header and runs the task."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    first, rest = read_line()
    if not first:
        sys.exit("the launcher exited before it sent the task.")
    try:
        status = RemoteTask(json.loads(first), rest).run()
    except OSError as exc:
        sys.exit(f"trainband: ERROR: the task cannot be started on this machine: {exc}")
    try:
        _write("stderr", f"{REPORT}{status}")
    except OSError:  # it is not read
        os._exit(exit_code_of(status))
    # The report has the status: srun would print a message about a nonzero exit code.
    os._exit(0)


def read_line() -> tuple[bytes, bytes]:
    """Returns the first line of standard input, empty if the input ends before it, and what was read after it."""
    found = bytearray()
    while (end := found.find(b"\n")) < 0:
        data = os.read(0, 1 << 16)
        if not data:
            return b"", b""
        found += data
    return bytes(found[:end]), bytes(found[end + 1 :])


if __name__ == "__main__":
    main()
