"""The lock: one writer, whoever dies, whoever races."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trainband.checkpoint import DirectoryLock
from trainband.checkpoint import lock as lock_module
from trainband.errors import CheckpointError, DirectoryLocked

HOLD = """
import sys
from pathlib import Path
from trainband.checkpoint import DirectoryLock
DirectoryLock(Path(sys.argv[1]), "worker:7").acquire()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lock."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def age(directory: Path, seconds: float) -> None:
    """As if the lease had last been renewed that long ago."""
    path = directory / "LOCK"
    then = path.stat().st_mtime - seconds
    os.utime(path, (then, then))


def forge(directory: Path, **changes: Any) -> None:
    """Alters what the lock file says, as another machine's holder would have written it."""
    path = directory / "LOCK"
    status = path.stat()
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    os.utime(path, (status.st_mtime, status.st_mtime))


def content(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / "LOCK").read_text())
    return found


def test_it_is_taken_and_given_up(tmp_path: Path) -> None:
    with DirectoryLock(tmp_path / "run", "worker:0") as lock:
        assert content(tmp_path / "run")["owner"] == "worker:0"
        assert content(tmp_path / "run")["pid"] == os.getpid()
        lock.renew()
    assert list((tmp_path / "run").iterdir()) == []
    lock.release()  # again is nothing
    lock.acquire()
    lock.release()


