"""The console: what it shows, as text."""

from __future__ import annotations

import io
import subprocess
import sys
import threading
import types
from typing import Any

import pytest
from rich.console import Console as RichConsole
from tests.programs import until

from trainband.job.checkpoints import CheckpointStatus
from trainband.runtime.formatting import duration
from trainband.strategies.base import Progress, WorkerRow
from trainband.train import console
from trainband.train.console import Console, line, picture

ROWS = (WorkerRow("worker:0", "live", 60.4, 1.25, 0.51234), WorkerRow("worker:1", "lost", 0.0, 0.0, None))


def as_text(progress: Progress | None) -> str:
    out = io.StringIO()
    RichConsole(file=out, width=100, color_system=None).print(picture(progress))
    return out.getvalue()


LINES: list[tuple[Progress, str]] = [
    (Progress(0, None, 0.0, None), "global step 0, compiling the first step"),
    (Progress(1, None, 0.0, 0.5), "global step 1, loss 0.5000"),  # nobody knows how fast the next ones are
    (Progress(3, None, 0.456, None), "global step 3, 0.46 steps/s"),
    (Progress(12345, None, 1234.5, 0.25), "global step 12,345, 1,234 steps/s, loss 0.2500"),
    (Progress(4000, 10000, 100.0, 0.25), "global step 4,000/10,000, 100 steps/s, loss 0.2500, 1 min 00 s left"),
    (Progress(4000, 10000, 0.0, None), "global step 4,000/10,000, 0 steps/s"),  # stands still: nobody knows how long
    (Progress(10, None, 5.0, 1.0, examples_rate=1234.5), "global step 10, 5 steps/s, 1,234 examples/s, loss 1.0000"),
    (Progress(10001, 10000, 10.0, None), "global step 10,001/10,000, 10 steps/s, 0 s left"),
]


@pytest.mark.parametrize(("progress", "text"), LINES, ids=range(len(LINES)))
def test_line(progress: Progress, text: str) -> None:
    assert line(progress) == text


DURATIONS: list[tuple[float, str]] = [
    (-3.0, "0 s"),
    (0.4, "0 s"),
    (59.4, "59 s"),
    (59.6, "1 min 00 s"),
    (61.0, "1 min 01 s"),
    (3599.0, "59 min 59 s"),
    (3599.9, "1 h 00 min"),
    (90061.0, "25 h 01 min"),
]


@pytest.mark.parametrize(("seconds", "text"), DURATIONS)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_picture_before_the_job_begins() -> None:
    assert as_text(None).strip() == "waiting for the job to begin"


def test_a_picture_with_an_end() -> None:
    head, bar, titles, first, second = as_text(Progress(5000, 10000, 60.0, 0.5, ROWS)).splitlines()
    assert head.strip() == "global step 5,000/10,000, 60 steps/s, loss 0.5000, 1 min 23 s left"
    assert bar.strip().startswith("━")
    assert titles.split() == ["worker", "steps/s", "staleness", "loss"]
    assert first.split() == ["worker:0", "live", "60", "1.2", "0.5123"]
    assert second.split() == ["worker:1", "lost", "0", "0.0"]


def test_a_picture_without_an_end_has_no_bar() -> None:
    text = as_text(Progress(5000, None, 60.0, 0.5, ROWS))
    assert "━" not in text
    assert len(text.splitlines()) == 4


def test_a_picture_names_the_checkpoint_that_landed_last() -> None:
    checkpoint = CheckpointStatus(global_step=4000, nbytes=1_234_567, seconds=0.25)
    assert str(checkpoint) == "checkpoint of global step 4,000: 1.2 MB in 0.2 s"
    text = as_text(Progress(5000, None, 60.0, 0.5, ROWS, checkpoint=checkpoint))
    assert text.splitlines()[-1].strip() == str(checkpoint)


class NoTerminal(io.StringIO):
    def isatty(self) -> bool:
        return False


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_lines_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "LIVE_EVERY_S", 0.001)
    monkeypatch.setattr(console, "LINE_EVERY_S", 0.002)
    monkeypatch.setattr("sys.stderr", NoTerminal())
    answers: list[Progress | None] = [None, Progress(7, None, 1.0, None)]
    said: list[str] = []
    enough = threading.Event()

    def source() -> Progress | None:
        return answers.pop(0) if len(answers) > 1 else answers[0]

    def say(text: str) -> None:
        said.append(text)
        if len(said) >= 2:
            enough.set()

    with Console(source, say):
        assert enough.wait(10.0)
    assert set(said) == {"global step 7, 1 steps/s"}


def test_nothing_is_asked_before_it_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", NoTerminal())

    def source() -> Any:
        raise AssertionError("asked")

    with Console(source, pytest.fail):
        pass


def test_a_live_picture_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "LIVE_EVERY_S", 0.001)
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    asked = threading.Semaphore(0)

    def source() -> Progress:
        asked.release()
        return Progress(4321, 10000, 60.0, 0.5, ROWS)

    with Console(source, pytest.fail):
        for _ in range(3):
            assert asked.acquire(timeout=10.0)
    assert "global step 4,321/10,000" in terminal.getvalue()
    assert "worker:1" in terminal.getvalue()


WITHOUT_A_PICTURE = """
import sys
import jax.numpy as jnp, numpy as np, optax, trainband

def loss(params, batch):
    return (params * batch).sum()

trainer = trainband.Trainer(
    init=lambda key: jnp.ones(2), loss=loss, optimizer=optax.sgd(0.1), strategy=trainband.OneDevice(), console=False
)
trainer.fit([np.ones(2, np.float32)], steps=2)
print({"rich", "tensorboardX"} & set(sys.modules))
"""


def test_who_shows_nothing_starts_without_the_libraries_for_it() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_A_PICTURE], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


# --- in a notebook


class FakeNotebook:
    """What IPython is to a program that runs in the kernel of a notebook."""

    def __init__(self) -> None:
        self.shown: list[str] = []
        self.update = self.shown.append
        display = types.ModuleType("IPython.display")
        display.HTML = str  # type: ignore[attr-defined]
        display.display = self.display  # type: ignore[attr-defined]
        ipython = types.ModuleType("IPython")
        ipython.get_ipython = lambda: types.SimpleNamespace(kernel=self)  # type: ignore[attr-defined]
        self.modules = {"IPython": ipython, "IPython.display": display}

    def display(self, shown: str, *, display_id: bool) -> FakeNotebook:
        assert display_id
        self.shown.append(shown)
        return self


def test_a_notebook_shows_one_picture_that_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = FakeNotebook()
    for name, module in notebook.modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(console, "NOTEBOOK_EVERY_S", 0.01)
    steps = iter(range(10, 10_000, 10))
    said: list[str] = []
    hostile = WorkerRow("<script>", "live", 1.0, 0.0, 0.5)

    def source() -> Progress:
        step = next(steps)
        return Progress(step, 10_000, 100.0, 1.0 / step, workers=(*ROWS, hostile))

    with Console(source, said.append):
        until(lambda: len(notebook.shown) >= 5, "some pictures")
    assert "the job begins" in notebook.shown[0]
    last = notebook.shown[-1]
    assert "/10,000, 100 steps/s" in last
    assert "<svg" in last
    assert "<progress" in last
    assert "worker:1" in last
    assert "<script" not in last
    assert said == []
