"""`trainband profile`: what it refuses before it asks anybody, and what it says where nobody answers.

What it records of a job of real processes, tests/monitor/test_page_of_real_job.py shows.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from trainband.cli.main import main
from trainband.launch import ReservedPorts


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """The exit code and the last line on stderr."""
    with pytest.raises(SystemExit) as ended:
        main(["profile", *arguments])
    return int(ended.value.code or 0), capsys.readouterr().err.strip().splitlines()[-1]


def test_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ReservedPorts(1) as ports:
        address = ports.addresses[0]
        code, line = said(capsys, address, "-o", str(tmp_path / "nowhere" / "trace.json.gz"))
        assert code
        assert line.startswith(f"error: --output {tmp_path}/nowhere/trace.json.gz: there is no directory")
        code, line = said(capsys, address, "-o", str(tmp_path / "trace.json.gz"))
        assert code
        assert line.startswith(f"error: nothing listens at {address}. Give trainband profile the address of a ps")
        assert not list(tmp_path.iterdir())
    assert said(capsys, "127.0.0.1:1", "--steps", "201")[0] == 2