def test_a_live_holder_is_named(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    says = rf"in use by worker:7 \(process {holder.pid} on .*\) since 2.* UTC, last renewed \d s ago; use another"
    with pytest.raises(DirectoryLocked, match=says):
        DirectoryLock(tmp_path, "worker:0").acquire()
    assert content(tmp_path)["owner"] == "worker:7"


def test_a_killed_holder_loses_it_at_once(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    holder.kill()
    # It is not waited for: a dead process that its parent has not asked after is dead all the same.
    os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)
    with DirectoryLock(tmp_path, "worker:0"):
        assert content(tmp_path)["owner"] == "worker:0"


def test_a_process_that_got_a_dead_ones_number_is_not_it(tmp_path: Path) -> None:
    DirectoryLock(tmp_path, "worker:7").acquire()
    forge(tmp_path, process_start=content(tmp_path)["process_start"] - 1)
    with DirectoryLock(tmp_path, "worker:0"):
        assert content(tmp_path)["owner"] == "worker:0"


@pytest.mark.parametrize("machine", ["another boot/pid:[1]", ""])
def test_another_machine_has_it_as_long_as_its_lease(tmp_path: Path, machine: str) -> None:
    DirectoryLock(tmp_path, "worker:7", lease_s=30.0).acquire()
    forge(tmp_path, machine=machine, pid=1 << 22, host="far")
    age(tmp_path, 29.0)
    with pytest.raises(DirectoryLocked, match=r"worker:7 .* on far\) .* last renewed (29|3\d) s ago"):
        DirectoryLock(tmp_path, "worker:0", lease_s=1.0).acquire()
    age(tmp_path, 2.0)
    DirectoryLock(tmp_path, "worker:0").acquire()
    assert content(tmp_path)["owner"] == "worker:0"


def test_a_local_clock_that_is_wrong_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    DirectoryLock(tmp_path, "worker:7").acquire()
    monkeypatch.setattr("time.time", lambda: 9e9)
    with pytest.raises(DirectoryLocked, match="last renewed 0 s ago"):
        DirectoryLock(tmp_path, "worker:0").acquire()


def test_renewing_keeps_it(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path, "worker:7")
    lock.acquire()
    age(tmp_path, 100.0)
    lock.renew()
    with pytest.raises(DirectoryLocked):
        DirectoryLock(tmp_path, "worker:0").acquire()


def test_who_came_too_late_is_told_and_removes_nothing(tmp_path: Path) -> None:
    late = DirectoryLock(tmp_path, "worker:7")
    late.acquire()
    age(tmp_path, 100.0)
    with DirectoryLock(tmp_path, "chief:0"):
        with pytest.raises(DirectoryLocked, match=r"taken over by chief:0 .* because worker:7 had not renewed"):
            late.renew()
        late.release()
        assert content(tmp_path)["owner"] == "chief:0"


def test_a_lock_file_that_was_removed_is_told(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path, "worker:7")
    lock.acquire()
    (tmp_path / "LOCK").unlink()
    with pytest.raises(DirectoryLocked, match="has been removed"):
        lock.renew()
    lock.release()


def test_a_lock_file_that_says_nothing_is_respected_for_a_lease(tmp_path: Path) -> None:
    (tmp_path / "LOCK").write_bytes(b"\xff{")
    with pytest.raises(DirectoryLocked, match="does not name"):
        DirectoryLock(tmp_path, "worker:0").acquire()
    age(tmp_path, 21.0)
    DirectoryLock(tmp_path, "worker:0").acquire()


def no_link(*_: object) -> None:
    raise OSError(1, "Operation not permitted")


def test_without_hard_links_it_is_made_exclusively(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", no_link)
    DirectoryLock(tmp_path, "worker:0").acquire()
    with pytest.raises(DirectoryLocked, match="worker:0"):
        DirectoryLock(tmp_path, "worker:1").acquire()


def test_a_newer_lock_than_was_looked_at_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another takes the stale lock over between our look and our removal."""
    DirectoryLock(tmp_path, "worker:7").acquire()
    age(tmp_path, 100.0)
    first, second = DirectoryLock(tmp_path, "worker:1"), DirectoryLock(tmp_path, "worker:2")
    counts = DirectoryLock._counts  # noqa: SLF001 - the moment between look and removal

    def poll(*_: Any) -> bool:
        monkeypatch.setattr(DirectoryLock, "_counts", counts)
        first.acquire()
        return False

    monkeypatch.setattr(DirectoryLock, "_counts", poll)
    with pytest.raises(DirectoryLocked, match="in use by worker:1"):
        second.acquire()
    first.renew()
    assert [path.name for path in tmp_path.iterdir()] == ["LOCK"]


def write_claim(directory: Path) -> Path:
    """A stale lock, and the file of one who was about to remove it."""
    DirectoryLock(directory, "worker:7").acquire()
    age(directory, 100.0)
    claim = directory / f".LOCK.{content(directory)['token']}.removal"
    DirectoryLock(directory / "elsewhere", "worker:8").acquire()
    claim.write_bytes((directory / "elsewhere" / "LOCK").read_bytes())
    return claim


def test_one_that_died_while_taking_it_over_is_not_in_the_way(tmp_path: Path) -> None:
    claim = write_claim(tmp_path)
    claim.write_text(json.dumps(json.loads(claim.read_text()) | {"process_start": 1}))
    with DirectoryLock(tmp_path, "worker:0"):
        assert content(tmp_path)["owner"] == "worker:0"
    assert [path.name for path in tmp_path.iterdir()] == ["elsewhere"]


def test_one_that_is_taking_it_over_is_let(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_claim(tmp_path)
    monkeypatch.setattr(lock_module, "_PATIENCE_S", 0.0)
    with pytest.raises(DirectoryLocked, match="worker:7"):
        DirectoryLock(tmp_path, "worker:0").acquire()
    assert content(tmp_path)["owner"] == "worker:7"


@pytest.mark.parametrize("links", [True, False], ids=["links", "no links"])
@pytest.mark.parametrize("stale", [True, False], ids=["stale", "free"])
def test_of_those_who_race_one_wins(tmp_path: Path, stale: bool, links: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not links:
        monkeypatch.setattr(os, "link", no_link)
    for round_ in range(25):
        directory = tmp_path / str(round_)
        if stale:
            DirectoryLock(directory, "worker:9").acquire()
            age(directory, 100.0)
        start = threading.Barrier(4)
        held: list[DirectoryLock] = []

        def install(
            name: str, directory: Path = directory, start: threading.Barrier = start, held: list[DirectoryLock] = held
        ) -> None:
            lock = DirectoryLock(directory, name)
            start.wait(10.0)
            with contextlib.suppress(DirectoryLocked):
                lock.acquire()
                held.append(lock)
                lock.renew()

        threads = [threading.Thread(target=install, args=(f"worker:{i}",)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(held) == 1
        held[0].renew()
        assert [path.name for path in directory.iterdir()] == ["LOCK"]


RACE = """
import sys
from pathlib import Path
from trainband.checkpoint import DirectoryLock
from trainband.errors import DirectoryLocked
for line in sys.stdin:
    lock = DirectoryLock(Path(line.strip()), "worker:%s" % sys.argv[1])
    try:
        lock.acquire()
        print("won", flush=True)
    except DirectoryLocked:
        print("lost", flush=True)
"""


def test_of_two_processes_that_race_for_a_stale_lock_one_wins(tmp_path: Path) -> None:
    racers = [
        subprocess.Popen([sys.executable, "-c", RACE, str(i)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for i in range(2)
    ]
    with racers[0], racers[1]:
        for round_ in range(50):
            directory = tmp_path / str(round_)
            DirectoryLock(directory, "worker:9").acquire()
            age(directory, 100.0)
            for racer in racers:
                assert racer.stdin is not None
                racer.stdin.write(f"{directory}\n")
                racer.stdin.flush()
            said = [racer.stdout.readline() for racer in racers if racer.stdout is not None]
            assert sorted(said) == ["lost\n", "won\n"]
            assert content(directory)["owner"] == f"worker:{said.index('won' + chr(10))}"


@pytest.mark.parametrize("lease_s", [0.0, -1.0, float("nan")])
def test_a_lease_of_no_time_is_refused(tmp_path: Path, lease_s: float) -> None:
    with pytest.raises(ValueError, match="lease_s"):
        DirectoryLock(tmp_path, "worker:0", lease_s=lease_s)


def test_a_full_disk_does_not_keep_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    lock = DirectoryLock(tmp_path, "worker:0")
    lock.acquire()
    monkeypatch.setattr(lock_module, "new_regular", full)
    lock.renew()
    lock.release()
    assert not list(tmp_path.iterdir())
    with pytest.raises(CheckpointError, match=r"cannot lock .*No space left .*make room"):
        lock.acquire()


def test_a_disk_that_refuses(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="cannot lock"):
        DirectoryLock(tmp_path / "file", "worker:0").acquire()
    DirectoryLock(tmp_path / "nowhere", "worker:0").release()


# --- one job, several tasks


def test_within_a_job_it_goes_from_hand_to_hand(tmp_path: Path) -> None:
    former = DirectoryLock(tmp_path, "worker:0", job="a")
    former.acquire()
    with DirectoryLock(tmp_path, "worker:1", job="a"):
        with pytest.raises(DirectoryLocked, match=r"taken over from worker:0 by worker:1 \(.* of the same job"):
            former.renew()
        assert former.successor == "worker:1"
        former.release()
        assert content(tmp_path)["owner"] == "worker:1"
        former.acquire()
        assert former.successor == ""
        assert content(tmp_path)["owner"] == "worker:0"


# of the holder, of who comes
STRANGERS: list[tuple[str, str]] = [("a", "b"), ("a", ""), ("", "a"), ("", "")]


@pytest.mark.parametrize(("held_for", "wanted_for"), STRANGERS)
def test_of_two_jobs_one_has_it(held_for: str, wanted_for: str, tmp_path: Path) -> None:
    with DirectoryLock(tmp_path, "worker:0", job=held_for) as lock:
        other = DirectoryLock(tmp_path, "worker:1", job=wanted_for)
        with pytest.raises(DirectoryLocked, match="in use by worker:0"):
            other.acquire()
        assert other.rival_job == held_for
        lock.renew()
    other.acquire()
    assert other.rival_job == ""
    other.release()


def test_another_job_that_took_it_when_the_lease_ran_out_is_no_heir(tmp_path: Path) -> None:
    late = DirectoryLock(tmp_path, "worker:0", job="a")
    late.acquire()
    age(tmp_path, 100.0)
    with DirectoryLock(tmp_path, "worker:1", job="b"):
        with pytest.raises(DirectoryLocked, match="had not renewed"):
            late.renew()
        assert late.successor == ""


def test_the_job_is_noted_once_it_is_known(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path, "worker:0")
    lock.acquire()
    before = content(tmp_path)
    age(tmp_path, 100.0)
    lock.name_job("a")
    assert content(tmp_path) == before | {"job": "a"}
    assert [path.name for path in tmp_path.iterdir()] == ["LOCK"]
    with pytest.raises(DirectoryLocked, match="last renewed 0 s ago"):
        DirectoryLock(tmp_path, "worker:1", job="b").acquire()
    lock.renew()
    lock.release()
    assert list(tmp_path.iterdir()) == []
    lock.name_job("b")  # of one that is not held, for the next time
    assert list(tmp_path.iterdir()) == []
    with lock:
        assert content(tmp_path)["job"] == "b"


def test_a_lock_that_was_lost_is_not_noted_upon(tmp_path: Path) -> None:
    late = DirectoryLock(tmp_path, "worker:0")
    late.acquire()
    age(tmp_path, 100.0)
    with DirectoryLock(tmp_path, "worker:1", job="a"):
        with pytest.raises(DirectoryLocked, match="taken over from worker:0 by worker:1"):
            late.name_job("a")
        assert content(tmp_path)["owner"] == "worker:1"


def test_who_is_taking_it_over_is_not_overwritten(tmp_path: Path) -> None:
    """The job is noted only by one that could remove the file: who is about to has a file that says so."""
    lock = DirectoryLock(tmp_path, "worker:0")
    lock.acquire()
    claim = tmp_path / f".LOCK.{content(tmp_path)['token']}.removal"
    claim.write_bytes((tmp_path / "LOCK").read_bytes())
    lock.name_job("a")
    assert content(tmp_path)["job"] == ""
    claim.unlink()
    lock.renew()
    assert content(tmp_path)["job"] == "a"


@pytest.mark.parametrize("links", [True, False], ids=["links", "no links"])
def test_a_full_disk_that_takes_no_job_keeps_the_lease(
    links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    if not links:
        monkeypatch.setattr(os, "link", no_link)
    lock = DirectoryLock(tmp_path, "worker:0", lease_s=30.0)
    lock.acquire()
    age(tmp_path, 100.0)
    with monkeypatch.context() as full:
        full.setattr(lock_module, "new_regular", refuse)
        lock.name_job("a")
    with pytest.raises(DirectoryLocked, match="last renewed 0 s ago"):
        DirectoryLock(tmp_path, "worker:1").acquire()
    lock.renew()
    assert content(tmp_path)["job"] == "a"


def test_a_lock_of_an_earlier_version_names_no_job(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path, "worker:0")
    lock.acquire()
    path = tmp_path / "LOCK"
    path.write_text(json.dumps({name: value for name, value in content(tmp_path).items() if name != "job"}))
    with pytest.raises(DirectoryLocked, match="in use by worker:0"):
        DirectoryLock(tmp_path, "worker:1", job="a").acquire()
    lock.release()


def test_it_is_not_written_through_a_link_that_has_its_name(tmp_path: Path) -> None:
    """The token of a job stands in its lock file, and names what it writes beside it when its job changes."""
    (tmp_path / "precious").write_text("precious")
    with DirectoryLock(tmp_path, "worker:0") as lock:
        (tmp_path / f".LOCK.{content(tmp_path)['token']}.tmp").symlink_to("precious")
        forge(tmp_path, job="another")
        lock.renew()
        assert content(tmp_path)["job"] != "another"
    assert (tmp_path / "precious").read_text() == "precious"
