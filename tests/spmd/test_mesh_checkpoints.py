"""Checkpoints that one process writes alone."""

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
from trainband.job.checkpoints import SavedParts
from trainband.model.worker_state import WorkerState
from trainband.spmd.checkpoints import ChiefSaving
from trainband.strategies import OneDevice


def joined(saving: ChiefSaving) -> SavedParts | None:
    assert saving._thread is not None  # noqa: SLF001 - the fastest way to wait for it
    saving._thread.join(20.0)  # noqa: SLF001
    return saving.poll()


class Group:
    """The values that the processes of a job have published."""

    count = 2

    def __init__(self, values: dict[str, str]) -> None:
        self.values = values

    def read(self, key: str) -> str | None:
        return self.values.get(key)

    def name(self, index: int) -> str:
        return f"worker:{index}"

    def delete_before(self, key: str, number: int) -> None:
        old = [known for known in self.values if known.startswith(f"{key}/") and int(known.split("/")[1]) < number]
        for known in old:
            del self.values[known]


def engine() -> Any:
    found = OneDevice("cpu", say=lambda _: None).start(model())
    found.steps.start_training(None)
    return found


def test_what_is_saved_is_of_its_step_though_training_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()

    def slow(*arguments: Any, **named: Any) -> Any:
        assert gate.wait(20.0)
        return write_part(*arguments, **named)

    monkeypatch.setattr("trainband.spmd.checkpoints.write_part", slow)
    one = engine()
    saving = one.checkpoints.save(tmp_path, 2)
    data = list(batches(5))
    assert one.steps.step(data[0]).worker_state is None
    assert saving.waits
    one.checkpoints.store_worker_state(1, "too early")
    assert saving.worker_state is None
    assert one.steps.step(data[1]).worker_state == 0
    kept = jax.tree.map(np.copy, one.values.params())
    one.checkpoints.store_worker_state(1, "there")
    assert not saving.waits
    assert saving.poll() is None
    for batch in data[2:]:
        assert one.steps.step(batch).worker_state is None
    one.checkpoints.store_worker_state(1, "too late")
    gate.set()
    parts = joined(saving)
    assert parts is not None
    assert (parts.global_step, WorkerState.from_bytes(parts.worker_state[0], "it").position) == (2, "there")
    from safetensors.numpy import load_file

    values = load_file(tmp_path / parts.parts[0].file)
    np.testing.assert_array_equal(values["params/hidden/kernel"], kept["hidden"]["kernel"])
    assert values["optimizer/0/count"] == 2


def test_it_is_not_done_without_worker_state(tmp_path: Path) -> None:
    one = engine()
    saving = one.checkpoints.save(tmp_path, 0)
    assert joined(saving) is None
    one.checkpoints.store_worker_state(1, "")
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

    monkeypatch.setattr("trainband.spmd.checkpoints.write_part", fail)
    saving = engine().checkpoints.save(tmp_path, 0)
    with pytest.raises(kind, match=str(failure)):
        joined(saving)


def test_what_the_others_left_for_older_checkpoints_is_deleted(tmp_path: Path) -> None:
    """A job saves thousands of times, and one process's memory holds all published values.

    Those for this step stay: at the end of a training there may be another checkpoint of it, when the others have gone.
    """
    group = Group({"worker_state/1/1": "12", "worker_state/2/1": "abcd", "worker_state/3/1": "ef", "begin/1": "2"})
    for attempt in ("first", "second"):
        saving = ChiefSaving(tmp_path, 2, group, lambda _: None)  # type: ignore[arg-type]
        (tmp_path / attempt).mkdir()
        saving._directory = tmp_path / attempt  # noqa: SLF001
        saving.start(2, (), (), {})
        saving.worker_state = WorkerState.pack("worker:0", 1, 2, "a place", ()).to_bytes()
        parts = joined(saving)
        assert parts is not None
        assert (parts.worker_state[1], parts.missing) == (bytes.fromhex("abcd"), ())
    assert group.values == {"worker_state/2/1": "abcd", "worker_state/3/1": "ef", "begin/1": "2"}
