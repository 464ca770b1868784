"""`trainband top`: shows a running job in the terminal, like top."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import threading
import tty
from collections.abc import Iterator

import click
from rich.console import Console
from rich.live import Live

from trainband.errors import YourError
from trainband.monitor.collector import Collector
from trainband.monitor.inquiry import Inquiry
from trainband.monitor.live_feed import LiveFeed
from trainband.monitor.terminal import View, pressed, screen

ADVICE = "Give trainband top the address of a ps of a running job"
TIMEOUT_S = 5.0
ESCAPE_S = 0.05
"""Longest wait for the rest of a key's escape sequence; Esc alone has none."""
DRAW_EVERY_S = 1.0

_SEQUENCES = {
    **{
        lead + letter: key
        for letter, key in zip("ABCDHF", ("up", "down", "right", "left", "home", "end"), strict=True)
        for lead in "[O"
    },
    **{"[1~": "home", "[4~": "end", "[5~": "pageup", "[6~": "pagedown", "[Z": "tab"},
}
_CHARACTERS = {"\t": "tab", "\r": "enter", "\n": "enter", "\x7f": "backspace", "\x08": "backspace", "\x03": "q"}


@click.command()
@click.argument("address", metavar="HOST:PORT")
@click.pass_context
def top(ctx: click.Context, address: str) -> None:
    """Shows the job of the ps at HOST:PORT until q is pressed.

    Left and right choose the column that workers are sorted by, r reverses the order, / filters, and Tab switches
    between workers, parameter servers and events.
    """
    console = Console()
    if not (sys.stdin.isatty() and console.is_terminal):
        raise YourError(
            "trainband top needs a terminal. For a pipe or a file, use trainband status --watch; for programs, "
            "trainband status --json."
        )
    with Inquiry(address, TIMEOUT_S, advice=ADVICE) as inquiry:
        inquiry.ask()
    feed = LiveFeed(address)
    try:
        with Collector(address, feed), _keys() as keyboard:
            _show(feed, console, keyboard)
    except KeyboardInterrupt:
        ctx.exit(128 + signal.SIGINT)


def _show(feed: LiveFeed, console: Console, keyboard: int) -> None:
    """Redraws on news and on keys until the view ends."""
    read, write = os.pipe()
    os.set_blocking(write, False)

    def wake() -> None:
        with contextlib.suppress(BlockingIOError):  # it is already awake
            os.write(write, b".")

    view, end = View(), feed.listen(wake)
    resized = signal.signal(signal.SIGWINCH, lambda *_: wake())
    try:
        with Live(console=console, screen=True, auto_refresh=False, transient=True) as live:
            while not view.over:
                width, height = console.size
                shown = screen(feed, view, width, height)
                live.update(shown.picture, refresh=True)
                ready, _, _ = select.select([keyboard, read], [], [], DRAW_EVERY_S)
                if read in ready:
                    os.read(read, 4096)
                if keyboard in ready:
                    for key in keys_in(_read(keyboard)):
                        view = pressed(view, key, page=shown.page, rows=shown.rows)
    finally:
        end()
        signal.signal(signal.SIGWINCH, resized)
        os.close(read)
        os.close(write)


def keys_in(text: str) -> Iterator[str]:
    """The keys in typed characters and escape sequences, by the names that `pressed` takes."""
    place = 0
    while place < len(text):
        character = text[place]
        place += 1
        if character != "\x1b":
            yield _CHARACTERS.get(character, character)
            continue
        sequence = next((one for one in _SEQUENCES if text.startswith(one, place)), None)
        if sequence is not None:
            place += len(sequence)
            yield _SEQUENCES[sequence]
        elif place == len(text):
            yield "escape"
        else:  # an unbound key
            while place < len(text) and not text[place].isalpha() and text[place] != "~":
                place += 1
            place += 1


def _read(keyboard: int) -> str:
    """Reads typed characters; the end of the terminal counts as q."""
    data = os.read(keyboard, 1024)
    if not data:
        return "q"
    if data == b"\x1b" and select.select([keyboard], [], [], ESCAPE_S)[0]:
        data += os.read(keyboard, 1024)
    return data.decode(errors="ignore")


@contextlib.contextmanager
def _keys() -> Iterator[int]:
    """The keyboard, unbuffered and without echo; restored afterwards."""
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    main = threading.current_thread() is threading.main_thread()
    ended = signal.signal(signal.SIGTERM, _interrupt) if main else None
    try:
        tty.setcbreak(keyboard)
        yield keyboard
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
        if main:
            signal.signal(signal.SIGTERM, ended)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
