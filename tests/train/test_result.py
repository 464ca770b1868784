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
        "stopped": "the job has made the updates that were asked for",
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
