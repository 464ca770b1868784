"""`trainband status --watch`: what stays on the terminal while a job runs, waits and ends."""

from __future__ import annotations

import io
import signal

import pytest
from msgspec.structs import replace
from rich.console import Console
from tests.ps.jobs import FAST

import trainband.cli.status as status_module
from trainband.cli.main import main
from trainband.cli.watch import GONE_S, watch
from trainband.cluster import Cluster, ClusterSpec, Task
from trainband.errors import Unreachable
from trainband.job.statistics import PsStatus
from trainband.ps.service.service import ParameterService

NOW = replace(
    ParameterService(
        Cluster(spec=ClusterSpec({"ps": ["a:1"], "worker": ["b:1"]}), task=Task("ps", 0)), timeouts=FAST
    ).status(),
    last_version=10,
)


def watched(*answers: PsStatus | None, terminal: bool = False) -> str:
    """What is written where a ps gives these answers, `None` for none, and none after the last."""
    now = 0.0
    queue = list(answers)

    def ask() -> PsStatus:
        answer = queue.pop(0) if queue else None
        if answer is None:
            raise Unreachable("nobody listens")
        return answer

    def clock() -> float:
        nonlocal now
        now += 0.0001  # as everything takes some time
        return now

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        assert now < 2 * GONE_S

    def show(status: PsStatus, console: Console) -> None:
        console.print(f"step {status.version}")
        console.print("below")

    console = Console(file=io.StringIO(), width=80, height=3, force_terminal=terminal, color_system=None)
    watch(ask, show, console, every_s=1.0, clock=clock, sleep=sleep)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def at(version: int, *, ended: bool = False) -> PsStatus:
    return replace(NOW, version=version, ended=ended)


@pytest.mark.parametrize("end", [(at(10, ended=True),), (at(10),)], ids=["told", "seen"])
def test_the_last_picture_stays_above_a_line_that_says_that_the_job_has_ended(end: tuple[PsStatus, ...]) -> None:
    text = watched(at(3), *end)
    assert text.startswith("step 3\nbelow\n\n")
    assert text.endswith("step 10\nbelow\nthe job has ended\n\n")


def test_a_ps_that_is_restarted_is_waited_for() -> None:
    text = watched(at(3), None, None, at(4), at(10, ended=True))
    assert "step 3\nbelow\nwaiting for ps:0 at a:1 to answer (2 s)\n" in text
    assert "step 4\nbelow\n\n" in text


def test_a_job_whose_last_updates_nobody_saw_has_ended_too() -> None:
    text = watched(replace(at(7), rate=2.0))
    assert "to answer (2 s)" in text
    assert "to answer (3 s)" not in text
    assert text.endswith("step 7\nbelow\nthe job has ended\n\n")


def test_one_that_does_not_come_back_ends_it() -> None:
    text = watched(at(3))
    assert text.endswith("step 3\nbelow\nps:0 has not answered for 10 s: the job has ended, or this ps has died\n\n")


def test_nobody_there_at_all_is_an_error() -> None:
    with pytest.raises(Unreachable):
        watched()


def test_a_terminal_is_drawn_over_and_never_scrolls() -> None:
    text = watched(at(3), None, at(10, ended=True), terminal=True)
    assert text.startswith("\x1b[2J\x1b[H\x1b[Hstep 3\x1b[K\nbelow\x1b[K\n\x1b[J")
    assert "waiting" not in text  # below the edge of the terminal, which has three lines
    assert text.endswith("\x1b[Hstep 10\x1b[K\nbelow\x1b[K\nthe job has ended\x1b[K\n\x1b[J")


@pytest.mark.parametrize(
    ("arguments", "every_s"), [(["--watch", "a:1"], 1.0), (["--watch", "0.5", "a:1"], 0.5), (["a:1", "--watch"], 1.0)]
)
def test_ctrl_c_ends_it_without_a_traceback(
    arguments: list[str], every_s: float, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, every_s: float) -> None:
        asked.append(every_s)
        raise KeyboardInterrupt

    asked: list[float] = []
    monkeypatch.setattr(status_module, "watch", interrupted)
    with pytest.raises(SystemExit) as ended:
        main(["status", *arguments])
    assert ended.value.code == 128 + signal.SIGINT
    assert asked == [every_s]
    assert capsys.readouterr() == ("", "")
