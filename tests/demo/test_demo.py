"""`python -m trainband.demo` needs the installed package and nothing of the repository."""

from __future__ import annotations

import re
import shutil
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.programs import ROOT, Programs

from trainband.demo import __main__ as demo


def install(directory: Path) -> None:
    """Puts into a directory what pyproject.toml puts into the wheel: every module of a package, and the data.

    The wheel itself is not built: its build backend is in no environment of the tests, and nothing is fetched for one.
    """
    package = ROOT / "src" / "trainband"
    kept = [path for path in package.rglob("*.py") if (path.parent / "__init__.py").exists()]
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    for pattern in settings["package-data"]["trainband"]:
        kept += [path for path in package.glob(pattern) if path.is_file()]
    for path in kept:
        target = directory / path.relative_to(package.parent)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)  # of a link, what it leads to


@pytest.mark.smoke
def test_the_installed_demo_trains_without_the_repository(programs: Programs, tmp_path: Path) -> None:
    installed, empty = tmp_path / "installed", tmp_path / "empty"
    install(installed)
    empty.mkdir()
    flags = ["-m", "trainband.demo", "--train_steps=300"]
    output = programs.python("demo", *flags, cwd=empty, environ={"PYTHONPATH": str(installed)}).succeed()
    held_out = r"^\[worker:0\] held out: loss [\d.]+, accuracy 0\.\d+ on 355 examples at global step 300$"
    assert re.search(held_out, output, re.M)
    assert re.search(r"^\[worker:1\] worker:1: \d+ of 300 steps", output, re.M)
    assert (empty / "runs" / "demo" / "training_curve.png").stat().st_size > 1000


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Sequence[str]] = []
    monkeypatch.setattr(demo, "find_spec", lambda _: None)
    monkeypatch.setattr(demo, "trainband", ran.append)

    def said(*arguments: str) -> Any:
        return CliRunner().invoke(demo.demo, arguments)

    wanted = said("--plot=curve.png")
    assert wanted.exit_code == 1
    assert "Error: --plot: drawing the training curve needs matplotlib, which is not installed" in wanted.output
    assert ran == []
    trained = said("--train_steps=5")
    assert trained.exit_code == 0
    assert "pip install 'trainband[plot]'" in trained.output
    assert ran[0][-2:] == ["--", "--train_steps=5"]
