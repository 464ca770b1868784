"""`trainband status`: what it shows of a job."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from trainband.cli.status import as_text, show
from trainband.cli.terminal import console_for_people
from trainband.job.checkpoints import CheckpointStatus
from trainband.job.statistics import PsStatus, SliceStatus, TableStatus, VariableStatus, WorkerStatus
from trainband.runtime.formatting import printable, size
from trainband.wire.messages.replication import ReplicaState, Term


def worker(task: str, presence: str, failure: str = "") -> dict[str, Any]:
    others = {field.name: 0 for field in msgspec.structs.fields(WorkerStatus) if field.type is int}
    return others | {
        "task": task,
        "presence": presence,
        "host": "node17",
        "pid": 2350201,
        "transport": "shared memory",
        "pushes": 123456,
        "refused": 3,
        "dropped": 12,
        "rate": 1234.5,
        "staleness": 1.25,
        "loss": 0.5,
        "examples": 100,
        "heard_s": 0.25,
        "failure": failure,
    }


@pytest.fixture
def answer() -> PsStatus:
    """A job in its middle."""
    values: dict[str, Any] = {
        "task": "ps:0",
        "address": "10.0.0.7:2222",
        "incarnation": "a",
        "rule": {"name": "async"},
        "initialised": True,
        "version": 1500,
        "last_version": 6000,
        "ended": False,
        "uptime_s": 10.0,
        "rate": 1000.0,
        "staleness_median": 1.0,
        "staleness_p99": 2.0,
        "staleness_max": 3,
        "bytes_in": 1_500_000,
        "bytes_out": 0,
        "shard_bytes": 999,
        "loss": None,
        "waiting_for": ["worker:1"],
        "workers": [worker("worker:0", "live"), worker("worker:1", "failed", "DataError: no file")],
        "variables": [
            {
                "name": "kernel",
                "shape": [8, 3],
                "dtype": "float32",
                "nbytes": 96,
                "slices": [{"ps": "ps:0", "start": 0, "stop": 4}, {"ps": "ps:1", "start": 4, "stop": 8}],
            }
        ],
    }
    # Counters that this test has nothing to say about.
    others = {field.name: 0 for field in msgspec.structs.fields(PsStatus) if field.type in (int, float)}
    return msgspec.convert({**others, **values}, PsStatus)


def test_it_is_readable_on_a_terminal_of_80_columns(answer: PsStatus) -> None:
    console = Console(file=io.StringIO(), width=80)
    show(answer, console)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    lines = [" ".join(line.split()) for line in text.splitlines()]
    for line in (
        "ps:0 at 10.0.0.7:2222, up 10 s",
        "global step 1,500 of 6,000, 1,000 steps/s, loss not known yet",
        "gradients in 1.5 MB, params out 0 B, shard 999 B",
        "waiting for worker:1",
        "worker:1 failed: DataError: no file",
        "kernel float32[8,3] ps:0[0:4], ps:1[4:8] 96 B",
    ):
        assert line in lines, text
    assert any(line.startswith("worker:0 live 123,456 1,234 1.2 0.5000 12 3 0.2 s 2350201") for line in lines), text
    assert max(map(len, text.splitlines())) <= 80


def test_memory_and_devices_are_shown_where_there_is_room(answer: PsStatus) -> None:
    gpu = {
        "device": "NVIDIA H100 80GB HBM3",
        "device_memory_bytes": 41_000_000_000,
        "device_memory_limit_bytes": 64 << 30,
    }
    parts = {"params": 400_000_000, "rest": 300_000_000}
    workers = tuple(
        msgspec.structs.replace(one, memory_bytes=2_500_000_000, memory_parts=parts, **gpu) for one in answer.workers
    )
    console = Console(file=io.StringIO(), width=150)
    told = {"memory_bytes": 700_000_000, "memory_parts": parts, "threads": 20, "descriptors": 1_080}
    told["tables"] = (TableStatus("users", 2_000, 328_000, 90, 10, 2_100, 7, 100),)
    show(msgspec.structs.replace(answer, **told, workers=workers), console)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "shard 999 B, memory 700.0 MB" in text
    assert "memory: params 400.0 MB, rest 300.0 MB" in text
    assert "worker:0 2.5 GB 400.0 MB 0 B 0 B 0 B 0 B 300.0 MB" in " ".join(text.split())
    assert "20 threads, 1,080 open descriptors" in text
    assert (
        "table users: 2,000 rows, 328.0 kB (164 B a row), 90.0% of lookups found a row, 2,100 admitted, 7 refused, "
        "100 evicted"
    ) in " ".join(text.split())
    assert text.count("2.5 GB + 41.0 GB NVIDIA H100 80GB HBM3") == 2


def test_who_is_stuck(answer: PsStatus) -> None:
    stuck = [msgspec.structs.replace(one, presence="live", stalled_s=41.0, failure="") for one in answer.workers]
    console = Console(file=io.StringIO(), width=120)
    show(msgspec.structs.replace(answer, workers=tuple(stuck)), console)
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert "worker:0 is alive but has pushed nothing for 41 s; nothing waits for it" in lines
    assert "worker:1 is alive but has pushed nothing for 41 s; others wait for it" in lines


@pytest.mark.parametrize(
    ("nbytes", "words"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (25_600_000, "25.6 MB"), (3 * 10**15, "3000.0 TB")],
)
def test_sizes_are_written_as_people_do(nbytes: int, words: str) -> None:
    assert size(nbytes) == words


def test_the_documentation_names_every_field_of_the_json() -> None:
    text = (Path(__file__).parents[2] / "docs" / "command_line.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(\w+)`", text[text.index("`--json` prints these fields") :]))
    for record in (PsStatus, WorkerStatus, VariableStatus, SliceStatus, CheckpointStatus, ReplicaState, Term):
        assert set(record.__struct_fields__) <= named, record


def test_names_are_no_markup_and_tell_the_terminal_nothing(
    answer: PsStatus, capsys: pytest.CaptureFixture[str]
) -> None:
    hostile = "\x1b[2J[red]worker[/red]\u202e\n:smile:"
    first = msgspec.structs.replace(answer.workers[0], task=hostile, host=hostile, failure=hostile)
    answer = msgspec.structs.replace(answer, workers=(first,), waiting_for=(hostile,), address=hostile, task=hostile)
    show(answer, console_for_people())
    printed = capsys.readouterr().out
    assert printable(printed, newline="\n") == printed
    visible = r"\x1b[2J[red]worker[/red]\u202e\n:smile:"
    assert f"{visible} failed: {visible}" in printed
    assert f"waiting for {visible}" in printed
    assert json.loads(as_text(answer))["task"] == hostile
    assert printable(as_text(answer), newline="\n") == as_text(answer)
