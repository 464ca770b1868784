"""The default session, in a module below everything that asks for it."""

from __future__ import annotations

import threading
from typing import Any, Protocol

from trainband.compat.tf1.graphs.where import user_line


class Runner(Protocol):
    """What runs a graph: a session."""

    def run(self, fetches: Any, feed_dict: Any = None) -> Any:
        """The values of what is asked for."""
        ...


class _Stack(threading.local):
    """The sessions that a thread has made its default ones."""

    def __init__(self) -> None:
        self.sessions: list[Any] = []


_stack = _Stack()


def enter(session: Runner) -> None:
    """Makes a session the default one."""
    _stack.sessions.append(session)


def leave(session: Runner) -> None:
    """Removes a session from the stack of default sessions, if it is on it."""
    for place in reversed(range(len(_stack.sessions))):
        if _stack.sessions[place] is session:
            del _stack.sessions[place]
            return


def get_default_session() -> Any:
    """Return this thread's default session, or `None`."""
    return _stack.sessions[-1] if _stack.sessions else None


def needed_session(session: Any, what: str) -> Any:
    """Return the given session, or else the default one.

    Raises:
      ValueError: there is none.
    """
    found = session if session is not None else get_default_session()
    if found is None:
        raise ValueError(
            f"Cannot evaluate tensor using `{what.rpartition('.')[2]}()`: No default session is registered. Use `with "
            f"sess.as_default()` or pass an explicit session to `{what}(session=sess)` (at {user_line()})"
        )
    return found
