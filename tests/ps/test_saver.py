"""One ps's part in checkpoints: what is written is of one version, whatever goes on meanwhile."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest
from tests.ps.checkpoints import WAIT_S, OnePs, saved_job
from tests.ps.plans import plan_of

from trainband.checkpoint import CheckpointDirectory, write_part
from trainband.checkpoint.reader import fill
from trainband.errors import Refused
from trainband.ps.shard import saver
from trainband.ps.shard.allowed_directories import AllowedDirectories
from trainband.wire.messages import calls as m

N = 20_000
PARAMS = {"w": np.zeros(N, np.float32), "b": np.zeros(3, np.float32)}
ONES = jax.tree.map(np.ones_like, PARAMS)
MOMENTUM = plan_of(PARAMS, optax.sgd(1.0, momentum=0.5))


@pytest.fixture
def ps() -> OnePs:
    return OnePs(MOMENTUM).initialise(PARAMS)


class Gate:
    """`write_part` that stops before it writes, until it is let go."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.open = threading.Event()
        self.failure: BaseException | None = None

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self.reached.set()
        assert self.open.wait(WAIT_S)
        if self.failure is not None:
            raise self.failure
        return write_part(*arguments, **named)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    found = Gate()
    monkeypatch.setattr("trainband.ps.shard.saver.write_part", found)
    yield found
    found.open.set()


def after(steps: int) -> tuple[float, float]:
    """(params, momentum) after so many updates with a gradient of ones."""
    value = momentum = 0.0
    for _ in range(steps):
        momentum = 0.5 * momentum + 1.0
        value -= momentum
    return value, momentum


def written(directory: Path, part: Any) -> dict[str, np.ndarray[Any, Any]]:
    from safetensors.numpy import load_file

    return dict(load_file(directory / part.file))


def test_a_snapshot_stays_while_updates_go_on(ps: OnePs, gate: Gate, tmp_path: Path) -> None:
    """The writing waits; the memory of params and state must not be used again meanwhile."""
    for _ in range(3):
        ps.update(ONES)
    ps.order(tmp_path)
    assert gate.reached.wait(WAIT_S)
    for _ in range(10):  # nobody waits for the writing
        ps.update(ONES)
    assert ps.state().phase == m.WRITING
    gate.open.set()
    state = ps.saved()
    assert (state.phase, state.version, ps.shard.version) == (m.WRITTEN, 3, 13)
    values = written(tmp_path, state.part)
    value, momentum = after(3)
    assert set(values) == {"params/w", "params/b", "optimizer/0/trace/w", "optimizer/0/trace/b"}
    assert (values["params/w"] == np.float32(value)).all()
    assert (values["optimizer/0/trace/w"] == np.float32(momentum)).all()
    assert (values["optimizer/0/trace/b"] == np.float32(momentum)).all()


def test_hammered_every_part_is_of_its_version(ps: OnePs, tmp_path: Path) -> None:
    stop = threading.Event()

    def hammer() -> None:
        while not stop.is_set():
            ps.update(ONES)

    thread = threading.Thread(target=hammer)
    thread.start()
    try:
        for number in range(15):
            directory = tmp_path / str(number)
            directory.mkdir()
            ps.order(directory, token=str(number))
            state = ps.saved(str(number))
            assert state.phase == m.WRITTEN, state.failure
            values = written(directory, state.part)
            value, momentum = after(state.version)
            np.testing.assert_allclose(values["params/w"], value, rtol=1e-4)
            np.testing.assert_allclose(values["optimizer/0/trace/w"], momentum, rtol=1e-6)
            assert len({values[f"params/{name}"][i] for name in "wb" for i in range(3)}) == 1
    finally:
        stop.set()
        thread.join(WAIT_S)


def test_an_order_waits_for_its_version(ps: OnePs, tmp_path: Path) -> None:
    ps.order(tmp_path, at=3)
    for version in range(1, 4):
        assert ps.state().phase == m.ARMED
        ps.update(ONES)
        assert ps.shard.version == version
    assert ps.saved().version == 3


