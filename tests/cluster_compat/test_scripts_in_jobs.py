"""Scripts in the styles of TensorFlow 1's users train on a ps with two workers; their last lines say how well."""

from __future__ import annotations

import re

import pytest
from tests.programs import ROOT, Programs

SCRIPTS = {
    # script -> (what its last line has, what the best worker's number must pass)
    "contrib_layers": (r"accuracy ([\d.]+)", 0.8),
    "dataset_records": (r"accuracy ([\d.]+)", 0.85),
    "estimator_convnet": (r"global step 20[0-3], accuracy ([\d.]+)", 0.9),
    "matrix_factorisation": (r"([\d.]+) at last", 0.5),
    "residual_network": (r"accuracy ([\d.]+)", 0.9),
    "sequence_labels": (r"accuracy ([\d.]+)", 0.9),
    "sparse_logistic": (r"accuracy ([\d.]+)", 0.8),
    "sync_supervisor": (r"loss ([\d.]+)", 0.5),
    "text_classifier": (r"accuracy ([\d.]+)", 0.9),
    "threaded_graphs": (r"accuracy ([\d.]+)", 0.9),
    "wide_and_deep": (r"accuracy ([\d.]+)", 0.85),
    "actor_critic": (r"([\d.]+) at last", 6.0),
}
FALLING = {"matrix_factorisation", "sync_supervisor", "actor_critic"}
"""Where the number is to be small."""
QUICK = {"sync_supervisor"}
"""The others are slow: in `make test`, `tests/compat/test_scripts.py` runs each in one process."""


@pytest.mark.parametrize(
    "name", [one if one in QUICK else pytest.param(one, marks=pytest.mark.slow) for one in SCRIPTS]
)
def test_a_script_trains_on_a_ps_with_two_workers(programs: Programs, name: str) -> None:
    script = str(ROOT / "examples" / "tf1" / f"{name}.py")
    output = programs.trainband("run", "--tensorflow", "--ps", "1", "--workers", "2", script).succeed(180.0)
    pattern, limit = SCRIPTS[name]
    found = [float(number) for number in re.findall(rf"^\[worker:\d\] .*{pattern}", output, re.MULTILINE)]
    assert found, output
    assert min(found) < limit if name in FALLING else max(found) > limit
