"""Routes: the addresses of the page."""

from __future__ import annotations

import asyncio
import mimetypes
from collections.abc import Callable
from functools import lru_cache
from importlib import resources
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from trainband.errors import TrainbandError
from trainband.monitor.live_feed import LiveFeed
from trainband.monitor.page.frames import Frames, events_of, job_of, named, runs_of
from trainband.monitor.page.stream import EventStream
from trainband.monitor.step_recordings import PageRecorder
from trainband.monitor.tensor_summary import TensorSummary
from trainband.runtime.exposition import CONTENT_TYPE
from trainband.wire.messages.recording import MOST_STEPS

STATIC = resources.files("trainband.monitor.page") / "static"
ORDER_HEADER = "x-trainband-order"
"""Header of requests that order something: no form or script of another site can send it."""

MOST_ROWS = 20_000
"""Rows of a series for a program that asks for it."""
_MOST_DIGITS = 18
_MOST_NAME = 200
"""Characters in the path of a static file."""


class Routes:
    """The addresses of a page and their answers; see `make_app`."""

    def __init__(
        self,
        feed: LiveFeed,
        metrics: Callable[[], str] | None,
        summary: Callable[[str], TensorSummary] | None,
        recorder: PageRecorder | None,
    ) -> None:
        self._feed = feed
        self._metrics = metrics
        self._summary = summary
        self._recorder = recorder
        self._stream = EventStream(Frames(feed, has_values=summary is not None, has_profile=recorder is not None))

    def all(self) -> list[Route]:
        """Returns them for Starlette."""
        answers: dict[str, Callable[..., Any]] = {
            "/": self._index,
            "/static/{path:path}": self._static,
            "/api/job": self._job,
            "/api/variables": self._variables,
            "/api/checkpoints": self._checkpoints,
            "/api/timeline": self._timeline,
            "/api/series": self._series,
            "/api/values": self._values,
            "/api/profile/trace.json": self._trace,
            "/api/runs": self._runs,
            "/api/runs/{name:path}": self._run,
            "/metrics": self._prometheus,
            "/healthz": self._healthz,
            "/events": self._stream,
        }
        return [
            *(Route(path, answer, methods=["GET"]) for path, answer in answers.items()),
            Route("/api/profile", self._profile, methods=["GET", "POST"]),
        ]

    async def _index(self, _: Request) -> Response:
        return _file("index.html")

    async def _static(self, request: Request) -> Response:
        return _file(request.path_params["path"])

    async def _job(self, _: Request) -> Response:
        return _json(job_of(self._feed.snapshot))

    async def _variables(self, _: Request) -> Response:
        return _json(named(self._feed.snapshot.variables))

    async def _checkpoints(self, _: Request) -> Response:
        return _json(named(self._feed.checkpoints))

    async def _timeline(self, request: Request) -> Response:
        after = _count(request.query_params.get("after", "0"))
        if after is None:
            return PlainTextResponse("after must be the number of an event.\n", 400)
        return _json(events_of(self._feed.events_after(after)))

    async def _series(self, _: Request) -> Response:
        return _json(self._feed.columns(MOST_ROWS))

    async def _runs(self, _: Request) -> Response:
        return _json(runs_of(self._feed.runs))

    async def _run(self, request: Request) -> Response:
        name = request.path_params["name"]
        found = next((one for one in self._feed.runs if one.name == name), None)
        if found is None:
            return PlainTextResponse("There is no such run.\n", 404)
        return _json(named(found))

    async def _values(self, request: Request) -> Response:
        if self._summary is None:
            return PlainTextResponse(
                "Values of variables are read from ps or checkpoints: give HOST:PORT or --checkpoint-dir.\n", 404
            )
        try:
            found = await asyncio.to_thread(self._summary, request.query_params.get("name", ""))
        except TrainbandError as exc:
            return PlainTextResponse(f"{exc}\n", 404)
        return _json(named(found))

    async def _profile(self, request: Request) -> Response:
        if self._recorder is None:
            return PlainTextResponse("Steps are recorded by a ps, but this page knows none.\n", 404)
        if request.method != "POST":
            return _json(self._recorder.state)
        if ORDER_HEADER not in request.headers:
            return PlainTextResponse(f"Ordering a recording needs the header {ORDER_HEADER}.\n", 403)
        steps = _count(request.query_params.get("steps", "10"))
        if steps is None or not 1 <= steps <= MOST_STEPS:
            return PlainTextResponse(f"steps must be 1 to {MOST_STEPS}.\n", 400)
        return _json(self._recorder.start(steps))

    async def _trace(self, _: Request) -> Response:
        if self._recorder is None or self._recorder.trace is None:
            return PlainTextResponse("Nothing has been recorded yet.\n", 404)
        return _json(self._recorder.trace)

    async def _prometheus(self, _: Request) -> Response:
        if self._metrics is None:
            return PlainTextResponse("This page has no metrics.\n", 404)
        return Response(self._metrics(), media_type=CONTENT_TYPE)

    async def _healthz(self, _: Request) -> Response:
        return PlainTextResponse("ok\n")


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")


def _file(name: str) -> Response:
    found = static_file(name)
    if found is None:
        return PlainTextResponse("There is no such file.\n", 404)
    body, kind = found
    return Response(body, media_type=kind)


def _count(text: str) -> int | None:
    """Returns a number in a query; `None` if it is invalid or too large."""
    return int(text) if len(text) <= _MOST_DIGITS and text.isascii() and text.isdigit() else None


@lru_cache(maxsize=64)
def static_file(name: str) -> tuple[bytes, str] | None:
    """Returns a static file with its media type; `None` if unknown."""
    parts = name.split("/")
    if len(name) > _MOST_NAME or "\0" in name or any(part in ("", ".", "..") or "\\" in part for part in parts):
        return None
    path = STATIC.joinpath(*parts)
    if not path.is_file():
        return None
    kind = "text/javascript" if name.endswith(".js") else mimetypes.guess_type(name)[0] or "application/octet-stream"
    return path.read_bytes(), kind
