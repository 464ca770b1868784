"""Histories as they are read: broken off, damaged, resumed, of several runs, and as a notebook shows them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import trainband
from trainband.errors import DataError, YourError
from trainband.monitor.history.file import HistoryFile
from trainband.monitor.history.read import newest_start, read_file
from trainband.monitor.history.schema import FOLDER, Row, next_start

NOW = 1_800_000_000.0


def write(
    directory: Path, *batches: Sequence[Row], job: str = "a", resumed: bool = False, task: str = "worker:0"
) -> tuple[Path, list[int]]:
    """A file of these batches; its path, and how large it was after its beginning and each of them."""
    folder = directory / FOLDER
    before = newest_start(folder)
    now = NOW if before is None else before.started_at + 100
    start = next_start(before, token=f"run of {job}", job=job, task=task, now=now, global_step=0, resumed=resumed)
    file = HistoryFile(folder, start)
    sizes = [file.path.stat().st_size]
    for batch in batches:
        file.append(batch)
        sizes.append(file.path.stat().st_size)
    file.close()
    return file.path, sizes


def losses(first: int, last: int, *, value: float = 1.0, at: float = NOW) -> list[Row]:
    return [Row(at + step, step, "loss", value) for step in range(first, last + 1)]


def test_a_file_is_read_up_to_its_last_whole_batch_wherever_it_ends(tmp_path: Path) -> None:
    path, sizes = write(
        tmp_path,
        [Row(NOW, 0, "event/start", None, "begins")],
        [Row(NOW + 1, 5, "loss", 0.5), Row(NOW + 1, 5, "accuracy", float("nan"))],
        [Row(NOW + 2, 9, "loss", 0.25), Row(NOW + 2, 9, "a name that is new", 1.0)],
    )
    data, rows = path.read_bytes(), [0, 1, 2, 2]
    for size in range(len(data) + 1):
        path.write_bytes(data[:size])
        part = read_file(path)
        whole = sum(count for count, end in zip(rows, sizes, strict=True) if size >= end)
        assert (0 if part is None else len(part.table)) == whole, size
        if part is None:
            assert size < sizes[1]


def test_what_is_read(tmp_path: Path) -> None:
    write(
        tmp_path,
        [Row(NOW, 0, "event/start", None, "begins"), Row(NOW + 1.5, 5, "loss", 0.5)],
        [Row(NOW + 2, 7, "loss", 0.25), Row(NOW + 2, 7, "validation/loss", 0.3)],
        [Row(NOW + 3, 8, "event/refusal", 3.0, "NaN"), Row(NOW + 4, 9, "event/end", None, "it was asked to")],
    )
    history = trainband.history(tmp_path)
    loss = history.series("loss")
    assert (loss.name, loss.run, loss.global_step.tolist(), loss.value.tolist()) == ("loss", 1, [5, 7], [0.5, 0.25])
    assert loss.time.dtype == np.dtype("M8[us]")
    assert loss.time.astype(np.int64).tolist() == [(NOW + 1.5) * 1e6, (NOW + 2) * 1e6]
    assert history.names == ("loss", "validation/loss")
    assert [(event.kind, event.text, event.value) for event in history.events] == [
        ("start", "begins", None),
        ("refusal", "NaN", 3.0),
        ("end", "it was asked to", None),
    ]
    (run,) = history.runs
    assert (run.first_step, run.last_step, run.tasks, run.starts) == (0, 9, ("worker:0",), 1)
    assert (run.began_at.timestamp(), run.ended_at.timestamp()) == (NOW, NOW + 4)
    assert run.reason == "it was asked to"
    assert history.table.column_names == ["run", "time", "global_step", "task", "name", "value", "text"]
    assert repr(history) == f"<History of {tmp_path}: 1 runs, 2 series, 6 rows>"
    assert repr(trainband.history(tmp_path / FOLDER)) == repr(history)


def test_a_run_that_was_resumed_has_no_second_branch(tmp_path: Path) -> None:
    write(tmp_path, [Row(NOW, 0, "event/start", None, ""), *losses(1, 10), Row(NOW, 10, "event/death", None, "x")])
    again = [
        Row(NOW + 50, 6, "event/start", None, ""),
        Row(NOW + 50, 6, "event/restore", None, ""),
        *losses(7, 8, value=2.0),
    ]
    write(tmp_path, again, job="b", resumed=True, task="worker:1")
    # In it, a ps loses what was made after step 7.
    write(tmp_path, [Row(NOW, 7, "event/restore", None, ""), *losses(8, 9, value=3.0)], job="b")
    history = trainband.history(tmp_path)
    loss = history.series("loss")
    assert loss.global_step.tolist() == [*range(1, 10)]
    assert loss.value.tolist() == [1.0] * 6 + [2.0] + [3.0] * 2
    assert history.left_out["global_step"].to_pylist() == [7, 8, 9, 10, 8]
    assert [event.kind for event in history.events] == ["start", "death", "start", "restore", "restore"]
    (run,) = history.runs
    assert (run.starts, run.tasks, run.reason) == (2, ("worker:0", "worker:1"), "")


def test_two_runs_in_one_directory(tmp_path: Path) -> None:
    write(tmp_path, [Row(NOW, 0, "event/start", None, ""), *losses(1, 5), Row(NOW, 5, "event/end", None, "done")])
    write(tmp_path, [Row(NOW, 0, "event/start", None, ""), *losses(1, 3, value=9.0)], job="b")
    history = trainband.history(tmp_path)
    assert [(run.number, run.last_step, run.reason) for run in history.runs] == [(1, 5, "done"), (2, 3, "")]
    assert history.series("loss").value.tolist() == [9.0] * 3
    assert history.series("loss", run=1).value.tolist() == [1.0] * 5
    assert len(history.left_out) == 0
    with pytest.raises(YourError, match="has runs 1 to 2, not run 3"):
        history.series("loss", run=3)
    with pytest.raises(YourError, match=r"run 2 of .* has no series 'lost'; it has loss"):
        history.series("lost")


def test_a_directory_without_one(tmp_path: Path) -> None:
    with pytest.raises(YourError, match=r"has no history: there is no file \*.arrows in .*history"):
        trainband.history(tmp_path)
    with pytest.raises(YourError, match="does not exist; give the checkpoint_dir of a run"):
        trainband.history(tmp_path / "nowhere")


DAMAGE: list[tuple[str, bytes]] = [
    ("no Arrow at all", b"step,loss\n1,0.5\n"),
    ("zeros", bytes(5000)),
    ("a negative length", b"\xff\xff\xff\xff\xff\xff\xff\xff" * 9),
    ("metadata that is none", b"\xff\xff\xff\xff\x10\x00\x00\x00" + b"\xff" * 200),
]


@pytest.mark.parametrize("content", [content for _, content in DAMAGE], ids=[name for name, _ in DAMAGE])
def test_damaged_files_are_named(content: bytes, tmp_path: Path) -> None:
    write(tmp_path, losses(1, 3))
    bad = tmp_path / FOLDER / "000007-of-a-stranger.arrows"
    bad.write_bytes(content)
    with pytest.raises(DataError, match=r"1 of the files .*000007-of-a-stranger.arrows is damaged.*skip_damaged=True"):
        trainband.history(tmp_path)
    history = trainband.history(tmp_path, skip_damaged=True)
    assert len(history.series("loss")) == 3
    assert list(history.damaged) == [str(bad)]
    assert newest_start(tmp_path / FOLDER) is not None  # the next run is not kept from beginning


def test_a_file_with_any_byte_changed_is_read_or_refused(tmp_path: Path) -> None:
    path, _ = write(tmp_path, losses(1, 3), [Row(NOW, 4, "event/end", None, "done")])
    data = path.read_bytes()
    for at in range(0, len(data), 3):
        changed = bytearray(data)
        changed[at] ^= 0xFF
        path.write_bytes(changed)
        try:
            read_file(path)
        except DataError as exc:
            assert path.name in str(exc)  # noqa: PT017 - most changes are not found, and need not be


def test_to_pandas_without_pandas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, losses(1, 3))
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(YourError, match="pip install pandas"):
        trainband.history(tmp_path).to_pandas()


class Elements(HTMLParser):
    """The names of all elements, and what is text."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.shown = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        assert not [name for name, _ in attrs if name.startswith("on")]

    def handle_data(self, data: str) -> None:
        self.shown += data


