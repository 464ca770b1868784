"""App: the ASGI application that answers requests for one model.

It is written to ASGI itself: in a small request of 0.2 ms, a framework's routing and middleware would take a third. It
can be mounted into any ASGI framework's application.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, replace
from functools import lru_cache
from typing import Any, TypeVar

from trainband.errors import DataError
from trainband.runtime.exposition import CONTENT_TYPE
from trainband.runtime.http.access import Access
from trainband.runtime.http.asgi import Receive, Scope, Send, answer
from trainband.runtime.waiting import Say
from trainband.serve.batching import Tensors, Work
from trainband.serve.body import Body, encoding_of, packed, received, too_large, unpacked_at_most
from trainband.serve.executor import BatchStatistics, Delivered, Executor
from trainband.serve.model import LoadedVersion, ServedModel
from trainband.serve.options import ServeOptions
from trainband.serve.protocols import tensorflow as tensorflow_serving
from trainband.serve.protocols import v2 as open_inference
from trainband.serve.protocols.base import InferenceProtocol, Response, Write, number
from trainband.serve.refusal import Refusal
from trainband.serve.sources.base import SourceStatus
from trainband.serve.statistics import ServerMetrics
from trainband.serve.tensors import WINDOW

_MODEL = r"(?P<model>[^/:]+)(?:/versions/(?P<version>[^/:]+))?"
_V2 = re.compile(rf"/v2/models/{_MODEL}(?P<action>/ready|/infer|/config|/stats)?")
_TENSORFLOW = re.compile(rf"/v1/models/{_MODEL}(?P<action>/metadata|:[a-z]+)?")
_FIXED = {
    "/": "index",
    "/metrics": "metrics",
    "/v2": "v2",
    "/v2/health/live": "live",
    "/v2/health/ready": "ready",
    "/v2/models/stats": "stats",
    "/v2/repository/index": "repository",
}
_V2_ACTIONS = {
    None: "v2 metadata",
    "/ready": "model ready",
    "/infer": "infer",
    "/config": "config",
    "/stats": "stats",
}
_METHODS = {"infer": "POST", "predict": "POST", "repository": "POST"}
_UNSTARTED = "the model is loading; check /v2/health/ready."
LARGEST_BODIES = 64
"""Bodies of the largest size that may be held at once, or the same bytes in more and smaller ones."""

_RETRY = {"Retry-After": "1"}
_CHALLENGE = {"WWW-Authenticate": "Bearer"}
_PUBLIC = ("live", "ready", "model ready")
"""Answered without a token, for load balancers and Kubernetes."""
_MOST_ERROR = 1000

T = TypeVar("T")


@lru_cache(256)
def route(path: str) -> tuple[str, str, str]:
    """Parses a path into (action, model, version); a missing part is empty."""
    path = path.rstrip("/") or "/"
    if path in _FIXED:
        return _FIXED[path], "", ""
    if found := _V2.fullmatch(path):
        action = _V2_ACTIONS[found["action"]]
    elif found := _TENSORFLOW.fullmatch(path):
        action = {None: "status", "/metadata": "metadata", ":predict": "predict"}.get(found["action"], "")
    if not found or not action:
        return "", "", ""
    return action, found["model"], found["version"] or ""


def _error(message: str, status: int, headers: Mapping[str, str] | None = None) -> Response:
    """A refusal as JSON; it may contain what the client sent, which need not be text."""
    shown = message[:_MOST_ERROR].encode("utf-8", "replace").decode()
    return Response.of({"error": shown}, status, headers)


class App:
    """Answers requests for one model; refuses predictions until `open` is called.

    Args:
      options: limits.
      status: returns the current status of the model's source.
      access: who may ask; everyone when `None`, as within an application with its own checks.
      say: prints lines for the user.
    """

    def __init__(
        self, options: ServeOptions, status: Callable[[], SourceStatus], *, access: Access | None = None, say: Say
    ) -> None:
        self.metrics = ServerMetrics()
        self.draining = False
        """Set when the server is about to end: it is then not ready."""
        self._options = options
        self._status = status
        self._access = access
        self._say = say
        self._model: ServedModel | None = None
        self._executor: Executor | None = None
        self._protocols: dict[str, InferenceProtocol] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._arrived: list[Work] = []
        self._last_error = ""
        self._reader = ThreadPoolExecutor(1, "trainband-serve-json")
        self._held = 0
        """Bytes of the bodies of current requests."""

    def open(self, model: ServedModel) -> None:
        """Compiles a model for every batch size, then serves it."""
        executor = Executor(model, self._options, self._deliver, say=self._say)
        executor.start()
        self._reader.submit(lambda: None).result()  # starts its thread
        self._model = model
        self._executor = executor
        self._protocols = {
            "infer": open_inference.V2(model),
            "predict": tensorflow_serving.TensorFlowServing(model),
        }

    def close(self) -> None:
        """Ends the threads; gives up on the computing one after `grace_s`."""
        self._reader.shutdown(cancel_futures=True)
        if self._executor is not None and not self._executor.close(self._options.grace_s):
            self._say(f"the model did not finish within {self._options.grace_s:g} s and was abandoned")

    @property
    def ready(self) -> bool:
        """Whether it accepts requests."""
        return self._executor is not None and not self.draining

    def count_rejected(self) -> None:
        """Counts a version of another model; only called by the source's thread."""
        self.metrics.rejected.add(1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request; see ASGI."""
        if scope["type"] != "http":
            raise RuntimeError(f"{scope['type']} is not supported.")
        started = time.perf_counter()
        action, model, version = route(scope["path"].removeprefix(scope.get("root_path", "")))
        try:
            response = await self._answer(scope, receive, action, model, version)
        except DataError as exc:
            response = _error(str(exc), 400)
        except Refusal as exc:
            response = _error(exc.message, exc.status, exc.headers)
        protocol = self._protocols[action].name if action in self._protocols else "other"
        self.metrics.requests.add(1, ("protocol", protocol), ("code", str(response.status)))
        if protocol != "other":
            self.metrics.durations.observe(time.perf_counter() - started, ("protocol", protocol))
        told = response.status, response.body, response.content_type, response.headers
        await answer(send, *told, head_only=scope["method"] == "HEAD")

    async def _answer(self, scope: Scope, receive: Receive, action: str, model: str, version: str) -> Response:
        denial = self._access and self._access.denied(scope["headers"], public=action in _PUBLIC)
        if denial:
            raise Refusal(denial.status, denial.message, _CHALLENGE if denial.status == 401 else None)
        if not action:
            raise Refusal(404, f"there is nothing at {scope['path'][:200]}.")
        method = _METHODS.get(action, "GET")
        if scope["method"] not in (method, "HEAD" if method == "GET" else method):
            raise Refusal(405, f"{scope['path'][:200]} needs {method}, not {scope['method']}.", {"Allow": method})
        if action in self._protocols or action in ("infer", "predict"):
            return await self._predict(scope, receive, action, model, version)
        return self._answer_query(action, model, version)

    async def _predict(self, scope: Scope, receive: Receive, action: str, model: str, version: str) -> Response:
        self._require(model, version)
        if self.metrics.in_flight >= self._options.max_concurrency:
            raise Refusal(503, f"{self.metrics.in_flight} requests are in progress; retry later.", _RETRY)
        headers = dict(scope["headers"])
        said = number(headers, b"content-length")
        limit = self._options.max_body_bytes
        encoding = encoding_of(headers)
        accepted = headers.get(b"accept-encoding", b"").decode("latin-1")
        if (said or 0) > limit:
            raise too_large(limit)
        held = limit if said is None else unpacked_at_most(said, encoding, limit)
        if self._held + held > LARGEST_BODIES * limit:
            raise Refusal(503, f"bodies of {self._held:,} bytes are in progress; retry later.", _RETRY)
        self.metrics.in_flight += 1
        self._held += held
        try:
            came = False
            async with asyncio.timeout(self._options.request_timeout_s):
                body = Body(await received(receive, said, limit), encoding, limit)
                came = True
                self._held += body.held - held
                held = body.held
                inputs, write = await self._aside(body.is_long, lambda: self._read(action, body, headers))
                outputs, answered = await self._computed(inputs)
                is_long = sum(array.size for array in outputs.values()) > WINDOW
                return await self._aside(is_long, lambda: _encoded(write(outputs, answered), accepted))
        except TimeoutError:
            within = f"within {self._options.request_timeout_s:g} s"
            if came:
                raise Refusal(504, f"there was no answer {within}.", _RETRY) from None
            raise Refusal(408, f"the body did not arrive {within}.", {"Connection": "close"}) from None
        finally:
            self.metrics.in_flight -= 1
            self._held -= held

    def _read(self, action: str, body: Body, headers: Mapping[bytes, bytes]) -> tuple[Tensors, Write]:
        inputs, write = self._protocols[action].read(body.unpacked(), headers)
        assert self._model is not None
        self._model.check(inputs)
        return inputs, write

    async def _aside(self, is_long: bool, work: Callable[[], T]) -> T:
        """Runs long work in a separate thread, one piece at a time, so that short requests need not wait."""
        return await asyncio.get_running_loop().run_in_executor(self._reader, work) if is_long else work()

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
        if not self._arrived:  # requests of the same event loop round are submitted together
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
                work.finish(Refusal(503, "the server is shutting down.", _RETRY), None)

    def _deliver(self, done: Delivered, batch: BatchStatistics | None) -> None:
        """Called by the executor's thread."""
        assert self._loop is not None
        with suppress(RuntimeError):  # the event loop has ended, with all waiting requests
            self._loop.call_soon_threadsafe(self._finish, done, batch)

    def _finish(self, done: Delivered, batch: BatchStatistics | None) -> None:
        if batch is not None:
            self.metrics.record_batch(batch)
        for work, outputs, version in done:
            work.finish(outputs, version)

    def _require(self, name: str, version: str) -> LoadedVersion:
        """Returns the version that a request is for.

        Raises:
          Refusal: it is not served.
        """
        if self._model is None:
            raise Refusal(503, _UNSTARTED, _RETRY)
        current = self._model.current
        if name != self._model.name:
            raise Refusal(404, f"there is no model {name[:100]!r}; {self._model.name!r} is served.")
        if version and version != str(current.number):
            raise Refusal(404, f"version {version[:100]} of {name} is not served; {current.number} is.")
        return current

    def _answer_query(self, action: str, name: str, version: str) -> Response:
        """Answers requests other than predictions."""
        if action == "live":
            return Response.of({"live": True})
        if action == "v2":
            return Response.of(open_inference.server_metadata())
        if action == "metrics":
            return self._metrics()
        if action in ("ready", "index", "repository"):
            return self._state(action)
        current = self._require(name or (self._model.name if self._model and action == "stats" else ""), version)
        v2 = self._protocols["infer"]
        if action == "v2 metadata":
            return Response.of(v2.metadata(current))
        if action == "config" and isinstance(v2, open_inference.V2):
            return Response.of(v2.config(self._options.max_batch))
        if action == "stats":
            assert self._model is not None
            return Response.of(open_inference.statistics(self._model.name, str(current.number), self.metrics))
        if action == "metadata":
            return Response.of(self._protocols["predict"].metadata(current))
        if action == "status":
            kserve = {"name": name, "ready": self.ready}  # KServe's version 1 of the protocol uses the same address
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
        """Reports the health: readiness, the version served, and the source's status."""
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


def _encoded(response: Response, accepted: str) -> Response:
    """Compresses the response with gzip or deflate if the client accepts nothing else, as Triton does.

    Most clients list all that they can read, on networks where compressing takes longer than sending.
    """
    if accepted not in ("gzip", "deflate"):
        return response
    return replace(
        response, body=packed(response.body, accepted), headers={**response.headers, "Content-Encoding": accepted}
    )
