"""Forks the Python processes of tests from one that has imported JAX and trainband, which takes a second each time.

`install` has `subprocess` ask a server for a process instead of executing Python. The process is the caller's child,
with its own pid, signals, exit status, pipes and entries in /proc. Where it could differ from a new interpreter, for
example in an environment variable that an import reads, it executes Python after all. Each `trainband run` has a
server for its tasks, forked before it starts. Forked processes share one seed of `hash`, so that tests marked `smoke`
execute Python.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import io
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import types
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

ROOT = Path(__file__).resolve().parent.parent
SOURCE = str(ROOT / "src")
GATE = str(ROOT / "src" / "trainband" / "launch" / "exec_gate.py")
LAUNCHER = ["-m", "trainband.cli.main", "run"]
_KERAS_IMPORTS = ("h5py", "matplotlib.pyplot", "optree", "rich.progress", "scipy.stats")
LIBRARIES = ("jax.export", "optax", "pyarrow.flight", *_KERAS_IMPORTS)
"""Not Keras itself, because scripts prepare its import."""
DEADLINE_S = 90.0
"""For a server to import everything, or to fork on a busy machine."""

_READ = (
    "ABSL_ ARROW_ CUDA_ GLIBC_ GRPC_ JAX_ JE_ LANG LC_ LD_ MALLOC_ MKL_ MPL NPY_ OMP_ OPENBLAS_ PYTHON TF_CPP_ TPU_ TZ"
)
READ_BY_IMPORTS = tuple(_READ.split())
"""Prefixes of environment variables that the imported libraries read."""
APPLIED = {"GRPC_VERBOSITY", "PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONWARNINGS"}
"""Those of them that a forked process can still be given."""
APPLIED_TO_JAX = ("JAX_PLATFORMS", "JAX_COMPILATION_CACHE_DIR")
"""The same, by `jax.config`."""

# A forked process overwrites the command and the environment that /proc shows, which therefore need room. jemalloc,
# which Arrow loads beside the allocator that it uses, must start no thread.
_ROOM = "." * 32768
OWN = {"_ROOM": _ROOM, "JE_ARROW_MALLOC_CONF": "background_thread:false"}

_PR_SET_CHILD_SUBREAPER = 36
_CLONE_NEWNS, _CLONE_NEWNET, _MS_SLAVE_ALL, _MNT_DETACH = 0x20000, 0x40000000, 0x84000, 2
_libc = ctypes.CDLL(None, use_errno=True)


class ForkServer:
    """The caller's side of a server, which ends with this process.

    Args:
      end: of a socket pair of which the server has the other.
    """

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._lock = threading.Lock()
        end.settimeout(DEADLINE_S)
        atexit.register(end.close)

    @classmethod
    def started(cls, environ: Mapping[str, str]) -> ForkServer:
        """Executes a server, which imports everything in this environment."""
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        path = f"{ROOT / 'tests' / 'startup'}:{SOURCE}"
        command = [sys.executable, __file__, str(its.fileno()), _ROOM]
        with its:
            its.set_inheritable(True)
            os.posix_spawn(sys.executable, command, {**environ, **OWN, "PYTHONPATH": path}, setpgroup=0)
        return cls(ours)

    @property
    def has_ended(self) -> bool:
        """Whether the server has been killed."""
        return bool(select.select([self._end], [], [], 0)[0])

    def fork(self, task: dict[str, Any], streams: Sequence[int]) -> int:
        """Returns the pid of a new child of this process.

        Raises:
          OSError: the server has ended, or does not answer.
        """
        with self._lock:
            # The process between the server and the task exits at once, and its orphan goes to the nearest subreaper.
            _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            try:
                socket.send_fds(self._end, [json.dumps(task).encode()], streams)
                if not (pid := self._end.recv(64)):
                    raise ConnectionError("the fork server has ended.")
                return int(pid)
            finally:
                _libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


class ServerOfTests:
    """Starts the server when a test first needs it, and again if it was killed.

    Args:
      environ: in which it imports.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = {name: value for name, value in environ.items() if name != "TF_CONFIG"}
        self._server: ForkServer | None = None
        self.enabled = True
        """Whether the processes of the current test are forked."""

    def __call__(self) -> ForkServer | None:
        """Returns the server, if the test may use it."""
        if self.enabled and (self._server is None or self._server.has_ended):
            self._server = ForkServer.started(self._environ)
        return self._server if self.enabled else None


