"""ASGI: the types of an application's arguments, and sending a whole response."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, TypeAlias

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Application: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

PLAIN = "text/plain; charset=utf-8"


async def answer(
    send: Send,
    status: int,
    body: bytes,
    content_type: str = PLAIN,
    headers: Mapping[str, str] | None = None,
    *,
    head_only: bool = False,
) -> None:
    """Sends a whole response; for a `HEAD` request, only the headers with the body's length."""
    told = {"content-type": content_type, "content-length": str(len(body)), **(headers or {})}
    await send({"type": "http.response.start", "status": status, "headers": encoded(told)})
    await send({"type": "http.response.body", "body": b"" if head_only else body})


def encoded(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """Returns headers in ASGI's form."""
    return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
