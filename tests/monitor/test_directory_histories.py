"""The histories of a directory as the page sees them: two runs, one that goes on, and one that was cut off."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.monitor.test_page_app import got

from trainband.monitor.directory_source import QUIET_S, DirectorySource, snapshot_of
from trainband.monitor.history.file import HistoryFile
from trainband.monitor.history.read import newest_start
from trainband.monitor.history.schema import EVENT, FOLDER, Row, next_start
from trainband.monitor.live_feed import Curve, LiveFeed, Run
from trainband.monitor.page.app import make_app

BEGAN = 1_800_000_000.0


def write(folder: Path, number: int, *, ended: bool) -> HistoryFile:
    """A run of a hundred seconds; the file stays open."""
    began = BEGAN + 1000 * number
    start = next_start(None, token=f"run-{number}", job="j", task="worker:0", now=began, global_step=0, resumed=False)
    file = HistoryFile(folder, start)
    rows = [Row(began, 0, f"{EVENT}start", 1000.0, "begins")]
    for second in range(1, 101):
        at = began + second
        rows += [Row(at, second * 5, "loss", 1 / second), Row(at, second * 5, "steps_per_second", 5.0)]
        rows += [Row(at, second * 5, "worker:1/loss", 1.0), Row(at, second * 5, "validation/loss", 2.0)]
    rows.append(Row(began + 100, 500, f"{EVENT}death", None, "worker:1 was lost"))
    if ended:
        rows.append(Row(began + 100, 500, f"{EVENT}end", None, "the steps are made"))
    file.append(rows)
    return file


@pytest.mark.smoke
def test_a_run_that_goes_on_beside_one_that_is_over(tmp_path: Path) -> None:
    write(tmp_path / FOLDER, 0, ended=True).close()
    going = write(tmp_path / FOLDER, 1, ended=False)
    now = BEGAN + 1000 + 101
    feed = LiveFeed(str(tmp_path))
    source = DirectorySource(tmp_path, feed, alone=True, clock=lambda: now)
    source.poll()
    assert [(run.name, run.steps, run.reason) for run in feed.runs] == [
        ("run 2", 500, ""),
        ("run 1", 500, "the steps are made"),
    ]
    assert sorted(feed.runs[0].curves) == ["loss", "steps_per_second", "validation/loss"]
    states = [feed.snapshot.state]
    assert (feed.snapshot.global_step, feed.snapshot.rate) == (500, 5.0)
    assert (feed.snapshot.last_step, feed.snapshot.left_s) == (1000, 100.0)
    assert feed.columns()["rate"] == [5.0] * 100
    events = [(event.kind, event.task, event.text) for _, event in feed.events_after()]
    assert ("lost", "worker:1", "Run 1: worker:1 was lost.") in events
    count = len(events)

    going.append([Row(now, 505, "loss", 0.001), Row(now, 505, f"{EVENT}checkpoint", 505.0, "checkpoint")])
    source.poll()
    assert feed.snapshot.global_step == 505
    assert len(feed.events_after()) == count + 1, "each event once"
    now += QUIET_S + 1
    source.poll()
    states.append(feed.snapshot.state)
    assert states == ["running", "ended"]
    app = make_app(feed)
    assert got(app, "/api/runs/run%201").json()["curves"]["loss"]["value"][0] == 1.0
    assert got(app, "/api/runs/run%203").status_code == 404
    going.close()


def test_the_points_of_a_run_of_weeks_are_far_apart() -> None:
    weeks_s = 14 * 86400.0
    curve = Curve([9], [BEGAN + weeks_s], [2.0])
    run = Run("run 1", BEGAN, BEGAN + weeks_s, 9, 1, "", {"steps_per_second": curve})
    at = [BEGAN + weeks_s + passed_s for passed_s in (600.0, 2400.0)]
    assert [(told.state, told.rate) for told in (snapshot_of(run, "", now) for now in at)] == [
        ("running", 2.0),
        ("ended", 0.0),
    ]


def test_a_job_that_resumes_from_a_checkpoint_is_where_that_was(tmp_path: Path) -> None:
    write(tmp_path / FOLDER, 0, ended=False).close()
    folder, now = tmp_path / FOLDER, BEGAN + 200
    start = next_start(
        newest_start(folder), token="other", job="k", task="worker:0", now=now, global_step=300, resumed=True
    )
    again = HistoryFile(folder, start)
    again.append([Row(now, 300, f"{EVENT}start", 900.0, "resumes"), Row(now, 300, f"{EVENT}restore", None, "resumes")])
    feed = LiveFeed(str(tmp_path))
    source = DirectorySource(tmp_path, feed, alone=True, clock=lambda: now)
    source.poll()
    steps = [feed.snapshot.global_step]
    again.append([Row(now + 1, 310, "loss", 0.5)])
    source.poll()
    steps.append(feed.snapshot.global_step)
    again.close()
    assert (steps, feed.snapshot.last_step) == ([300, 310], 900)


@pytest.mark.parametrize("ended", [True, False])
def test_a_job_that_its_launcher_knows_runs_until_it_says_so(tmp_path: Path, ended: bool) -> None:
    write(tmp_path / FOLDER, 0, ended=ended).close()  # a script may begin another training, or be killed
    feed = LiveFeed("a job")
    now = BEGAN + 101
    source = DirectorySource(tmp_path, feed, alone=True, lives=True, clock=lambda: now)
    source.poll()
    assert (feed.snapshot.state, feed.snapshot.global_step, feed.snapshot.rate) == ("running", 500, 5.0)
    now += 10_000
    with source:
        assert (feed.snapshot.state, feed.snapshot.global_step, feed.snapshot.rate) == ("running", 500, 0.0)
        source.end()
        told = feed.snapshot
    assert (told.state, told.global_step, told.rate, told.left_s) == ("ended", 500, 0.0, None)
    assert told.reason == ("the steps are made" if ended else "")


def test_a_file_that_was_cut_off_is_shown_as_far_as_it_goes(tmp_path: Path) -> None:
    file = write(tmp_path / FOLDER, 0, ended=False)
    file.append([Row(BEGAN + 200, 900, "loss", 0.0)])
    file.close()
    path = file.path
    path.write_bytes(path.read_bytes()[:-60])
    (tmp_path / FOLDER / "000001-20270101T000000.000000Z-x.arrows").write_bytes(b"no history at all")
    feed = LiveFeed(str(tmp_path))
    DirectorySource(tmp_path, feed, alone=True, clock=lambda: BEGAN + 1000).poll()
    assert feed.snapshot.global_step == 500
    assert feed.snapshot.state == "ended"
    assert any("skipped" in note for note in feed.notes), feed.notes