def test_one_that_waits_makes_way_and_one_that_is_written_does_not(ps: OnePs, gate: Gate, tmp_path: Path) -> None:
    ps.order(tmp_path, at=5, token="a")
    ps.order(tmp_path, at=6, token="a")  # repeated, whatever it says
    ps.order(tmp_path, token="b")
    assert ps.state("a") == m.SaveState(m.FORGOTTEN)
    assert gate.reached.wait(WAIT_S)
    with pytest.raises(Refused, match=r"ps:0 is still writing its part of the last checkpoint"):
        ps.order(tmp_path, token="c")
    ps.order(tmp_path, token="b")
    gate.open.set()
    assert ps.saved("b").phase == m.WRITTEN
    ps.order(tmp_path, token="c")
    assert ps.saved("c").phase == m.WRITTEN


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (OSError(28, "No space left on device"), "No space left on device"),
        (ValueError("what nobody thought of"), "ValueError: what nobody thought of"),
        (OSError(), "OSError"),
    ],
    ids=["a full disk", "a bug", "no words"],
)
def test_a_writing_that_fails_is_told_and_gives_all_back(
    ps: OnePs, gate: Gate, tmp_path: Path, failure: BaseException, words: str
) -> None:
    gate.failure = failure
    gate.open.set()
    ps.order(tmp_path)
    state = ps.saved()
    assert (state.phase, state.part) == (m.FAILED, None)
    assert words in state.failure
    version = ps.shard.acquire()
    assert version.readers == 1
    ps.shard.release(version)


def test_a_directory_that_this_ps_does_not_see(ps: OnePs, tmp_path: Path) -> None:
    ps.order(tmp_path / "elsewhere")
    failure = ps.saved().failure
    assert failure.startswith("ps:0 on ")
    assert f"does not find {tmp_path / 'elsewhere'}, which the chief made" in failure


def test_nothing_of_a_snapshot_is_kept_when_it_is_written(ps: OnePs, tmp_path: Path) -> None:
    ps.update(ONES)
    state = [weakref.ref(leaf) for leaf in ps.shard._state]  # noqa: SLF001 - it is their life that is looked at
    current = ps.shard._current  # noqa: SLF001
    assert current is not None
    params = [weakref.ref(leaf) for leaf in current.blocks]
    del current
    ps.order(tmp_path)
    assert ps.saved().phase == m.WRITTEN
    for _ in range(3):
        ps.update(ONES)
    gc.collect()
    assert [ref() for ref in (*state, *params)] == [None] * (len(state) + len(params))


def test_the_state_is_written_into_again_after_the_update_that_follows(ps: OnePs, tmp_path: Path) -> None:
    def used_up() -> bool:
        """Whether the state before an update is gone after it: its memory was written into."""
        before = ps.shard._state[0]  # noqa: SLF001
        ps.update(ONES)
        return bool(before.is_deleted())

    assert used_up()
    snapshot = ps.shard.snapshot()
    assert [used_up() for _ in range(3)] == [False, True, True]
    ps.shard.release_snapshot(snapshot)
    ps.order(tmp_path)
    ps.saved()
    assert used_up(), "it was written before the update came, and nobody reads it any more"


# --- worker state


def test_worker_state_is_awaited_of_those_that_were_there_and_still_are(ps: OnePs, tmp_path: Path) -> None:
    ps.seen = {0: 3, 1: 2, 2: 0}
    ps.saver.store_worker_state(m.LeftWorkerState(1, "a life", 2, b"of one"))
    ps.order(tmp_path)
    ps.saved()
    assert ps.state(live=[0, 1, 2]).awaited == ("worker:0",)  # number 2 has pushed nothing
    assert ps.state(live=[1, 2]).awaited == ()  # number 0 has died
    assert [ps.saver.wanted(worker) for worker in range(4)] == [3, 0, 0, 0]
    ps.saver.store_worker_state(m.LeftWorkerState(0, "a life", 2, b"too early"))
    assert ps.saver.wanted(0) == 3
    ps.saver.store_worker_state(m.LeftWorkerState(0, "a life", 3, b"of zero"))
    assert ps.saver.wanted(0) == 0
    assert ps.state(live=[0, 1, 2]).awaited == ()
    assert dict(ps.state().worker_state) == {0: b"of zero", 1: b"of one"}
    assert ps.state(worker_state=False).worker_state == {}


