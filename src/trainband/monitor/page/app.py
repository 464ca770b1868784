"""The ASGI application of the page: it changes nothing of the job, and nothing of it comes from another host."""

from __future__ import annotations

import asyncio
import mimetypes
from collections.abc import Awaitable, Callable, MutableMapping
from functools import lru_cache
from importlib import resources
from typing import Any
from urllib.parse import parse_qs

import msgspec

from trainband.errors import TrainbandError, YourError
from trainband.monitor.feed import Feed
from trainband.monitor.page.access import Access
from trainband.monitor.page.frames import Frames, events_of, job_of, named, runs_of
from trainband.monitor.page.stream import EventStream, Receive, Send
from trainband.monitor.step_recordings import PageRecorder
from trainband.monitor.tensor_summary import TensorSummary
from trainband.wire.recording import MOST_STEPS

Scope = MutableMapping[str, Any]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

STATIC = resources.files("trainband.monitor.page") / "static"
ORDER_HEADER = "x-trainband-order"
"""Of what orders something: no form and no script of another site can send it."""

MOST_ROWS = 20_000
"""Of a series, where a program asks for it."""

SECURITY_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
"""Of every answer. Addresses may hold a token and the job may be secret: nothing is cached or told to other sites."""

_FORBIDDEN = (
    "This page is for those who know its token. Open the address that trainband printed: it has the token in it. "
    "Programs send it as 'Authorization: Bearer TOKEN'.\n"
)


