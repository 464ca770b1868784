"""Messages to users have one shape; `tests/messages.py` reads them from the code."""

from __future__ import annotations

import pytest

from tests.language import COMPAT, SOURCE
from tests.messages import Message, classes, faults, messages

OWN = frozenset({"DataError"})


def test_all_messages_have_one_shape() -> None:
    paths = [path for path in sorted(SOURCE.rglob("*.py")) if not path.is_relative_to(COMPAT)]
    errors, own = classes(paths)
    found = [message for path in paths for message in messages(path, errors)]
    assert len(found) > 1000
    assert [f"{message}: {fault}" for message in found for fault in faults(message, own)] == []


@pytest.mark.parametrize(
    ("kind", "text", "fault"),
    [
        ("DataError", "There is no file {path}.", "an error begins with a small letter, as it follows a colon"),
        ("DataError", "there is no file {path}; give another", "an error ends with a full stop"),
        ("line", "the {task} is back.", "a line of one sentence has no full stop"),
        ("line", "could not write {path}. Free space", "each of several sentences has a full stop"),
        ("DataError", "the input '{name}' is missing.", "a value is quoted by !r"),
    ],
)
def test_a_fault_is_found(kind: str, text: str, fault: str) -> None:
    assert list(faults(Message("module.py:1", kind, text), OWN)) == [fault]
