"""What a reader of the README types from top to bottom: a training, then compress, export and serve."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from tests.programs import ROOT, Program, Programs

STORY = (
    (ROOT / "README.md").read_text(encoding="utf-8").partition("## Example")[2].partition("## When machines fail")[0]
)
ASK = "curl -d @two.json http://127.0.0.1:8000/"
DEADLINE_S = 240.0


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", STORY, re.DOTALL)


def typed(programs: Programs, command: str, directory: Path) -> Program:
    """Starts `trainband ...` in a directory."""
    name, *arguments = shlex.split(command)
    assert name == "trainband", command
    return programs.python(command, "-m", "trainband.cli.main", *arguments, cwd=directory)


@pytest.mark.slow
@pytest.mark.limit(300.0)
def test_every_command_follows_from_those_before_it(tmp_path: Path, programs: Programs) -> None:
    (script,) = blocks("python")
    (tmp_path / "train.py").write_text(script, encoding="utf-8")
    commands = [line.partition("  #")[0].strip() for block in blocks("bash") for line in block.splitlines()]
    *before, serve, make_request, ask = commands
    for command in before:
        program = typed(programs, command, tmp_path)
        assert program.wait(DEADLINE_S) == 0, program.output
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    subprocess.run(make_request, shell=True, cwd=tmp_path, env=environ, timeout=DEADLINE_S, check=True)
    server = typed(programs, f"{serve} --port 0", tmp_path)
    found = server.wait_for(r"at (http://127\.0\.0\.1:\d+)", DEADLINE_S)
    assert ask.startswith(ASK)
    address = f"{found[1]}/{ask.removeprefix(ASK)}"
    request = urllib.request.Request(address, (tmp_path / "two.json").read_bytes())
    with urllib.request.urlopen(request, timeout=60.0) as answer:
        predictions = json.load(answer)["predictions"]
    assert [len(one) for one in predictions] == [10, 10]
    server.interrupt()
    server.wait(DEADLINE_S)
