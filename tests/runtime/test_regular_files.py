"""Opening files where another user may have put something: nothing waits, and nothing is written through a link."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from trainband.checkpoint.disk import write_durably
from trainband.cli.task_logs import TaskLogs
from trainband.cluster import Task
from trainband.compat.checkpoints.files import get_checkpoint_state, metadata_of, read_checkpoint
from trainband.compat.tf1.datasets.reading import opened as opened_dataset
from trainband.compat.tf1.graphs.errors import DataLossError, NotFoundError
from trainband.compat.tf1.input.record_files import records
from trainband.compat.tf1.training.meta_graph import read_meta_graph_file
from trainband.errors import YourError
from trainband.export import artifact
from trainband.monitor.history.read import newest_start, read_file
from trainband.monitor.history.schema import SUFFIX as HISTORY
from trainband.monitor.step_profile import SUFFIX as PROFILE
from trainband.monitor.step_profile import read_profiles
from trainband.runtime.regular_files import (
    READ_WHOLE,
    UnusableFile,
    append_regular,
    fixed_path,
    new_regular,
    read_regular,
    regular_file,
    replacing,
    write_regular,
)
from trainband.train.tensorboard_file import EventFile


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _directory(path: Path) -> None:
    path.mkdir()


PLANTED = {"FIFO": _fifo, "socket": _socket, "device": _device, "directory": _directory}


@pytest.fixture(params=PLANTED)
def planted(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Something that is no regular file."""
    PLANTED[request.param](tmp_path / "planted")
    return tmp_path / "planted"


@pytest.mark.parametrize(
    "reading", [regular_file, lambda path: read_regular(path, 100), lambda path: fixed_path(path).__enter__()]
)
def test_nothing_but_a_regular_file_is_read(reading: Callable[[Path], Any], planted: Path) -> None:
    with pytest.raises(UnusableFile):
        reading(planted)


def test_nothing_but_a_regular_file_is_appended_to(planted: Path, tmp_path: Path) -> None:
    with pytest.raises(OSError):  # noqa: PT011 - EISDIR of a directory, or UnusableFile
        append_regular(planted)
    append_regular(tmp_path / "log").close()
    with append_regular(tmp_path / "log") as file:
        file.write(b"line")
    (tmp_path / "link").symlink_to("log")
    with pytest.raises(UnusableFile, match="it is a symbolic link"):
        append_regular(tmp_path / "link")
    assert (tmp_path / "log").read_bytes() == b"line"


def _write_safetensors(path: Path, data: bytes) -> None:
    save_file({"a": np.frombuffer(data, np.uint8)}, path)


@pytest.mark.parametrize("write", [write_regular, write_durably, _write_safetensors])
@pytest.mark.parametrize("plant", [_fifo, _socket, lambda path: path.symlink_to("precious")])
def test_a_file_replaces_what_has_its_name(
    write: Callable[[Path, bytes], None], plant: Callable[[Path], None], tmp_path: Path
) -> None:
    (tmp_path / "precious").write_bytes(b"precious")
    plant(tmp_path / "out")
    write(tmp_path / "out", b"new")
    assert (tmp_path / "out").read_bytes().endswith(b"new")
    assert (tmp_path / "precious").read_bytes() == b"precious"
    assert sorted(os.listdir(tmp_path)) == ["out", "precious"]  # noqa: PTH208 - names are enough


