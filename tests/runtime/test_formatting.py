"""Text for people of what came from outside."""

from __future__ import annotations

import pytest

from trainband.runtime.formatting import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("worker:0 in Zürich", "worker:0 in Zürich"),
        ("\x1b[2J\x07", "\\x1b[2J\\x07"),
        ("one\ntwo", "one\\ntwo"),
        ("\x9b\u2028\u202e", "\\x9b\\u2028\\u202e"),
        ("x" * 11, "x" * 9 + "…"),
    ],
)
def test_what_came_from_outside_is_shown_without_control_characters(text: str, shown: str) -> None:
    assert printable(text, 10 if text[0] == "x" else 100) == shown


def test_what_is_kept() -> None:
    assert printable("one\n\ttwo\r", keep="\n\t") == "one\n\ttwo\\r"