def test_worker_state_that_comes_later_is_not_this_checkpoints(ps: OnePs, tmp_path: Path) -> None:
    ps.seen = {0: 3, 1: 3}
    ps.saver.store_worker_state(m.LeftWorkerState(7, "a life", 1, b"of one that left long ago"))
    ps.order(tmp_path)
    ps.saved()
    ps.saver.store_worker_state(m.LeftWorkerState(0, "a life", 3, b"then"))
    ps.saver.store_worker_state(m.LeftWorkerState(0, "a life", 9, b"later"))
    assert dict(ps.state().worker_state) == {0: b"then", 7: b"of one that left long ago"}
    assert ps.saver.worker_state_of(0).data == b"later"
    assert ps.saver.worker_state_of(1).data == b""
    ps.order(tmp_path, token="two")
    ps.saved("two")
    assert dict(ps.state("two").worker_state)[0] == b"later"


def test_sources_are_those_of_the_version(ps: OnePs, tmp_path: Path) -> None:
    ps.sources = {"digits": "then"}
    ps.order(tmp_path)
    ps.sources = {"digits": "later"}
    assert ps.saved().sources == {"digits": "then"}


# --- where


def allowing(ps: OnePs, *directories: Path) -> OnePs:
    """The same ps, which may use these directories alone."""
    ps.saver._directories = AllowedDirectories(directories, "ps:0")  # noqa: SLF001
    return ps