def install(server: Callable[[], ForkServer | None]) -> None:
    """Has `subprocess` fork what it can.

    Args:
      server: returns the server; `None` to execute Python.
    """
    module: Any = subprocess
    execute = module._fork_exec  # noqa: SLF001 - at this depth, pipes, waiting and errors stay subprocess's own
    module._USE_POSIX_SPAWN = False  # noqa: SLF001

    def fork_exec(*given: Any) -> Any:
        command, _, close_fds, kept, cwd, environ = given[:6]
        errpipe, session, group = given[13], given[15], given[16]
        is_plain = close_fds and kept == (errpipe,) and given[17:22] == (None, None, None, -1, None)
        words = [os.fsdecode(word) for word in command]
        cwd = os.fspath(Path.cwd() if cwd is None else cwd)
        if not (is_plain and parsed(in_namespace(words)[1]) and Path(cwd).is_dir() and (found := server())):
            return execute(*given)
        entries = [b"=".join(pair) for pair in os.environb.items()] if environ is None else environ
        task = {
            "words": words,
            "environ": dict(os.fsdecode(entry).split("=", 1) for entry in entries),
            "cwd": cwd,
            "session": bool(session),
            "group": os.getpgrp() if group < 0 else group,
            "parent": os.getpid(),
        }
        streams = (given[6], given[9], given[11])
        return found.fork(task, [number if stream < 0 else stream for number, stream in enumerate(streams)])

    module._fork_exec = fork_exec  # noqa: SLF001


def in_namespace(words: list[str]) -> tuple[str, list[str]]:
    """Splits a command into the network namespace that it is to run in, if any, and the rest."""
    return (words[3], words[4:]) if words[:3] == ["ip", "netns", "exec"] else ("", words)


def parsed(words: list[str]) -> tuple[list[str], list[str]] | None:
    """Splits a command into its options -W and the script, module or gate with arguments; `None` for any other."""
    options, rest = [], words[1:]
    while rest[:1] == ["-W"]:
        options.append(rest[1])
        rest = rest[2:]
    is_gate = rest[:3] == ["-I", "-S", GATE] and parsed(rest[3:]) is not None
    is_ours = is_gate or rest[:1] == ["-m"] or (rest and rest[0].endswith(".py"))
    return (options, rest) if words[0] == sys.executable and is_ours else None


