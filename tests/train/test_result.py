"""Results: what they say, and the picture."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainband.errors import YourError
from trainband.train import Evaluation, FitResult


def result(history: Any, **changes: Any) -> FitResult:
    """A training with this history."""
    fields: dict[str, Any] = {
        "task": "worker:0",
        "global_step": 100,
        "updates": 91,
        "timed_updates": 90,
        "steps": 50,
        "examples": 1600,
        "seconds": 2.0,
        "stopped": "the job has made the requested updates",
        "refused": 0,
        "mean_staleness": 0.5,
        "history": np.array(history, np.float64).reshape(-1, 2),
    }
    return FitResult(**{**fields, **changes})


HISTORIES: list[tuple[str, list[tuple[float, float]]]] = [
    ("a training", [(float(i), 1.0 / (i + 1)) for i in range(1000)]),
    ("losses below nought, which have no logarithm", [(1.0, 0.5), (2.0, -0.5), (3.0, 0.0)]),
    ("one step", [(1.0, 0.5)]),
    ("none", []),
    ("a loss that is not finite", [(1.0, 0.5), (2.0, float("nan")), (3.0, 0.25)]),
]


@pytest.mark.parametrize("history", [history for _, history in HISTORIES], ids=[name for name, _ in HISTORIES])
def test_plot(history: list[tuple[float, float]], tmp_path: Path) -> None:
    wanted = tmp_path / "not" / "there" / "yet" / "curve.png"
    path = result(history).plot(str(wanted), title="a title")
    assert path == wanted
    content = path.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert len(content) > 1000


def test_plot_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(YourError, match=r"pip install 'trainband\[plot\]'"):
        result([]).plot(tmp_path / "curve.png")


def test_steps_per_second() -> None:
    assert result([]).steps_per_second == 45.0
    assert result([], seconds=0.0).steps_per_second == 0.0


def test_a_result_is_short_to_print() -> None:
    shown = repr(result([(float(i), 0.0) for i in range(1000)]))
    assert "history" not in shown
    assert len(shown) < 300


def test_results_are_frozen() -> None:
    with pytest.raises(AttributeError):
        result([]).steps = 3  # type: ignore[misc]


EVALUATIONS: list[tuple[Evaluation, str]] = [
    (
        Evaluation(loss=0.123456, metrics={"accuracy": 0.98765}, examples=10000, global_step=500),
        "loss 0.1235, accuracy 0.9877 on 10000 examples at global step 500",
    ),
    (Evaluation(loss=2.0, metrics={}, examples=1, global_step=0), "loss 2.0000 on 1 examples at global step 0"),
]


@pytest.mark.parametrize(("evaluation", "text"), EVALUATIONS, ids=["metric", "none"])
def test_an_evaluation_in_words(evaluation: Evaluation, text: str) -> None:
    assert str(evaluation) == text


def test_summary() -> None:
    text = result(
        [(1.0, 4.0), (2.0, 0.5), (3.0, float("nan")), (90.0, 1.0)],
        evaluations=(
            Evaluation(loss=0.25, metrics={"accuracy": 0.9}, examples=10, global_step=50),
            Evaluation(loss=0.5, metrics={"accuracy": 0.8}, examples=10, global_step=100),
        ),
        refused=1,
        memory_bytes=1_200_000_000,
        memory_parts={"params": 400_000_000, "versions": 0, "rest": 800_000_000},
    ).summary()
    assert text.splitlines() == [
        "task         worker:0",
        "global step  100 (91 updates of the job in this training)",
        "steps        50 of this task, 1,600 examples",
        "time         2 s after the first step",
        "rate         45 steps/s of the job, 784 examples/s",
        "loss         first 4, last 1, best 0.5 at global step 2",
        "validation   last loss 0.5000, accuracy 0.8000 on 10 examples at global step 100",
        "             lowest loss 0.2500, accuracy 0.9000 on 10 examples at global step 50",
        "memory       1.2 GB of this task: params 400.0 MB, rest 800.0 MB",
        "staleness    0.50 updates in the mean",
        "not finite   1 gradients (refused), 1 losses",
        "ended        the job has made the requested updates",
    ]
    assert "loss" not in result([]).summary()


def test_a_notebook_shows_it(tmp_path: Path) -> None:
    found = result(
        HISTORIES[0][1],
        task="<script>alert(1)</script>",
        stopped="it was asked to end by '\"&<b>",
        evaluations=(Evaluation(loss=0.1, metrics={"<script>": 0.5, "$x$": 1.0}, examples=3, global_step=9),),
    )
    shown = found._repr_html_()
    assert "<script" not in shown
    assert "<b>" not in shown
    assert shown.count("&lt;script&gt;alert(1)&lt;/script&gt;") == 2
    assert "&lt;script&gt; 0.5000" in shown
    assert "<svg " in shown
    picture: Any = found.plot(title="what $x costs")
    assert picture._repr_png_()[:4] == b"\x89PNG"
    assert found.plot(tmp_path / "it.svg").read_bytes().startswith(b"<?xml")
