"""Server-sent events: the full state, then updates, for as long as a viewer reads."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from trainband.monitor.page.frames import Frames, events_of
from trainband.runtime.http.asgi import Receive, Scope, Send, answer

MOST_VIEWERS = 200
SILENCE_S = 10.0
"""Silence after which a comment is sent, so that viewers and proxies know that the stream is alive."""
STUCK_S = 30.0
"""A viewer that has read nothing for this long is cut off."""
AGAIN_MS = 1000
"""Delay before a browser reconnects."""


class EventStream:
    """Answers `/events`. Every viewer gets the newest state when it can take it, and skips the states between."""

    def __init__(self, frames: Frames) -> None:
        self._frames = frames
        self.viewers = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - as ASGI has it
        """Serves one viewer until it leaves or stops reading."""
        if self.viewers >= MOST_VIEWERS:
            await answer(send, 503, f"{MOST_VIEWERS} viewers are connected already; close one.".encode())
            return
        self.viewers += 1
        loop, news = asyncio.get_running_loop(), asyncio.Event()

        def notify() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(news.set)

        end = self._frames.feed.listen(notify)
        gone = asyncio.ensure_future(_gone(receive))
        try:
            headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await self._talk(send, news, gone)
        except TimeoutError:
            return  # uvicorn closes the connection of an unfinished answer
        finally:
            end()
            gone.cancel()
            self.viewers -= 1

    async def _talk(self, send: Send, news: asyncio.Event, gone: asyncio.Future[None]) -> None:
        feed = self._frames.feed
        last_event = max((number for number, _ in feed.events_after()), default=0)
        changes, _ = self._frames.changed()
        number, _ = self._frames.now()
        await _write(send, f"retry: {AGAIN_MS}\n".encode() + _event("full", self._frames.full()))
        while not gone.done():
            waiting: asyncio.Future[Any] = asyncio.ensure_future(news.wait())
            watched: set[asyncio.Future[Any]] = {waiting, gone}
            await asyncio.wait(watched, timeout=SILENCE_S, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            if gone.done():
                return
            if not news.is_set():
                await _write(send, b": still here\n\n")
                continue
            news.clear()
            events = feed.events_after(last_event)
            last_event = events[-1][0] if events else last_event
            if events:
                await _write(send, _event("events", msgspec.json.encode(events_of(events))))
            newest_changes, body = self._frames.changed()
            if newest_changes != changes:
                changes = newest_changes
                await _write(send, _event("changed", body))
            newest, body = self._frames.now()
            if newest != number:
                number = newest
                await _write(send, _event("now", body))


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _write(send: Send, body: bytes) -> None:
    await asyncio.wait_for(send({"type": "http.response.body", "body": body, "more_body": True}), STUCK_S)


def _event(name: str, data: bytes) -> bytes:
    """Encodes an event: JSON has no newlines outside its strings, and escapes them inside."""
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"
