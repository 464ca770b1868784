"""The default session, in a module below everything that asks for it."""

from __future__ import annotations

from typing import Any, Protocol

from trainband.compat.tf1.graphs.where import user_line


class Runner(Protocol):
    """What runs a graph: a session."""

    def run(self, fetches: Any, feed_dict: Any = None) -> Any:
        """The values of what is asked for."""
        ...


_stack: list[Any] = []


def enter(session: Runner) -> None:
    """Makes a session the default one."""
    _stack.append(session)


def leave(session: Runner) -> None:
    """Removes a session from the stack of default sessions, if it is on it."""
    for place in reversed(range(len(_stack))):
        if _stack[place] is session:
            del _stack[place]
            return


def get_default_session() -> Any:
    """Return the default session, or `None`."""
    return _stack[-1] if _stack else None


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
