"""The ASGI application of the page: read-only, and free of resources from other hosts."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import parse_qs

from trainband.errors import YourError
from trainband.monitor.live_feed import LiveFeed
from trainband.monitor.step_recordings import PageRecorder
from trainband.monitor.tensor_summary import TensorSummary
from trainband.runtime.http.access import Access
from trainband.runtime.http.asgi import Application, Message, Receive, Scope, Send, answer, encoded

SECURITY_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
"""Headers of every answer. Addresses may hold a token and the job may be secret: nothing is cached or passed on."""

_FORBIDDEN = (
    "This page needs its token. Open the address that trainband printed, which contains the token. "
    "Programs send it as 'Authorization: Bearer TOKEN'.\n"
)


def make_app(
    feed: LiveFeed,
    access: Access | None = None,
    *,
    metrics: Callable[[], str] | None = None,
    summary: Callable[[str], TensorSummary] | None = None,
    recorder: PageRecorder | None = None,
) -> Application:
    """Returns the application.

    ::

        /                 the page
        /static/...       files that it loads
        /events           server-sent events: `full`, then `now`, `events` and `changed`
        /api/job          the newest snapshot, as the page gets it
        /api/variables    /api/checkpoints   /api/timeline   /api/series   /api/runs   /api/runs/NAME
        /api/values?name=NAME   the norm and histogram of a variable
        /api/profile      the state of the step recording; by POST with ?steps=N, begins one
        /api/profile/trace.json   the last recording, as a trace
        /metrics          for Prometheus
        /healthz          whether this server answers; needs no token

    Args:
      access: who may view it; anyone on this machine when `None`.
      metrics: makes the text for Prometheus; without it, there is no `/metrics`.
      summary: summarises the values of a variable, for `/api/values?name=NAME`.
      recorder: records steps of the job, if a ps can be asked to.

    Raises:
      YourError: Starlette is missing.
    """
    try:
        from starlette.applications import Starlette

        from trainband.monitor.page.routes import Routes
    except ImportError as exc:
        raise YourError(
            "the page needs Starlette, which is not installed: pip install 'trainband[dashboard]'."
        ) from exc
    return _Guard(Starlette(routes=Routes(feed, metrics, summary, recorder).all()), access or Access())


class _Guard:
    """Admits authorised viewers, and adds the security headers to every answer."""

    def __init__(self, inner: Application, access: Access) -> None:
        self._inner = inner
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        # Cookies are the same for all ports of a host, and several pages may be open.
        cookie = f"trainband_{(scope.get('server') or ('', 0))[1]}"
        path = scope["path"]
        token = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("token", [""])[0] if path == "/" else ""
        enters = bool(token and self._access.token and self._access.knows_token(token))
        denial = self._access.denied(scope["headers"], cookie=cookie, public=enters or path == "/healthz")
        if denial is not None:
            # The page has its own text for people who open it in a browser.
            told = _FORBIDDEN if denial.status == 401 else f"{denial.message}\n"
            await answer(send, denial.status, told.encode(), headers=SECURITY_HEADERS)
            return
        if enters:
            set_cookie = f"{cookie}={token}; Path=/; HttpOnly; SameSite=Strict"
            await answer(send, 303, b"", headers={**SECURITY_HEADERS, "location": "/", "set-cookie": set_cookie})
            return

        async def send_secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", []), *encoded(SECURITY_HEADERS)]}
            await send(message)

        await self._inner(scope, receive, send_secured)
