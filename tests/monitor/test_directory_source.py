"""A checkpoint directory as the page sees it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.checkpoint.samples import commit, flip
from tests.monitor.test_page_app import got

from trainband.checkpoint.directory import CheckpointDirectory
from trainband.errors import CheckpointError, YourError
from trainband.monitor.directory_source import DirectorySource
from trainband.monitor.live_feed import LiveFeed
from trainband.monitor.page.app import make_app


def watched(path: Path, *, alone: bool = True) -> tuple[LiveFeed, DirectorySource]:
    feed = LiveFeed(str(path))
    source = DirectorySource(path, feed, alone=alone)
    source.poll()
    return feed, source


@pytest.mark.smoke
def test_checkpoints_without_a_history(tmp_path: Path) -> None:
    home = CheckpointDirectory(tmp_path, print)
    commit(home, 7)
    commit(home, 9)
    home.mark_best(7, "loss", 0.25)
    feed, source = watched(tmp_path)
    assert [(one.global_step, one.best) for one in feed.checkpoints] == [(9, ""), (7, "loss 0.25")]
    assert (feed.snapshot.state, feed.snapshot.global_step) == ("ended", 9)
    assert "There is no history" in feed.notes[0]
    names = [variable.name for variable in feed.snapshot.variables]
    assert names
    assert not any(name.startswith("params/") for name in names)
    app = make_app(feed, summary=source.summary)
    told = got(app, f"/api/values?name={names[0]}").json()
    assert told["elements"] == told["finite"] == sum(told["counts"])
    assert got(app, "/api/values?name=../../etc/passwd").status_code == 404
    assert got(make_app(feed), f"/api/values?name={names[0]}").status_code == 404


def test_new_and_damaged_checkpoints_are_seen(tmp_path: Path) -> None:
    feed, source = watched(tmp_path, alone=False)
    assert list(feed.checkpoints) == []
    with pytest.raises(CheckpointError, match="no checkpoint"):
        source.summary("w")
    changes = feed.changes
    home = CheckpointDirectory(tmp_path, print)
    commit(home, 7)
    damaged = commit(home, 9)
    flip(damaged / "manifest.json", 1)
    source.poll()
    assert [one.global_step for one in feed.checkpoints] == [9, 7]
    assert feed.checkpoints[0].damage
    assert feed.changes > changes
    assert feed.number == 0, "the state of the job is told by its ps"


def test_there_must_be_a_directory(tmp_path: Path) -> None:
    with pytest.raises(YourError, match="is not a directory"):
        DirectorySource(tmp_path / "nowhere", LiveFeed("x"), alone=True)