class Preloaded:
    """A process that has imported everything and is forked.

    Raises:
      RuntimeError: an import has started a thread.
    """

    def __init__(self) -> None:
        self._environ = {name: value for name, value in os.environ.items() if name not in OWN}
        self._filters = list(warnings.filters)
        del sys.path[0]  # the directory of this file
        self._path = sys.path[len(os.environ["PYTHONPATH"].split(":")) :]
        with warnings.catch_warnings(action="error"):
            import trainband

            homes = (f"trainband.{home}" for home in sorted(set(trainband._HOMES.values())))  # noqa: SLF001
            for name in (*LIBRARIES, "trainband.launch.exec_gate", *homes):
                import_module(name)
            added = [each for each in warnings.filters if each not in self._filters]
            self._added_filters = [each for each in added if each[0] != "error" or each[2] is not Warning]
        for name in trainband._MODULES:  # noqa: SLF001 - their first use depends on the environment
            delattr(trainband, name)
        self._set_by_imports = {name: os.environ[name] for name in set(os.environ) - set(self._environ) - set(OWN)}
        self._packages = {name.partition(".")[0] for name in sys.modules}
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        self._shown_at = [int(field) for field in fields[45:49]]
        """Start and end of the command and of the environment in memory."""
        with warnings.catch_warnings(action="ignore"):
            if not os.fork():  # the threads of OpenBLAS end at the first fork, for good
                os._exit(0)
        os.wait()
        gc.collect()
        gc.freeze()
        until = time.monotonic() + DEADLINE_S / 2
        while len(list(Path("/proc/self/task").iterdir())) > 1:
            if time.monotonic() > until:
                raise RuntimeError("an import has started a thread, so that a forked process may hang.")
            time.sleep(0.01)

    def serve(self, end: socket.socket) -> tuple[dict[str, Any], list[str]]:
        """Forks on request. Returns in each new process, with the request and its command."""
        while True:
            message, streams, _, _ = socket.recv_fds(end, 1 << 20, 3)
            if not message:
                os._exit(0)
            if not (between := os.fork()):
                if os.fork():
                    os._exit(0)
                return self._become(json.loads(message), streams, end)
            os.waitpid(between, 0)
            for stream in streams:
                os.close(stream)

    def _become(self, task: dict[str, Any], streams: list[int], end: socket.socket) -> tuple[dict[str, Any], list[str]]:
        until = time.monotonic() + DEADLINE_S
        while os.getppid() != task["parent"]:  # until the process between has exited
            if time.monotonic() > until:
                os._exit(1)
            time.sleep(0.0005)
        os.setsid() if task["session"] else os.setpgid(0, task["group"])
        os.chdir(task["cwd"])
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        machine, words = in_namespace(task["words"])
        if machine:
            _enter(machine)
        self._show(task, words)
        end.send(str(os.getpid()).encode())
        end.detach()
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        _, rest = parsed(words) or ([], [])
        return self._serve_launcher(task, words) if rest[:3] == LAUNCHER else (task, words)

    def _serve_launcher(self, task: dict[str, Any], words: list[str]) -> tuple[dict[str, Any], list[str]]:
        """Forks a server that ends with the launcher. Returns in the launcher and in each of its tasks."""
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork():
            its.close()
            server = ForkServer(ours)
            install(lambda: server)
            return task, words
        ours.close()
        os.setpgid(0, 0)
        null = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(null, number)
        return self.serve(its)

    def run(self, task: dict[str, Any], words: list[str]) -> None:
        """Runs a command as Python would."""
        if GATE in words:
            words = _pass_gate(words[3:])
        has_room = self._show(task, words)
        options, rest = parsed(words) or ([], [])
        is_module, place = rest[0] == "-m", Path(rest[0])
        first = os.fspath(Path.cwd() if is_module else place.resolve().parent)
        can_run = rest[1] not in sys.modules if is_module else place.is_file()
        if not (has_room and can_run and self._is_like_new(task["environ"], first)):
            for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(ignored, signal.SIG_DFL)
            os.execve(words[0], words, task["environ"])
        self._apply(task["environ"], options, first)
        sys.orig_argv[:], sys.argv[:] = words, rest[is_module:]
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        main.__dict__.update(__builtins__=__builtins__)
        try:
            if is_module:
                module: Any = runpy
                module._run_module_as_main(rest[1])  # noqa: SLF001 - this is what Python calls
            else:
                main.__dict__.update(__file__=rest[0], __loader__=SourceFileLoader("__main__", rest[0]))
                exec(compile(place.read_bytes(), rest[0], "exec", dont_inherit=True), main.__dict__)
        except BaseException as exc:
            trace, show = exc.__traceback__ and exc.__traceback__.tb_next, sys.excepthook  # without this frame
            sys.excepthook = lambda kind, exc, _: show(kind, exc.with_traceback(trace), trace)
            raise

    def _is_like_new(self, wanted: dict[str, str], first: str) -> bool:
        """Whether a new interpreter with this environment and first entry of `sys.path` would have the same imports."""
        here = self._environ | {name: value for name, value in self._set_by_imports.items() if name in wanted}
        read = {name for name in wanted | here if name.startswith(READ_BY_IMPORTS)} - APPLIED
        differ = {name for name in read if wanted.get(name) != here.get(name)}
        shadows = self._packages & {path.name.partition(".")[0] for path in Path(first).iterdir()}
        return (
            differ <= wanted.keys() & APPLIED_TO_JAX
            and not shadows
            and SOURCE in wanted.get("PYTHONPATH", "").split(":")
        )

    def _show(self, task: dict[str, Any], words: list[str]) -> bool:
        """Writes the command and the environment that /proc shows; false if there is no room."""
        for i, texts in enumerate((words, ["=".join(pair) for pair in task["environ"].items()])):
            start, end = self._shown_at[2 * i : 2 * i + 2]
            data = b"".join(os.fsencode(text) + b"\0" for text in texts)
            if len(data) > end - start:
                return False
            ctypes.memmove(start, data.ljust(end - start, b"\0"), end - start)
        return True

    def _apply(self, wanted: dict[str, str], options: list[str], first: str) -> None:
        """Does what Python, NumPy and JAX do with an environment and options -W when they start."""
        os.environ.clear()
        os.environ.update(self._set_by_imports | wanted)
        paths = [os.fspath(Path(path).absolute()) for path in wanted["PYTHONPATH"].split(":")]
        sys.path[:] = dict.fromkeys((first, *paths, *self._path))
        warn: Any = warnings
        sys.warnoptions[:] = dict.fromkeys([*filter(None, wanted.get("PYTHONWARNINGS", "").split(",")), *options])
        warn.resetwarnings()
        warn.filters[:] = self._filters
        warn._processoptions(sys.warnoptions)  # noqa: SLF001
        warn.filters[:0] = self._added_filters
        for name in APPLIED_TO_JAX:
            if wanted.get(name) != self._environ.get(name):
                sys.modules["jax"].config.update(name.lower(), wanted[name])
        sys.modules["numpy"].random.seed()  # Python's own differs in each fork
        for number, name in enumerate(("stdout", "stderr"), 1):
            stream = getattr(sys, name)
            if wanted.get("PYTHONUNBUFFERED"):
                file: Any = io.FileIO(number, "w", closefd=False)
                kinds = {"encoding": stream.encoding, "errors": stream.errors, "newline": "\n"}
                stream = io.TextIOWrapper(file, **kinds, write_through=True)
                setattr(sys, name, stream)
                setattr(sys, f"__{name}__", stream)
            elif name == "stdout":
                stream.reconfigure(line_buffering=os.isatty(number))


