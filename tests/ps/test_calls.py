"""The table of control calls: every message that says it belongs to a call has its row, and each row says the truth."""

from __future__ import annotations

import inspect
import re
from types import ModuleType
from typing import Any, get_type_hints

import msgspec
import pytest

from trainband.ps.service.calls import By, make_calls
from trainband.ps.service.checkpoint_calls import CheckpointCalls
from trainband.ps.service.job_calls import JobCalls
from trainband.ps.service.membership_calls import MembershipCalls
from trainband.ps.service.replica_calls import ReplicaCalls
from trainband.ps.service.training_calls import TrainingCalls
from trainband.wire.limits import BODY_BYTES
from trainband.wire.messages import calls, following, recording, replication

SAYS = re.compile(
    r"`(?P<name>\w+)`(?P<empty> \(asked with an empty body\))? -> `(?P<answer>\w+)`(?P<chief>, chief only)?"
)
"""How the docstring of a message begins that is sent by a call."""


def messages(module: ModuleType) -> dict[str, tuple[type[Any], re.Match[str]]]:
    """The messages of calls that a module defines, by the name of the call."""
    structs = [one for _, one in inspect.getmembers(module, inspect.isclass) if one.__module__ == module.__name__]
    found = {one: SAYS.match(one.__doc__ or "") for one in structs if issubclass(one, msgspec.Struct)}
    return {match["name"]: (one, match) for one, match in found.items() if match is not None}


MESSAGES = {
    name: one for module in (calls, following, recording, replication) for name, one in messages(module).items()
}
WITHOUT_MESSAGE = {"state", "status"}
HANDLERS: Any = (JobCalls, MembershipCalls, TrainingCalls, CheckpointCalls, ReplicaCalls)
TABLE = make_calls(*HANDLERS)  # of functions, not of a service's bound methods


def test_every_message_has_its_row_and_every_row_its_message() -> None:
    assert set(TABLE) == {*MESSAGES, *WITHOUT_MESSAGE}
    assert set(TABLE) >= set(BODY_BYTES)


@pytest.mark.parametrize("name", MESSAGES)
def test_a_row_has_the_message_the_answer_and_the_caller_that_the_message_says(name: str) -> None:
    message, says = MESSAGES[name]
    call = TABLE[name]
    assert call.message is (None if says["empty"] else message)
    assert get_type_hints(call.handler)["return"].__name__ == says["answer"]
    assert (call.by is By.CHIEF) == bool(says["chief"])


@pytest.mark.parametrize("name", MESSAGES)
def test_a_handler_takes_the_message_of_its_row(name: str) -> None:
    call = TABLE[name]
    _, _, message, caller = inspect.signature(call.handler, eval_str=True).parameters.values()
    assert message.annotation is call.message  # None for an empty body
    assert caller.annotation.__name__ == ("Member" if call.by.is_member else "Caller")


@pytest.mark.parametrize("name", [name for name, call in TABLE.items() if call.by.is_member])
def test_a_message_of_a_member_says_which_process_sends_it(name: str) -> None:
    call = TABLE[name]
    assert call.message is not None
    fields = {field.name: field.required for field in msgspec.structs.fields(call.message)}
    assert fields["worker"]
    assert fields["incarnation"]
    assert bool(call.deed) == (call.by is By.CHIEF)
