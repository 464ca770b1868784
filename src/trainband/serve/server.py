"""InferenceServer: a served model behind HTTP, from opening the port to the last answer."""

from __future__ import annotations

import ssl
import threading
import time
from types import TracebackType
from typing import Any, Self

from trainband.errors import ModelMismatch, TrainbandError, YourError
from trainband.model.inference import InferenceProgram
from trainband.runtime.http.access import Access
from trainband.runtime.http.connections import HttpLimits
from trainband.runtime.http.server import HttpServer
from trainband.runtime.waiting import Say, say_on_stderr
from trainband.serve.app import App
from trainband.serve.model import ServedModel
from trainband.serve.options import ServeOptions
from trainband.serve.sources.base import SourceState, SourceStatus, VersionSource
from trainband.serve.sources.program import ProgramSource

CLOSING_S = 5.0
"""Time beyond `grace_s` to end the source and close connections."""

KEEP_ALIVE_S = 75.0
"""How long an idle connection stays open: longer than the 60 s of common load balancers."""

MOST_OF_HOST = 256
"""Connections from one host, unless more requests may be in progress."""


class InferenceServer:
    """Serves one model while its context lasts.

    ::

        with trainband.serve.InferenceServer(program, port=0) as server:
            requests.post(f"{server.url}/v1/models/{server.name}:predict", json={"instances": [...]})

    The port is open, and the server live, before the model is loaded; it is ready once the model is loaded and compiled
    for every batch size, which is when the context begins.

    Args:
      source: of the versions, or a program that stays as it is.
      name: of the model in URLs; its function's when empty.
      host: the address to listen on.
      port: 0 for a free one.
      options: limits and batching.
      access: who may ask; when `None`, those who reach the address, and only under the names of this machine.
      tls: encrypts, if given.
      say: prints lines for the user.
    """

    def __init__(
        self,
        source: VersionSource | InferenceProgram,
        *,
        name: str = "",
        host: str = "127.0.0.1",
        port: int = 8000,
        options: ServeOptions | None = None,
        access: Access | None = None,
        tls: ssl.SSLContext | None = None,
        say: Say = say_on_stderr,
    ) -> None:
        self._source = ProgramSource(source) if isinstance(source, InferenceProgram) else source
        self._given_name = name
        self._options = options or ServeOptions()
        self._say = say
        self._failed: SourceStatus | None = None
        self._stop = threading.Event()
        self._drained = threading.Event()
        self._model: ServedModel | None = None
        self._follower: threading.Thread | None = None
        self.app = App(self._options, lambda: self.status, access=access or Access.at(host), say=say)
        """The ASGI application."""
        most = max(MOST_OF_HOST, self._options.max_concurrency)
        limits = HttpLimits(keep_alive_s=KEEP_ALIVE_S, connections=2 * most, connections_of_host=most)
        self._http = HttpServer(
            self.app,
            name="trainband-serve-http",
            host=host,
            port=port,
            limits=limits,
            grace_s=self._options.grace_s,
            tls=tls,
        )

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self._http.port

    @property
    def url(self) -> str:
        """Its address, such as `http://127.0.0.1:8000`."""
        return self._http.url

    @property
    def model(self) -> ServedModel:
        """The served model.

        Raises:
          YourError: it is not loaded yet.
        """
        if self._model is None:
            raise YourError("the server has no model yet; use it within its context.")
        return self._model

    @property
    def name(self) -> str:
        """Name of the model."""
        return self.model.name

    @property
    def status(self) -> SourceStatus:
        """Status of the source."""
        return self._failed or self._source.status

    def __enter__(self) -> Self:
        """Opens the port, loads the model and compiles it.

        Raises:
          AddressInUse: another process has the port.
          YourError: uvicorn is missing.
          TrainbandError: the source has no model.
        """
        try:
            self._http.start()
            self._model = self._source.open(self._given_name)
            self.app.open(self._model)
            self._follower = threading.Thread(target=self._follow, name="trainband-serve-source", daemon=True)
            self._follower.start()
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
        """Reports not ready, answers for another `drain_s`, finishes the requests in progress and ends."""
        self.app.draining = True
        self._stop.set()
        if self._model is not None and self._options.drain_s:
            self._drained.wait(self._options.drain_s)
        deadline = time.monotonic() + self._options.grace_s + CLOSING_S
        left = [] if self._http.stop(max(0.0, deadline - time.monotonic())) else ["that answers requests"]
        if self._follower is not None:
            self._follower.join(max(0.0, deadline - time.monotonic()))
            left += ["of the source"] if self._follower.is_alive() else []
        for what in left:
            self._say(f"the thread {what} did not end within {self._options.grace_s:g} s and was abandoned")
        self.app.close()

    def _follow(self) -> None:
        try:
            self._source.run(self._swap, self._stop)
        except Exception as exc:  # the server keeps its version, and its health reports why
            kind = "" if isinstance(exc, TrainbandError) else f"{type(exc).__name__}: "
            self._failed = SourceStatus(SourceState.FAILED, f"{kind}{exc}")
            self._say(f"no newer versions are served: {kind}{exc}")

    def _swap(self, weights: Any, number: int, *, source: str = "", made_at: float | None = None) -> object:
        try:
            return self.model.swap(weights, number, source=source, made_at=made_at)
        except ModelMismatch:
            self.app.count_rejected()
            raise
