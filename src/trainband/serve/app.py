"""App: the ASGI application that answers requests for one model.

It is written to ASGI itself: of the 0.2 ms that a small request takes, a framework's routing and middleware would be a
third. It can be mounted into any ASGI framework's application.
"""

from __future__ import annotations

import asyncio
import re
import time
import zlib
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import asdict
from functools import lru_cache
from typing import Any

from trainband.errors import DataError
from trainband.runtime.exposition import CONTENT_TYPE
from trainband.runtime.waiting import Say
from trainband.serve.batching import Tensors, Work
from trainband.serve.executor import BatchStatistics, Delivered, Executor
from trainband.serve.model import LoadedVersion, ServedModel
from trainband.serve.options import ServeOptions
from trainband.serve.protocols import tensorflow as tensorflow_serving
from trainband.serve.protocols import v2 as open_inference
from trainband.serve.protocols.base import InferenceProtocol, Response, number
from trainband.serve.refusal import Refusal
from trainband.serve.sources.base import SourceStatus
from trainband.serve.statistics import ServerMetrics

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_MODEL = r"(?P<model>[^/:]+)(?:/versions/(?P<version>[^/:]+))?"
_V2 = re.compile(rf"/v2/models/{_MODEL}(?P<action>/ready|/infer)?")
_TENSORFLOW = re.compile(rf"/v1/models/{_MODEL}(?P<action>/metadata|:[a-z]+)?")
_FIXED = {
    "/": "index",
    "/metrics": "metrics",
    "/v2": "v2",
    "/v2/health/live": "live",
    "/v2/health/ready": "ready",
    "/v2/repository/index": "repository",
}
_METHODS = {"infer": "POST", "predict": "POST", "repository": "POST"}
_UNSTARTED = "the model is being loaded; look at /v2/health/ready."
_WINDOW_BITS = {"identity": 0, "gzip": 31, "deflate": 15}
"""How zlib is told each Content-Encoding."""
LARGEST_BODIES = 64
"""How many bodies of the largest size may be held at once, or as many bytes in more and smaller ones."""

_RETRY = {"Retry-After": "1"}


@lru_cache(256)
def route(path: str) -> tuple[str, str, str]:
    """What a path asks for, of which model, of which version: (action, model, version); empty where there is none."""
    path = path.rstrip("/") or "/"
    if path in _FIXED:
        return _FIXED[path], "", ""
    if found := _V2.fullmatch(path):
        action = {None: "v2 metadata", "/ready": "model ready", "/infer": "infer"}[found["action"]]
    elif found := _TENSORFLOW.fullmatch(path):
        action = {None: "status", "/metadata": "metadata", ":predict": "predict"}.get(found["action"], "")
    if not found or not action:
        return "", "", ""
    return action, found["model"], found["version"] or ""


