"""Sessions keep histories: which task, of what, and what becomes of it when a script is started again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.train.fakes import ONES, mean_model

import trainband
from trainband.cluster.resolvers import joined
from trainband.monitor.history.schema import FOLDER
from trainband.strategies import StepReport
from trainband.train import Hook


def test_of_a_training_with_validation(tmp_path: Path) -> None:
    said: list[str] = []
    made = mean_model(say=said.append)
    made.fit([ONES], 6, checkpoint_dir=tmp_path, save_steps=4, validation=[ONES], every=3)
    history = trainband.history(tmp_path)
    assert set(history.names) >= {"loss", "largest", "validation/loss", "validation/largest"}
    kinds = [event.kind for event in history.events]
    assert (kinds[0], kinds[-1]) == ("start", "end")
    assert kinds.count("checkpoint") >= 2
    assert history.runs[0].reason == "the job has made the requested updates"
    assert history.series("loss").global_step[-1] == 6
    # A second training of the script, and the script again, belong to the same run.
    made.fit([ONES], 2, checkpoint_dir=tmp_path)
    again = mean_model(say=said.append)
    again.fit([ONES], 6, checkpoint_dir=tmp_path)
    again.fit([ONES], 5, checkpoint_dir=tmp_path)
    (run,) = trainband.history(tmp_path).runs
    assert run.last_step == 11
    assert [event.text for event in trainband.history(tmp_path).events if event.kind == "start"][1:] == [
        "continues at global step 6",
        "resumes from step-000000000008",
        "continues at global step 8",
    ]
    # Without checkpoints it begins anew.
    for path in tmp_path.glob("step-*"):
        path.rename(tmp_path / f"old-{path.name}")
    mean_model(say=said.append).fit([ONES], 2, checkpoint_dir=tmp_path)
    assert [run.last_step for run in trainband.history(tmp_path).runs] == [11, 2]
    assert [line for line in said if "WARNING" in line] == []


def test_none_without_a_directory_or_where_it_is_not_wanted(tmp_path: Path) -> None:
    mean_model(say=lambda _: None, history=False).fit([ONES], 2, checkpoint_dir=tmp_path)
    assert not (tmp_path / FOLDER).exists()
    mean_model().fit([ONES], 2)


def test_a_launcher_with_a_page_is_told_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page, runs = tmp_path / "page", tmp_path / "runs"
    page.mkdir()
    monkeypatch.setenv(joined.VARIABLE, str(page / "joined"))
    assert joined.page_directory() is None, "a launcher that shows none"
    monkeypatch.setenv(joined.PAGE, "1")
    assert joined.reported_history(page) is None
    mean_model(say=lambda _: None).fit([ONES], 2, checkpoint_dir=runs)
    assert joined.reported_history(page) == runs
    assert not (page / FOLDER).exists()
    mean_model().fit([ONES], 3)
    assert joined.reported_history(page) == page
    assert trainband.history(page).series("loss").global_step[-1] == 3
    monkeypatch.setenv(joined.VARIABLE, str(page / "gone" / "joined"))
    said: list[str] = []
    mean_model(say=said.append, history=False).fit([ONES], 3, checkpoint_dir=tmp_path / "others")
    assert [line.partition("(")[0] for line in said if "launcher" in line] == [
        f"WARNING: could not tell the launcher of {page / 'gone'} for its page "
    ]


def test_the_end_tells_the_error(tmp_path: Path) -> None:
    class Fails(Hook):
        def after_run(self, session: Any, report: StepReport) -> None:
            del session, report
            raise OSError("the cable is out")

    with pytest.raises(OSError, match="the cable is out"):
        mean_model(say=lambda _: None).fit([ONES], 3, checkpoint_dir=tmp_path, hooks=[Fails()])
    assert trainband.history(tmp_path).runs[0].reason == "OSError: the cable is out"
