"""InferenceServer: a served model behind HTTP, from the port's opening to the last answer."""

from __future__ import annotations

import socket
import threading
import time
from types import TracebackType
from typing import Any, Self

from trainband.errors import AddressInUse, DeadlineExceeded, ModelMismatch, TrainbandError, YourError
from trainband.model.inference import InferenceProgram
from trainband.runtime.waiting import Say, say_on_stderr
from trainband.serve.app import App
from trainband.serve.model import ServedModel
from trainband.serve.options import ServeOptions
from trainband.serve.sources.base import SourceState, SourceStatus, VersionSource
from trainband.serve.sources.program import ProgramSource

START_S = 20.0
"""How long the HTTP server may take to listen."""

CLOSING_S = 5.0
"""Beyond `grace_s`, for a source to end and connections to be closed."""

KEEP_ALIVE_S = 75
"""How long a connection without a request stays open: longer than the 60 s of common load balancers."""


class InferenceServer:
    """Serves one model while its context lasts.

    ::

        with trainband.serve.InferenceServer(program, port=0) as server:
            requests.post(f"{server.url}/v1/models/{server.name}:predict", json={"instances": [...]})

    The port is open, and liveness says yes, before the model is loaded; readiness says yes once it is loaded and
    compiled for every batch size, which is when the context begins.

    Args:
      source: where the versions come from, or a program that stays as it is.
      name: of the model in addresses; its function's when empty.
      host: the address to listen on. Anybody who reaches it may ask for predictions: there is no authentication.
      port: 0 for a free one.
      options: limits and batching.
      say: takes lines for the user.
    """

    def __init__(
        self,
        source: VersionSource | InferenceProgram,
        *,
        name: str = "",
        host: str = "127.0.0.1",
        port: int = 8000,
        options: ServeOptions | None = None,
        say: Say = say_on_stderr,
    ) -> None:
        self._source = ProgramSource(source) if isinstance(source, InferenceProgram) else source
        self._given_name = name
        self._host = host
        self._wanted_port = port
        self._options = options or ServeOptions()
        self._say = say
        self._failed: SourceStatus | None = None
        self._stop = threading.Event()
        self._model: ServedModel | None = None
        self._socket: socket.socket | None = None
        self._http: Any = None
        self._threads: list[threading.Thread] = []
        self.app = App(self._options, lambda: self.status, say=say)
        """The ASGI application."""

    @property
    def port(self) -> int:
        """That it listens on."""
        return int(self._socket.getsockname()[1]) if self._socket is not None else self._wanted_port

    @property
    def url(self) -> str:
        """Where it listens, as `http://127.0.0.1:8000`."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self.port}"

    @property
    def model(self) -> ServedModel:
        """What is served.

        Raises:
          YourError: it is not loaded yet.
        """
        if self._model is None:
            raise YourError("the server has no model yet; use it within its context.")
        return self._model

    @property
    def name(self) -> str:
        """Of the model."""
        return self.model.name

    @property
    def status(self) -> SourceStatus:
        """Of the source."""
        return self._failed or self._source.status

    def __enter__(self) -> Self:
        """Opens the port, loads the model and compiles it.

        Raises:
          AddressInUse: another process has the port.
          YourError: uvicorn is missing.
          TrainbandError: the source has no model.
        """
        self._socket = _listening(self._host, self._wanted_port)
        try:
            self._start_http()
            self._model = self._source.open(self._given_name)
            self.app.open(self._model)
            self._start(self._follow, "trainband-serve-source")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """Ends as `close` does."""
        self.close()

    def close(self) -> None:
        """Says no to readiness, answers for `drain_s` more, finishes the requests that are under way and ends."""
        self.app.draining = True
        self._stop.set()
        if self._model is not None and self._options.drain_s:
            time.sleep(self._options.drain_s)
        if self._http is not None:
            self._http.should_exit = True
        deadline = time.monotonic() + self._options.grace_s + CLOSING_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                self._say(
                    f"the thread {thread.name} has not ended within {self._options.grace_s:g} s and is left behind"
                )
        self._threads = []
        self.app.close()
        if self._socket is not None:
            self._socket.close()

    def _start_http(self) -> None:
        try:
            import uvicorn
        except ImportError as exc:
            raise YourError("serving needs uvicorn: pip install 'trainband[serve]'.") from exc
        config = uvicorn.Config(
            self.app,
            log_config=None,
            access_log=False,
            lifespan="off",
            interface="asgi3",
            ws="none",
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=max(1, round(self._options.grace_s)),
        )
        self._http = uvicorn.Server(config)
        # In a thread of its own, where uvicorn leaves the process's signals alone.
        self._start(lambda: self._http.run(sockets=[self._socket]), "trainband-serve-http")
        deadline = time.monotonic() + START_S
        while not self._http.started:
            if not self._threads[0].is_alive() or time.monotonic() > deadline:
                raise DeadlineExceeded(f"the HTTP server did not come up within {START_S:g} s; see its log above.")
            time.sleep(0.005)

    def _start(self, run: Any, name: str) -> None:
        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _follow(self) -> None:
        try:
            self._source.run(self._swap, self._stop)
        except Exception as exc:  # the server goes on with the version that it has, and its health says why
            kind = "" if isinstance(exc, TrainbandError) else f"{type(exc).__name__}: "
            self._failed = SourceStatus(SourceState.FAILED, f"{kind}{exc}")
            self._say(f"no newer versions are served: {kind}{exc}")

    def _swap(self, weights: Any, number: int, *, source: str = "", made_at: float | None = None) -> object:
        try:
            return self.model.swap(weights, number, source=source, made_at=made_at)
        except ModelMismatch:
            self.app.count_rejected()
            raise


def _listening(host: str, port: int) -> socket.socket:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(found[0], socket.SOCK_STREAM)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(found[4])
        except OSError:
            made.close()
            raise
    except OSError as exc:
        raise AddressInUse(
            f"cannot listen on {host}:{port} ({exc.strerror or exc}); choose another --host or --port (0: a free one)."
        ) from exc
    return made