class App:
    """See the module. It refuses predictions until `open` was called.

    Args:
      options: limits.
      status: of the model's source, as it is when it is asked for.
      say: takes lines for the user.
    """

    def __init__(self, options: ServeOptions, status: Callable[[], SourceStatus], *, say: Say) -> None:
        self.metrics = ServerMetrics()
        self.draining = False
        """Set when the server is to end: readiness then says no."""
        self._options = options
        self._status = status
        self._say = say
        self._model: ServedModel | None = None
        self._executor: Executor | None = None
        self._protocols: dict[str, InferenceProtocol] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._arrived: list[Work] = []
        self._last_error = ""
        self._held = 0
        """Bytes of the bodies of the requests under way."""

    def open(self, model: ServedModel) -> None:
        """Compiles a model for every batch size, then serves it."""
        executor = Executor(model, self._options, self._deliver, say=self._say)
        executor.start()
        self._model = model
        self._executor = executor
        self._protocols = {
            "infer": open_inference.V2(model),
            "predict": tensorflow_serving.TensorFlowServing(model),
        }

    def close(self) -> None:
        """Ends the thread that computes, unless the model does not come back within `grace_s`."""
        if self._executor is not None and not self._executor.close(self._options.grace_s):
            self._say(f"the model has not come back within {self._options.grace_s:g} s and is left behind")

    @property
    def ready(self) -> bool:
        """Whether it takes requests, and is to get them."""
        return self._executor is not None and not self.draining

    def count_rejected(self) -> None:
        """Counts a version of another model; called by the thread of the source alone."""
        self.metrics.rejected.add()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request, see ASGI."""
        if scope["type"] != "http":
            raise RuntimeError(f"there is nothing for {scope['type']} here.")
        started = time.perf_counter()
        action, model, version = route(scope["path"].removeprefix(scope.get("root_path", "")))
        try:
            response = await self._answer(scope, receive, action, model, version)
        except DataError as exc:
            response = Response.of({"error": str(exc)}, 400)
        except Refusal as exc:
            response = Response.of({"error": exc.message}, exc.status, exc.headers)
        protocol = self._protocols[action].name if action in self._protocols else "other"
        self.metrics.requests.add(labels=(("protocol", protocol), ("code", str(response.status))))
        if protocol != "other":
            self.metrics.durations.observe(time.perf_counter() - started, (("protocol", protocol),))
        headers = [
            (b"content-type", response.content_type.encode()),
            (b"content-length", str(len(response.body)).encode()),
            *((name.lower().encode(), text.encode()) for name, text in response.headers.items()),
        ]
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else response.body})

    async def _answer(self, scope: Scope, receive: Receive, action: str, model: str, version: str) -> Response:
        if not action:
            raise Refusal(404, f"there is nothing at {scope['path']}.")
        method = _METHODS.get(action, "GET")
        if scope["method"] not in (method, "HEAD" if method == "GET" else method):
            raise Refusal(405, f"{scope['path']} wants {method}, not {scope['method']}.", {"Allow": method})
        if action in self._protocols or action in ("infer", "predict"):
            return await self._predict(scope, receive, action, model, version)
        return self._tell(action, model, version)

    async def _predict(self, scope: Scope, receive: Receive, action: str, model: str, version: str) -> Response:
        self._require(model, version)
        if self.metrics.in_flight >= self._options.max_concurrency:
            raise Refusal(503, f"{self.metrics.in_flight} requests are under way; come back later.", _RETRY)
        headers = dict(scope["headers"])
        said = number(headers, b"content-length")
        held = self._options.max_body_bytes if said is None else said
        if held > self._options.max_body_bytes:
            raise self._too_large()
        if self._held + held > LARGEST_BODIES * self._options.max_body_bytes:
            raise Refusal(503, f"bodies of {self._held:,} bytes are being worked on; come back later.", _RETRY)
        self.metrics.in_flight += 1
        self._held += held
        try:
            came = False
            async with asyncio.timeout(self._options.request_timeout_s):
                body = await self._body(headers, receive, said)
                came = True
                self._held += len(body) - held
                held = len(body)
                inputs, write = self._protocols[action].read(body, headers)
                assert self._model is not None
                self._model.signature.check(inputs)
                outputs, answered = await self._computed(inputs)
            return write(outputs, answered)
        except TimeoutError:
            within = f"within {self._options.request_timeout_s:g} s"
            if came:
                raise Refusal(504, f"there was no answer {within}.", _RETRY) from None
            raise Refusal(408, f"the body did not come {within}.", {"Connection": "close"}) from None
        finally:
            self.metrics.in_flight -= 1
            self._held -= held

    def _too_large(self) -> Refusal:
        return Refusal(413, f"the body is larger than {self._options.max_body_bytes:,} bytes.", {"Connection": "close"})

    async def _body(self, headers: Mapping[bytes, bytes], receive: Receive, said: int | None) -> bytes:
        """The body of a request, whole; `said` is its Content-Length."""
        limit = self._options.max_body_bytes
        encoding = headers.get(b"content-encoding", b"identity").decode("latin-1").lower()
        if encoding not in _WINDOW_BITS:
            raise Refusal(415, f"the body is encoded as {encoding}; there is {', '.join(_WINDOW_BITS)}.")
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Refusal(400, "the body ends too soon.")
        if not message.get("more_body"):
            body: bytes = message.get("body", b"")
            if len(body) > limit:
                raise self._too_large()
        else:
            parts = bytearray(message.get("body", b""))
            while message.get("more_body"):
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Refusal(400, f"the body ends after {len(parts)} bytes.")
                parts += message.get("body", b"")
                if len(parts) > limit:
                    raise self._too_large()
            body = bytes(parts)
        if said is not None and said != len(body):
            raise Refusal(400, f"Content-Length is {said}, and the body has {len(body)} bytes.")
        if encoding != "identity":
            unpacker = zlib.decompressobj(_WINDOW_BITS[encoding])
            try:
                body = unpacker.decompress(body, limit)
            except zlib.error as exc:
                raise Refusal(400, f"the body is not encoded as {encoding}: {exc}.") from exc
            if unpacker.unconsumed_tail:
                raise self._too_large()
            if not unpacker.eof:
                raise Refusal(400, f"the body ends within what is encoded as {encoding}.")
        return body

    async def _computed(self, inputs: Tensors) -> tuple[Tensors, LoadedVersion]:
        assert self._executor is not None
        executor = self._executor
        examples = executor.examples(inputs)
        if examples == 0:
            raise DataError("there are no examples in the request.")
        loop = self._loop = asyncio.get_running_loop()
        future: asyncio.Future[tuple[Tensors, LoadedVersion]] = loop.create_future()

        def finish(outputs: Tensors | Exception, version: LoadedVersion | None) -> None:
            if future.done():
                return
            if isinstance(outputs, Exception):
                future.set_exception(outputs)
            else:
                assert version is not None
                future.set_result((outputs, version))

        now = time.monotonic()
        work = Work(inputs, examples, executor.key(inputs), now, now + self._options.request_timeout_s, finish)
        if not self._arrived:  # those that arrive in the same round of the event loop go in together
            loop.call_soon(self._submit)
        self._arrived.append(work)
        try:
            return await future
        except (Refusal, TimeoutError):
            raise
        except Exception as exc:
            reason = (str(exc).splitlines() or [""])[0]
            text = f"the model failed: {type(exc).__name__}: {reason}"
            if text != self._last_error:
                self._last_error = text
                self._say(text)
            raise Refusal(500, text) from exc

    def _submit(self) -> None:
        assert self._executor is not None
        works, self._arrived = self._arrived, []
        try:
            self._executor.submit(works)
        except RuntimeError:
            for work in works:
                work.finish(Refusal(503, "the server is ending.", _RETRY), None)

    def _deliver(self, done: Delivered, batch: BatchStatistics | None) -> None:
        """Called by the executor's thread."""
        assert self._loop is not None
        with suppress(RuntimeError):  # the event loop has ended, and with it all who waited
            self._loop.call_soon_threadsafe(self._finish, done, batch)

    def _finish(self, done: Delivered, batch: BatchStatistics | None) -> None:
        if batch is not None:
            self.metrics.note_batch(batch)
        for work, outputs, version in done:
            work.finish(outputs, version)

    def _require(self, name: str, version: str) -> LoadedVersion:
        """The version that a request is for.

        Raises:
          Refusal: it is not served.
        """
        if self._model is None:
            raise Refusal(503, _UNSTARTED, _RETRY)
        current = self._model.current
        if name != self._model.name:
            raise Refusal(404, f"there is no model {name!r}; {self._model.name!r} is served.")
        if version and version != str(current.number):
            raise Refusal(404, f"version {version} of {name} is not served; {current.number} is.")
        return current

    def _tell(self, action: str, name: str, version: str) -> Response:
        """What is no prediction."""
        if action == "live":
            return Response.of({"live": True})
        if action == "v2":
            return Response.of(open_inference.server_metadata())
        if action == "metrics":
            return self._metrics()
        if action in ("ready", "index", "repository"):
            return self._state(action)
        current = self._require(name, version)
        if action == "v2 metadata":
            return Response.of(self._protocols["infer"].metadata(current))
        if action == "metadata":
            return Response.of(self._protocols["predict"].metadata(current))
        if action == "status":
            kserve = {"name": name, "ready": self.ready}  # its own version 1 of the protocol asks at the same address
            return Response.of({**tensorflow_serving.status(current), **kserve})
        return Response.of({"name": name, "ready": self.ready}, 200 if self.ready else 503)

    def _metrics(self) -> Response:
        text = self.metrics.text(
            self._model,
            self._status(),
            name=self._model.name if self._model else "",
            waiting=self._executor.waiting if self._executor else 0,
            ready=self.ready,
        )
        return Response(text.encode(), content_type=CONTENT_TYPE)

    def _state(self, action: str) -> Response:
        """The health: whether it is ready, what it serves, and how its source is."""
        version = self._model.current if self._model else None
        if action == "repository":
            state = {"state": "READY" if self.ready else "UNAVAILABLE", "reason": "" if self.ready else _UNSTARTED}
            if self._model is None or version is None:
                return Response.of([])
            return Response.of([{"name": self._model.name, "version": str(version.number), **state}])
        value: dict[str, Any] = {"ready": self.ready, "source": asdict(self._status())}
        if self._model is not None and version is not None:
            value |= {
                "model": self._model.name,
                "version": version.number,
                "version_source": version.source,
                "version_made_at": version.made_at,
                "version_delay_seconds": version.delay_s,
            }
        if action == "index":
            return Response.of({"server": "trainband", "status": "alive", **value})
        return Response.of(value, 200 if self.ready else 503)
