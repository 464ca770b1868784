"""The learning phase, sessions and names: what `tf.keras.backend` keeps for each graph."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from trainband.compat.tf1.graphs.default_session import get_default_session
from trainband.compat.tf1.graphs.graph import Graph, get_default_graph, reset_default_graph
from trainband.compat.tf1.graphs.graph_keys import GraphKeys
from trainband.compat.tf1.operations.array import constant, placeholder_with_default
from trainband.compat.tf1.operations.state import variables_initializer
from trainband.compat.tf1.sessions.session import Session


@dataclass
class _Kept:
    """What belongs to a graph."""

    phase: Any = None
    counts: dict[str, int] = field(default_factory=dict)


class _Calls(threading.local):
    def __init__(self) -> None:
        self.training: list[Any] = []


_kept: WeakKeyDictionary[Graph, _Kept] = WeakKeyDictionary()
_calls = _Calls()
_session: Session | None = None
_data_format = "channels_last"
_by_hand = False


def _of_graph() -> _Kept:
    return _kept.setdefault(get_default_graph(), _Kept())


# --- whether a model is trained


def learning_phase() -> Any:
    """Whether models are trained: what `set_learning_phase` has set, or a tensor that is false unless it is fed."""
    kept = _of_graph()
    if kept.phase is None:
        graph = get_default_graph()
        before, graph.region = graph.region, None
        try:
            with graph.control_dependencies(None), graph.outside_scopes():
                kept.phase = placeholder_with_default(constant(False), [], name="keras_learning_phase")
        finally:
            graph.region = before
    return kept.phase


def set_learning_phase(value: Any) -> None:
    """Sets whether models that are called from now on in this graph are trained: 0 or 1.

    Raises:
      ValueError: neither.
    """
    if value not in (0, 1):
        raise ValueError("Expected learning phase to be 0 or 1.")
    _of_graph().phase = bool(value)


@contextmanager
def learning_phase_scope(value: Any) -> Iterator[None]:
    """Sets the learning phase for a while."""
    kept = _of_graph()
    before = kept.phase
    set_learning_phase(value)
    try:
        yield
    finally:
        kept.phase = before


@contextmanager
def calling(training: Any) -> Iterator[None]:
    """What layers are told that are called inside and are not told themselves."""
    _calls.training.append(training)
    try:
        yield
    finally:
        _calls.training.pop()


def told() -> Any:
    """What the layer that is being called was told; `None` outside, and if it was told nothing."""
    return _calls.training[-1] if _calls.training else None


# --- names


def unique_name(base: str, first: int = 0) -> str:
    """A name that no layer of the graph has; the first one gets no number if that is 0."""
    counts = _of_graph().counts
    number = counts.get(base, first)
    counts[base] = number + 1
    return f"{base}_{number}" if number else base


def get_uid(prefix: str = "") -> int:
    """The next number for a name, from 1."""
    counts = _of_graph().counts
    counts[prefix] = max(counts.get(prefix, 0), 0) + 1
    return counts[prefix]


def reset_uids() -> None:
    """Counts names from the beginning again."""
    _of_graph().counts.clear()


# --- sessions


def get_session(op_input_list: Any = ()) -> Any:
    """The session that Keras runs in: the default one, or else one that it keeps. All variables have values in it."""
    del op_input_list
    session = current_session()
    if not _by_hand:
        initialized(session)
    return session


def current_session() -> Any:
    """The session that Keras runs in, as it is."""
    global _session
    found = get_default_session()
    if found is not None:
        return found
    if _session is None or _session.closed or _session.graph is not get_default_graph():
        _session = Session()
    return _session


def initialized(session: Any, variables: Iterable[Any] | None = None) -> None:
    """Gives those variables their first values that have none."""
    graph = get_default_graph()
    if variables is None:
        variables = dict.fromkeys(
            [*graph.get_collection(GraphKeys.GLOBAL_VARIABLES), *graph.get_collection(GraphKeys.LOCAL_VARIABLES)]
        )
    store = getattr(session, "store", None)
    if store is None:
        return
    listed = list(variables)
    missing = set(store.missing(listed))
    without = [one for one in listed if one.op_name in missing]
    if without:
        session.run(variables_initializer(without))


def set_session(session: Any) -> None:
    """Makes Keras run in a session."""
    global _session
    _session = session


def clear_session() -> None:
    """Begins anew, with an empty graph."""
    global _session
    _session = None
    reset_default_graph()


def manual_variable_initialization(value: bool) -> None:
    """Sets whether the script initialises variables itself."""
    global _by_hand
    _by_hand = value


def image_data_format() -> str:
    """Where the channels of images are, unless a layer says it."""
    return _data_format


def set_image_data_format(data_format: str) -> None:
    """Sets where the channels of images are.

    Raises:
      ValueError: unknown.
    """
    global _data_format
    if data_format not in ("channels_last", "channels_first"):
        raise ValueError(f"Unknown data_format: {data_format}")
    _data_format = data_format