def test_only_below_its_directories_and_nobody_learns_what_is_elsewhere(ps: OnePs, tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    (inside / "link").symlink_to(outside)
    (inside / "loop").symlink_to(inside / "loop")
    allowing(ps, inside)
    places = [
        outside,
        tmp_path / "not there",
        inside / "link",
        inside / ".." / "outside",
        Path("a\0b"),
        Path("x" * 9999),
    ]
    said = set()
    for number, place in enumerate(places):
        ps.order(place, token=str(number))
        failure = ps.saved(str(number)).failure
        assert ps.read(place, token=f"reading {number}").failure.endswith(failure)
        assert f"below {inside}, and" in failure
        assert "TRAINBAND_CHECKPOINT_DIR" in failure
        assert "Server(checkpoint_dir=...)" in failure
        said.add(failure[: failure.index(", and ")] + failure[failure.index(" is not there") :])
    assert len(said) == 1
    assert list(outside.iterdir()) == []
    ps.order(inside, token="allowed")
    assert ps.saved("allowed").phase == m.WRITTEN


def test_a_link_with_the_parts_name_is_replaced_and_not_followed(ps: OnePs, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "part-00000-of-00001.safetensors").symlink_to(victim)
    ps.order(tmp_path)
    assert ps.saved().phase == m.WRITTEN
    assert victim.read_text() == "mine"


# --- restoring


@pytest.fixture
def checkpoint(ps: OnePs, tmp_path: Path) -> Any:
    for _ in range(4):
        ps.update(ONES)
    return saved_job(CheckpointDirectory(tmp_path, pytest.fail), [ps])


def blocks(ps: OnePs) -> list[bytes]:
    version = ps.shard.acquire()
    ps.shard.release(version)
    return [array.tobytes() for array in version.arrays()]


def test_restored_it_goes_on_as_if_nothing_had_been(ps: OnePs, checkpoint: Any) -> None:
    other = OnePs(MOMENTUM).restore(checkpoint)
    assert other.shard.version == 4
    for _ in range(2):
        ps.update(ONES)
        other.update(ONES)
    assert blocks(other) == blocks(ps)
    assert [np.asarray(a).tobytes() for a in other.shard._state] == [  # noqa: SLF001
        np.asarray(a).tobytes()
        for a in ps.shard._state  # noqa: SLF001
    ]


def test_without_the_optimizers_state_it_begins_anew(checkpoint: Any) -> None:
    other = OnePs(MOMENTUM).restore(checkpoint, optimizer=False)
    assert other.shard.version == 4
    assert all((np.asarray(leaf) == 0).all() for leaf in other.shard._state)  # noqa: SLF001


def test_adopted_once_and_only_what_was_read(ps: OnePs, checkpoint: Any) -> None:
    other = OnePs(MOMENTUM)
    adopt = m.Adopt(0, "a life", "one", 4, {0: b"worker state"})
    with pytest.raises(Refused, match=r"ps:0 has read no checkpoint to adopt"):
        other.saver.adopt(adopt)
    assert other.read(checkpoint.path).failure == ""
    with pytest.raises(Refused, match="has read no checkpoint"):
        other.saver.adopt(m.Adopt(0, "a life", "another", 4))
    other.saver.adopt(adopt)
    other.saver.adopt(adopt)  # repeated
    assert other.saver.worker_state_of(0).data == b"worker state"
    other.update(ONES)
    other.read(checkpoint.path, token="late")
    other.saver.adopt(m.Adopt(0, "a life", "late", 4))
    assert other.shard.version == 5
    del ps


def damage(directory: Path) -> None:
    part = next(directory.glob("part-*"))
    data = bytearray(part.read_bytes())
    data[-1] ^= 1
    part.write_bytes(data)


@pytest.mark.parametrize(
    ("spoil", "words", "damaged"),
    [
        (damage, "altered bytes", True),
        (lambda path: (path / "manifest.json").write_text("{}"), "is not a checkpoint's manifest", True),
        (lambda path: path.rename(path.with_name("moved")), "there is no checkpoint at", False),
    ],
    ids=["a flipped bit", "no manifest", "not there"],
)
def test_a_reading_that_fails_says_why(
    checkpoint: Any, spoil: Callable[[Path], Any], words: str, damaged: bool
) -> None:
    spoil(checkpoint.path)
    other = OnePs(MOMENTUM)
    state = other.read(checkpoint.path)
    assert (state.done, state.damaged) == (True, damaged)
    assert words in state.failure
    with pytest.raises(Refused):
        other.saver.adopt(m.Adopt(0, "a life", "one", 4))


def test_a_reading_that_fails_unforeseen_is_done(checkpoint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr("trainband.ps.shard.saver.fill", fail)
    state = OnePs(MOMENTUM).read(checkpoint.path)
    assert (state.done, state.damaged) == (True, False)
    assert state.failure.endswith("MemoryError")


@pytest.mark.parametrize("name", ["manifest.json", "part-00000-of-00001.safetensors"])
def test_a_reading_waits_for_no_other_process(checkpoint: Any, name: str) -> None:
    (checkpoint.path / name).unlink()
    os.mkfifo(checkpoint.path / name)
    state = OnePs(MOMENTUM).read(checkpoint.path)
    assert (state.done, state.damaged) == (True, True)
    assert "not a regular file" in state.failure


def test_nothing_is_read_through_a_link(checkpoint: Any, tmp_path: Path) -> None:
    """It could lead out of the directories that this ps may use."""
    (checkpoint.path / "manifest.json").rename(tmp_path / "elsewhere")
    (checkpoint.path / "manifest.json").symlink_to(tmp_path / "elsewhere")
    assert "symbolic link" in OnePs(MOMENTUM).read(checkpoint.path).failure


def test_of_many_orders_one_is_read_and_then_the_newest(checkpoint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    reached, go_on, real = threading.Event(), threading.Event(), fill
    read: list[str] = []

    def slow(one: Any, *rest: Any, **more: Any) -> Any:
        read.append(rest[0][0].tensor)
        reached.set()
        assert go_on.wait(WAIT_S)
        return real(one, *rest, **more)

    monkeypatch.setattr(saver, "fill", slow)
    other, before = OnePs(MOMENTUM), threading.active_count()
    for number in range(50):
        with other.lock:
            other.saver.restore(m.Restore(0, "life", str(number), str(checkpoint.path)))
        assert reached.wait(WAIT_S)
    assert threading.active_count() == before + 1
    go_on.set()
    other.saver.close(WAIT_S)
    with other.lock:
        assert other.saver.restore_state("49") == m.RestoreState(done=True)
        assert other.saver.restore_state("0").forgotten
    assert len(read) == 3, "one buffer of the first, and the two of the last"


def test_a_question_about_nothing(ps: OnePs) -> None:
    assert ps.saver.restore_state("x") == m.RestoreState(done=True, forgotten=True)