def make_app(
    feed: Feed,
    access: Access | None = None,
    *,
    metrics: Callable[[], str] | None = None,
    summary: Callable[[str], TensorSummary] | None = None,
    recorder: PageRecorder | None = None,
) -> Application:
    """The application.

    ::

        /                 the page
        /static/...       what it loads
        /events           server-sent events: `full`, then `now`, `events` and `changed`
        /api/job          the newest snapshot, as the page gets it
        /api/variables    /api/checkpoints   /api/timeline   /api/series   /api/runs   /api/runs/NAME
        /api/values?name=NAME   the norm and histogram of a variable
        /api/profile      how far the recording of steps is; by POST with ?steps=N, begins one
        /api/profile/trace.json   what was recorded, as a trace
        /metrics          for Prometheus
        /healthz          whether this server answers; without a token

    Args:
      feed: what is shown.
      access: who may look; anybody on this machine when `None`.
      metrics: makes the text for Prometheus; `/metrics` is not there without.
      summary: tells what the values of a variable are like, for `/api/values?name=NAME`.
      recorder: records steps of the job, where a ps can be asked for that.

    Raises:
      YourError: Starlette is missing.
    """
    try:
        from starlette.applications import Starlette
        from starlette.requests import Request
        from starlette.responses import PlainTextResponse, Response
        from starlette.routing import Route
    except ImportError as exc:
        raise YourError("the page needs Starlette: pip install 'trainband[serve]'.") from exc

    frames = Frames(feed, has_values=summary is not None, has_profile=recorder is not None)
    stream = EventStream(frames)

    def json(value: Any) -> Response:
        return Response(msgspec.json.encode(value), media_type="application/json")

    async def index(_: Request) -> Response:
        return _file("index.html")

    async def static(request: Request) -> Response:
        return _file(request.path_params["path"])

    def _file(name: str) -> Response:
        found = static_file(name)
        if found is None:
            return PlainTextResponse("There is no such file.\n", 404)
        body, kind = found
        return Response(body, media_type=kind)

    async def job(_: Request) -> Response:
        return json(job_of(feed.snapshot))

    async def variables(_: Request) -> Response:
        return json(named(feed.snapshot.variables))

    async def checkpoints(_: Request) -> Response:
        return json(named(feed.checkpoints))

    async def timeline(request: Request) -> Response:
        after = request.query_params.get("after", "0")
        if not after.isdecimal():
            return PlainTextResponse(f"after must be the number of an event, got {after[:40]!r}.\n", 400)
        return json(events_of(feed.events_after(int(after))))

    async def series(_: Request) -> Response:
        return json(feed.columns(MOST_ROWS))

    async def runs(_: Request) -> Response:
        return json(runs_of(feed.runs))

    async def run(request: Request) -> Response:
        name = request.path_params["name"]
        found = next((one for one in feed.runs if one.name == name), None)
        if found is None:
            return PlainTextResponse("There is no such run.\n", 404)
        return json(named(found))

    async def values(request: Request) -> Response:
        if summary is None:
            return PlainTextResponse(
                "The values of variables are read from ps or checkpoints: give HOST:PORT or --checkpoint-dir.\n", 404
            )
        try:
            found = await asyncio.to_thread(summary, request.query_params.get("name", ""))
        except TrainbandError as exc:
            return PlainTextResponse(f"{exc}\n", 404)
        return json(named(found))

    async def profile(request: Request) -> Response:
        if recorder is None:
            return PlainTextResponse("Steps are recorded by a ps, and this page knows none.\n", 404)
        if request.method != "POST":
            return json(recorder.state)
        if ORDER_HEADER not in request.headers:
            return PlainTextResponse(f"A recording is ordered with the header {ORDER_HEADER}.\n", 403)
        steps = request.query_params.get("steps", "10")
        if not steps.isdecimal() or not 1 <= int(steps[:9]) <= MOST_STEPS:
            return PlainTextResponse(f"steps must be 1 to {MOST_STEPS}, got {steps[:40]!r}.\n", 400)
        return json(recorder.start(int(steps)))

    async def trace(_: Request) -> Response:
        if recorder is None or recorder.trace is None:
            return PlainTextResponse("Nothing has been recorded yet.\n", 404)
        return json(recorder.trace)

    async def prometheus(_: Request) -> Response:
        if metrics is None:
            return PlainTextResponse("There are no metrics here.\n", 404)
        return Response(metrics(), media_type="text/plain; version=0.0.4")

    async def healthz(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def events(scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001 - as ASGI has it
        await stream.answer(receive, send, [])

    routes = {
        "/": index,
        "/static/{path:path}": static,
        "/api/job": job,
        "/api/variables": variables,
        "/api/checkpoints": checkpoints,
        "/api/timeline": timeline,
        "/api/series": series,
        "/api/values": values,
        "/api/profile/trace.json": trace,
        "/api/runs": runs,
        "/api/runs/{name:path}": run,
        "/metrics": prometheus,
        "/healthz": healthz,
    }
    inner = Starlette(
        routes=[
            *(Route(path, endpoint, methods=["GET"]) for path, endpoint in routes.items()),
            Route("/api/profile", profile, methods=["GET", "POST"]),
            Route("/events", _Raw(events), methods=["GET"]),
        ]
    )
    return _Guard(inner, access or Access())


@lru_cache(maxsize=64)
def static_file(name: str) -> tuple[bytes, str] | None:
    """A file that the page loads, with its media type; `None` where there is none of this name."""
    parts = name.split("/")
    if any(part in ("", ".", "..") or "\\" in part for part in parts):
        return None
    path = STATIC.joinpath(*parts)
    if not path.is_file():
        return None
    kind = "text/javascript" if name.endswith(".js") else mimetypes.guess_type(name)[0] or "application/octet-stream"
    return path.read_bytes(), kind


class _Raw:
    """An ASGI application as Starlette's Route tells it from a function that takes a request."""

    def __init__(self, application: Application) -> None:
        self._application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._application(scope, receive, send)


class _Guard:
    """Lets in who may look, and adds the security headers to every answer."""

    def __init__(self, inner: Application, access: Access) -> None:
        self._inner = inner
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if not self._access.allows_host(headers.get("host", "")):
            await _answer(send, 400, "This page is served to its own machine only, under localhost or 127.0.0.1.\n")
            return
        # Cookies are the same for all ports of a host, and several pages may be open.
        cookie = f"trainband_{(scope.get('server') or ('', 0))[1]}"
        token = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("token", [""])[0]
        if token and scope["path"] == "/" and self._access.token and self._access.knows_token(token):
            set_cookie = f"{cookie}={token}; Path=/; HttpOnly; SameSite=Strict"
            await _answer(send, 303, "", {"location": "/", "set-cookie": set_cookie})
            return
        allowed = self._access.allows(headers.get("cookie", ""), headers.get("authorization", ""), cookie)
        if not allowed and scope["path"] != "/healthz":
            await _answer(send, 401, _FORBIDDEN)
            return

        async def send_secured(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", []), *_raw(SECURITY_HEADERS)]}
            await send(message)

        await self._inner(scope, receive, send_secured)


async def _answer(send: Send, status: int, text: str, headers: dict[str, str] | None = None) -> None:
    body = text.encode()
    told = {**SECURITY_HEADERS, "content-type": "text/plain; charset=utf-8", "content-length": str(len(body))}
    await send({"type": "http.response.start", "status": status, "headers": _raw({**told, **(headers or {})})})
    await send({"type": "http.response.body", "body": body})


def _raw(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