def elements(html: str) -> Elements:
    found = Elements()
    found.feed(html)
    return found


EVIL = "<script>alert('\"&\x1b[2J"


def test_a_notebook_shows_it_and_runs_nothing_of_it(tmp_path: Path) -> None:
    directory = tmp_path / "<script>run"
    write(
        directory,
        [*losses(1, 900), *losses(901, 902, value=float("nan"))],
        [Row(NOW, 3, f"event/{EVIL}", None, EVIL), Row(NOW, 4, "event/end", None, EVIL)],
        task=EVIL,
    )
    (directory / FOLDER / "<img src=x onerror=alert(1)>.arrows").write_bytes(b"nothing of Arrow's")
    found = elements(trainband.history(directory, skip_damaged=True)._repr_html_())
    assert found.names == {
        *("div", "strong", "table", "thead", "tbody", "tr", "th", "td"),
        *("figure", "svg", "polyline", "figcaption"),
    }
    assert found.shown.count("<script>alert('\"&\\x1b[2J") == 7  # two of the run, five of its events
    assert "<img src=x" in found.shown


def test_a_plot_of_several_runs(tmp_path: Path) -> None:
    write(tmp_path, losses(1, 5))
    write(tmp_path, losses(1, 3, value=0.0), job="b")
    history = trainband.history(tmp_path)
    assert history.plot(path=tmp_path / "a" / "loss.png") == tmp_path / "a" / "loss.png"
    assert (tmp_path / "a" / "loss.png").read_bytes()[:4] == b"\x89PNG"
    with pytest.raises(YourError, match="no series 'accuracy'"):
        history.plot("accuracy")
