"""A checkpoint that one process writes alone."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from tests.strategies.regression import batches, model

from trainband.checkpoint import write_part
from trainband.errors import CheckpointError
from trainband.ps.checkpointing import SavedParts
from trainband.strategies import OneDevice
from trainband.strategies.joint_saving import JointSaving
from trainband.strategies.local_saving import LocalSaving
from trainband.strategies.luggage import Luggage


def joined(saving: LocalSaving) -> SavedParts | None:
    assert saving._thread is not None  # noqa: SLF001 - the quickest way to wait for it
    saving._thread.join(20.0)  # noqa: SLF001
    return saving.poll()


class Words:
    """What the processes of a job have told one another."""

    count = 2

    def __init__(self, **words: str) -> None:
        self.words = {key.replace("_", "/"): word for key, word in words.items()}

    def look(self, key: str) -> str | None:
        return self.words.get(key)

    def name(self, index: int) -> str:
        return f"worker:{index}"

    def forget_before(self, key: str, number: int) -> None:
        old = [known for known in self.words if known.startswith(f"{key}/") and int(known.split("/")[1]) < number]
        for known in old:
            del self.words[known]


def replica() -> Any:
    found = OneDevice("cpu", say=lambda _: None).start(model())
    found.begin(None)
    return found


def test_what_is_saved_is_of_its_step_though_training_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()

    def slow(*arguments: Any, **named: Any) -> Any:
        assert gate.wait(20.0)
        return write_part(*arguments, **named)

    monkeypatch.setattr("trainband.strategies.local_saving.write_part", slow)
    one = replica()
    saving = one.save(tmp_path, 2)
    data = list(batches(5))
    assert one.step(data[0]).luggage is None
    assert saving.waits()
    one.leave_luggage(1, "too early")
    assert saving.luggage is None
    assert one.step(data[1]).luggage == 0
    kept = jax.tree.map(np.copy, one.params())
    one.leave_luggage(1, "there")
    assert not saving.waits()
    assert saving.poll() is None
    for batch in data[2:]:
        assert one.step(batch).luggage is None
    one.leave_luggage(1, "too late")
    gate.set()
    parts = joined(saving)
    assert parts is not None
    assert (parts.global_step, Luggage.from_bytes(parts.luggage[0], "it").position) == (2, "there")
    from safetensors.numpy import load_file

    values = load_file(tmp_path / parts.parts[0].file)
    np.testing.assert_array_equal(values["params/hidden/kernel"], kept["hidden"]["kernel"])
    assert values["optimizer/0/count"] == 2


def test_it_is_not_done_without_luggage(tmp_path: Path) -> None:
    one = replica()
    saving = one.save(tmp_path, 0)
    assert joined(saving) is None
    one.leave_luggage(1, "")
    assert saving.poll() is not None


@pytest.mark.parametrize(
    ("failure", "kind"),
    [(CheckpointError("full"), CheckpointError), (ValueError("a bug"), ValueError)],
    ids=["a full disk", "a bug"],
)
def test_what_fails_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: Exception, kind: type[Exception]
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise failure

    monkeypatch.setattr("trainband.strategies.local_saving.write_part", fail)
    saving = replica().save(tmp_path, 0)
    with pytest.raises(kind, match=str(failure)):
        joined(saving)


def test_what_the_others_left_for_older_checkpoints_is_deleted(tmp_path: Path) -> None:
    """A job saves thousands of times, and the words of all lie in one process's memory.

    Those for this step stay: at the end of a training there may be another checkpoint of it, when the others have gone.
    """
    words = Words(luggage_1_1="12", luggage_2_1="abcd", luggage_3_1="ef", begin_1="2")
    for life in ("first", "second"):
        saving = JointSaving(tmp_path, 2, words)  # type: ignore[arg-type]
        (tmp_path / life).mkdir()
        saving._directory = tmp_path / life  # noqa: SLF001
        saving.begin(2, (), (), {})
        saving.luggage = Luggage.pack("worker:0", 1, 2, "a place", ()).to_bytes()
        parts = joined(saving)
        assert parts is not None
        assert (parts.luggage[1], parts.missing) == (bytes.fromhex("abcd"), ())
    assert words.words == {"luggage/2/1": "abcd", "luggage/3/1": "ef", "begin/1": "2"}
