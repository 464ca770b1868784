"""Texts in records: whatever another task sends, what is received prints as one line and does nothing else."""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec import inspect

import trainband.wire as wire
from trainband.compat.tf2.coordinator import records as coordinator
from trainband.errors import ProtocolError, Refused
from trainband.job.statistics import PsStatus
from trainband.spmd.peer_heartbeats import Heartbeat
from trainband.spmd.process_activity import Wait
from trainband.wire.flight.translation import refuse, translate
from trainband.wire.handling import ended
from trainband.wire.limits import LIMITS
from trainband.wire.messages import calls as m
from trainband.wire.messages.codec import decode, encode
from trainband.wire.messages.fields import Text

UNPRINTED = ("\n", "\r", "\x1b", "\x85", "\x9b", "\u202e", "\u200b", "\u2028", "\u2066", "\ud800", "\xad", "\U000e0041")

DATA = {
    ("Description", "update_text"),  # a program; of it, lines are quoted by `printable`
    ("SaveState", "sources"),  # ledgers, as JSON
    ("Adopt", "sources"),
}
CHECKED_WHEN_MADE = {
    ("Piece", "tensor"),
    ("Piece", "dtype"),
    ("Part", "file"),
    ("Stored", "name"),
    ("Stored", "checksum"),
}
"""Their records have to be right wherever they come from, so they check themselves."""


def records() -> list[Any]:
    """Every record that tasks send to each other."""
    for found in pkgutil.walk_packages(wire.__path__, f"{wire.__name__}."):
        importlib.import_module(found.name)

    def below(kind: type) -> Iterator[type]:
        child: type
        for child in kind.__subclasses__():
            yield child
            yield from below(child)

    homes = (f"{wire.__name__}.", coordinator.__name__)
    return [*(one for one in below(msgspec.Struct) if one.__module__.startswith(homes)), PsStatus]


def texts(kind: Any, where: tuple[str, str], seen: set[type]) -> Iterator[tuple[tuple[str, str], str | None]]:
    """Each text of a type: where it stands, and the pattern that it has."""
    match kind:
        case inspect.StrType():
            yield where, kind.pattern
        case inspect.StructType() if kind.cls not in seen:
            seen.add(kind.cls)
            for field in kind.fields:
                yield from texts(field.type, (kind.cls.__name__, field.name), seen)
        case inspect.CustomType():
            assert kind.cls is Text
        case inspect.UnionType():
            for one in kind.types:
                yield from texts(one, where, seen)
        case inspect.TupleType():
            for one in kind.item_types:
                yield from texts(one, where, seen)
        case inspect.VarTupleType() | inspect.ListType():
            yield from texts(kind.item_type, where, seen)
        case inspect.DictType():
            yield from texts(kind.key_type, where, seen)
            yield from texts(kind.value_type, where, seen)


def test_every_text_of_every_record_prints_on_one_line_and_is_bounded() -> None:
    found = [one for record in records() for one in texts(inspect.type_info(record), ("", ""), set())]
    assert len(found) > 100
    for where, pattern in found:
        if where in DATA | CHECKED_WHEN_MADE and pattern is None:
            continue
        assert pattern is not None, f"{where} takes any text: make it a fields.Text or give it a pattern"
        allowed = re.compile(pattern)
        for character in UNPRINTED:
            assert not any(allowed.search(f"worker:0{tail}") for tail in (character, f"{character}0")), (
                where,
                character,
            )
        assert not allowed.search("a" * 5000), where


FORGED = "gone\ntrainband: worker:1 left the job\r\n\x1b[2J\u202eback\u200b"
SHOWN = r"gone | trainband: worker:1 left the job | \x1b[2J\u202eback\u200b"


def test_what_a_task_says_is_one_line() -> None:
    leave = decode(encode(m.Leave(1, "x", FORGED, lost=FORGED)), m.Leave, "worker:1")
    assert (leave.failure, leave.lost) == (SHOWN, SHOWN)
    assert type(leave.failure) is str
    assert decode(encode(leave), m.Leave, "worker:1") == leave
    for wrong in ("a" * (LIMITS.text_length + 1), 7, None, ["a"]):
        body = msgspec.msgpack.encode({"worker": 1, "incarnation": "x", "failure": wrong})
        with pytest.raises(ProtocolError, match=r"Expected `str`.*\$\.failure"):
            decode(body, m.Leave, "worker:1")


def test_what_a_listener_refuses_with_is_one_line() -> None:
    assert str(translate(refuse(Refused(FORGED)), "10.0.0.7:2222")) == SHOWN
    assert str(ended("ps:0", FORGED)) == f"ps:0 closed the stream: {SHOWN}"


def test_what_a_worker_of_an_all_reduce_job_says_is_one_line() -> None:
    said = Heartbeat(1, (1, 2), True, FORGED, Wait("key", FORGED, 0))
    heard = Heartbeat.from_json(json.dumps(said))
    assert (heard.doing, heard.wait) == (SHOWN, Wait("key", SHOWN, 0))
    assert Heartbeat.from_json(json.dumps(said._replace(wait=None))).wait is None
