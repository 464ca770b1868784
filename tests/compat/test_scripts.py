"""The scripts of examples/tf1 give what TensorFlow gave for them."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.cluster_compat.test_scripts_in_jobs import SCRIPTS as IN_JOBS
from tests.compat.golden_values import assert_close
from tests.compat.make_golden import ARGUMENTS, SCRIPTS, script_of

from trainband.compat.finder import install, uninstall


def test_every_script_is_compared() -> None:
    compared = {script_of(name).stem for name in ARGUMENTS}
    assert compared | IN_JOBS.keys() == {path.stem for path in SCRIPTS.glob("*.py")}
    assert not compared & IN_JOBS.keys()


@pytest.mark.parametrize("name", ARGUMENTS)
def test_final_loss_and_parameters_are_those_of_tensorflow(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []
    values = tmp_path / "values.npz"
    monkeypatch.setattr(sys, "argv", [str(script_of(name)), *ARGUMENTS[name], f"--values={values}"])
    finder = install(said.append)
    try:
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(script_of(name)), run_name="__main__")
    finally:
        uninstall(finder)
    assert ended.value.code is None
    assert said == ["import tensorflow: this is trainband.compat.tf1, trainband's front end for TensorFlow 1"]
    assert capsys.readouterr().out
    with np.load(values) as found:
        assert_close(dict(found), name)
