"""Server-sent events: a full picture, and from then on what is new, for as long as a viewer reads."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import msgspec

from trainband.monitor.page.frames import Frames, events_of

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

MOST_VIEWERS = 200
SILENCE_S = 10.0
"""After which a comment is sent, so that whoever reads, and what stands between, knows that this goes on."""
STUCK_S = 30.0
"""A viewer that has read nothing for so long is cut off."""
AGAIN_MS = 1000
"""After which a browser whose connection has ended tries again."""


class EventStream:
    """Answers `/events`. Every viewer gets what is newest when it can take it, and skips what was in between.

    Args:
      frames: what is sent.
    """

    def __init__(self, frames: Frames) -> None:
        self._frames = frames
        self.viewers = 0

    async def answer(self, receive: Receive, send: Send, headers: list[tuple[bytes, bytes]]) -> None:
        """One viewer, until it goes or reads nothing any more."""
        if self.viewers >= MOST_VIEWERS:
            status = {"type": "http.response.start", "status": 503, "headers": headers}
            await send(status)
            await send({"type": "http.response.body", "body": f"{MOST_VIEWERS} viewers look already.".encode()})
            return
        self.viewers += 1
        loop, news = asyncio.get_running_loop(), asyncio.Event()

        def tell() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(news.set)

        end = self._frames.feed.listen(tell)
        gone = asyncio.ensure_future(_gone(receive))
        try:
            start = [*headers, (b"content-type", b"text/event-stream; charset=utf-8")]
            await send({"type": "http.response.start", "status": 200, "headers": start})
            await self._talk(send, news, gone)
        except TimeoutError:
            return  # uvicorn closes the connection of an answer that has no end
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
    """JSON has no newline outside of its strings, and within them as an escape."""
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"
