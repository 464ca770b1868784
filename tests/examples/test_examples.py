"""Every program in examples/ is run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from tests.programs import MNIST, ROOT, Programs

from trainband.cluster.resolvers.credentials import INSECURE

EXAMPLES = ROOT / "examples"
TESTED = {
    *("mnist.py", "flight_client.py", "flax_digits.py", "keras_digits.py", "dlrm.py", "matrix_factorization.py"),
    "notebook.ipynb",
}


def test_every_example_is_tested_here() -> None:
    assert {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".ipynb")} == TESTED


def test_the_cells_of_the_notebook_run(programs: Programs, tmp_path: Path) -> None:
    """One after the other in one process, as a kernel runs them; without Jupyter, which this does not need."""
    cells = json.loads((EXAMPLES / "notebook.ipynb").read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    notebook = programs.python("notebook", "-c", "\n\n".join(code), cwd=tmp_path)
    output = notebook.succeed()
    assert "[ps:0] trainband: ps:0 ends: the job is complete" in output
    accuracy = re.search(r"^loss [\d.]+, accuracy (\d\.\d+) on 355 examples at global step 200$", output, re.M)
    assert accuracy
    assert float(accuracy[1]) > 0.9


@pytest.mark.smoke
def test_mnist_in_one_process(programs: Programs, tmp_path: Path) -> None:
    """tests/cluster_training runs it on clusters."""
    output = programs.python("mnist.py", str(MNIST), "--train_steps=200", f"--plot={tmp_path / 'curve.png'}").succeed()
    assert re.search(r"^local: 200 of 200 steps", output, re.M)
    accuracy = re.search(
        r"^held out: loss [\d.]+, accuracy (\d\.\d+) on 355 examples at global step 200$", output, re.M
    )
    assert accuracy
    assert float(accuracy[1]) > 0.9


def test_any_flight_client_lists_the_variables_and_reads_one(
    programs: Programs, ports: tuple[str, ...], tmp_path: Path
) -> None:
    kept, seen = tmp_path / "params.npz", tmp_path / "seen.npz"
    programs.environ[INSECURE] = "1"
    tasks = programs.cluster("--train_steps=50", f"--params={kept}", ps=ports[:2], workers=ports[2:3])
    tasks["worker:0"].wait_for("^kept$")
    with np.load(kept) as params:
        expected = dict(params)

    listed = programs.python("client", str(EXAMPLES / "flight_client.py"), ports[0], "bias").succeed()
    assert re.search(r"^kernel extension<arrow\.fixed_shape_tensor\[.*\]> 96 bytes$", listed, re.M)
    assert re.search(r"^bias .* 12 bytes$", listed, re.M)
    assert f"bias = {expected['bias']}" in listed

    # A job without security needs nothing of trainband's. The values can be compared to the bit.
    code = f"""
import sys, numpy
from pyarrow import flight
read = {{}}
for name in ("kernel", "bias"):
    client = flight.connect("grpc://{ports[0]}")
    endpoints = client.get_flight_info(flight.FlightDescriptor.for_path(name)).endpoints
    tables = [flight.connect(one.locations[0]).do_get(one.ticket).read_all() for one in endpoints]
    read[name] = numpy.concatenate([one["values"].combine_chunks().to_numpy_ndarray() for one in tables])
numpy.savez({str(seen)!r}, **read)
assert not {{"trainband", "jax"}} & set(sys.modules)
"""
    programs.python("client", "-c", code).succeed()
    with np.load(seen) as read:
        assert set(read) == set(expected)
        for name, value in expected.items():
            np.testing.assert_array_equal(read[name], value)
    kept.unlink()
    for task in tasks.values():
        task.succeed()


@pytest.mark.parametrize(
    ("example", "options", "line", "below"),
    [
        ("dlrm.py", ("--steps=150", "--batch_size=256"), r"^\[worker:0\] held out: loss (\d\.\d+)$", 0.56),
        ("matrix_factorization.py", ("--steps=600",), r"^\[worker:0\] held out: RMSE (\d\.\d+); the noise", 0.7),
    ],
    ids=["dlrm", "factorization"],
)
def test_tables_learn_what_was_planted(
    programs: Programs, example: str, options: tuple[str, ...], line: str, below: float
) -> None:
    """Without ids, the loss is 0.60 at best, and the RMSE 2.1."""
    job = programs.trainband("run", "--ps=1", "--workers=2", str(EXAMPLES / example), "--", *options)
    found = re.search(line, job.succeed(), re.M)
    assert found
    assert float(found[1]) < below