def test_a_file_that_is_not_finished_leaves_what_was_there(tmp_path: Path) -> None:
    write_regular(tmp_path / "out", b"before")
    with pytest.raises(ZeroDivisionError), replacing(tmp_path / "out") as file:
        file.write(bytes([1 // 0]))
    with pytest.raises(FileExistsError), replacing(tmp_path / "out", replace=False) as file:
        file.write(b"second")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out").read_bytes() == b"before"


def test_a_new_file_takes_no_place_of_another(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("precious")
    with pytest.raises(FileExistsError):
        new_regular(tmp_path / "link")
    assert not (tmp_path / "precious").exists()


def test_a_fixed_path_stays_that_of_the_file_that_was_there(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"first")
    with fixed_path(tmp_path / "file") as path:
        (tmp_path / "file").unlink()
        os.mkfifo(tmp_path / "file")
        assert Path(path).read_bytes() == b"first"


def test_a_sparse_file_of_terabytes_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 42)
    with pytest.raises(UnusableFile, match="4,398,046,511,104 bytes; the limit is 100"):
        read_regular(tmp_path / "sparse", 100)


def test_a_bound_costs_no_memory_and_holds_for_a_file_that_grows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    assert read_regular(path, READ_WHOLE) == b"0123456789"
    whole = os.fstat
    monkeypatch.setattr(os, "fstat", lambda fd: os.stat_result((*whole(fd)[:6], 3, *whole(fd)[7:])))  # a size of 3
    assert read_regular(path, 10) == b"0123456789"
    with pytest.raises(UnusableFile, match="10 bytes; the limit is 9"):
        read_regular(path, 9)


def _history(directory: Path) -> None:
    os.mkfifo(directory / f"000001{HISTORY}")
    assert newest_start(directory) is None
    read_file(directory / f"000001{HISTORY}")


def _profile(directory: Path) -> None:
    os.mkfifo(directory / f"worker-0{PROFILE}")
    read_profiles(directory)


def _log(directory: Path) -> None:
    os.mkfifo(directory / "worker-0.log")
    said: list[str] = []
    with TaskLogs(directory, said.append) as logs:
        logs.line(Task("worker", 0), "text")
    assert "it is not a regular file" in said[0]
    raise YourError(said[0])


def _manifest(directory: Path) -> None:
    os.mkfifo(directory / artifact.MANIFEST)
    artifact.load(directory)


def _state(directory: Path) -> None:
    os.mkfifo(directory / "checkpoint")
    assert get_checkpoint_state(directory) is None
    raise NotFoundError(None, None, "")


def _values(directory: Path) -> None:
    os.mkfifo(directory / "model.safetensors")
    assert metadata_of(str(directory / "model")) == {}
    read_checkpoint(str(directory / "model"))


def _records(directory: Path) -> None:
    os.mkfifo(directory / "data")
    next(iter(records(directory / "data")))


def _lines(directory: Path) -> None:
    os.mkfifo(directory / "data")
    opened_dataset(str(directory / "data"), "GZIP")


def _graph(directory: Path) -> None:
    os.mkfifo(directory / "model.meta")
    read_meta_graph_file(directory / "model.meta")


@pytest.fixture
def _in_time() -> Iterator[None]:
    """Fails, rather than waits, where something does wait for a FIFO."""
    import signal

    def late(*_: object) -> None:
        raise AssertionError("it waits for the FIFO")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, 10.0)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0.0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("_in_time")
@pytest.mark.parametrize("use", [_history, _profile, _log, _manifest, _state, _values, _records, _lines, _graph])
def test_a_fifo_stops_nothing(use: Callable[[Path], None], tmp_path: Path) -> None:
    with pytest.raises((OSError, YourError, NotFoundError, DataLossError, ValueError)):
        use(tmp_path)


def test_an_event_file_is_not_written_through_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(b"precious")
    monkeypatch.setattr("trainband.train.tensorboard_file.socket.gethostname", lambda: "host")
    monkeypatch.setattr("trainband.train.tensorboard_file.time.time", lambda: 1.0)
    number = int(os.fspath(next(_event_files(tmp_path / "a"))).rpartition(".")[2])
    (tmp_path / "b").mkdir()
    name = f"events.out.tfevents.1.host.{os.getpid()}.{number + 1:06}"
    (tmp_path / "b" / name).symlink_to(precious)
    said: list[str] = []
    EventFile(tmp_path / "b", said.append).close()
    assert precious.read_bytes() == b"precious"
    assert "could not write summaries" in said[0]


def _event_files(directory: Path) -> Iterator[Path]:
    EventFile(directory, lambda _: None).close()
    yield from directory.iterdir()