def _enter(machine: str) -> None:
    """Does what `ip netns exec` does."""
    with Path(f"/run/netns/{machine}").open() as namespace:
        steps = [_libc.setns(namespace.fileno(), _CLONE_NEWNET), _libc.unshare(_CLONE_NEWNS)]
    steps += [_libc.mount(b"", b"/", b"none", _MS_SLAVE_ALL, None), _libc.umount2(b"/sys", _MNT_DETACH)]
    steps += [_libc.mount(machine.encode(), b"/sys", b"sysfs", 0, None)]
    if any(steps):
        raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {machine}: {steps}")


def _pass_gate(words: list[str]) -> list[str]:
    """Waits in `exec_gate`. Returns the command that it executes."""
    from trainband.launch import exec_gate

    class Passed(BaseException):
        pass

    def execute(_: str, command: list[str]) -> NoReturn:
        raise Passed(command)

    sys.argv[:] = words
    try:
        with mock.patch("os.execvp", execute):
            exec_gate.main()
    except Passed as passed:
        return list(passed.args[0])
    raise RuntimeError("the gate has neither opened nor ended this process.")


if __name__ == "__main__":
    _end = socket.socket(fileno=int(sys.argv[1]))
    _preloaded = Preloaded()
    _preloaded.run(*_preloaded.serve(_end))
