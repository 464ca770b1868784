"""TensorFlow 2's strategies: several replicas, in one process or in two, come to what one comes to."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.programs import Programs

SCRIPT = ("-m", "tests.cluster_compat.replicas")
TOLERANCE = 2e-5
"""Of weights of a size about 1, after eight steps of Adam in float32."""
GLOBAL_BATCHES = [12, 12, 12, 8] * 2


def devices(count: int) -> dict[str, str]:
    return {"XLA_FLAGS": f"--xla_force_host_platform_device_count={count}", "KERAS_BACKEND": "jax"}


def result_in(text: str) -> Mapping[str, Any]:
    found = re.search(r"RESULT (\{.*\})", text)
    assert found, text
    result: Mapping[str, Any] = json.loads(found[1])
    return result


@pytest.fixture(scope="module")
def one() -> Iterator[Mapping[str, Any]]:
    """What one replica comes to."""
    programs = Programs()
    try:
        output = programs.python("one", *SCRIPT, "MirroredStrategy", "eager", environ=devices(1)).succeed()
        yield result_in(output)
    finally:
        programs.end_all()


def check(found: Mapping[str, Any], one: Mapping[str, Any], replicas: int) -> None:
    assert found["replicas"] == replicas
    assert found["totals"] == GLOBAL_BATCHES
    assert found["first"] == len(GLOBAL_BATCHES)
    np.testing.assert_allclose(found["losses"], one["losses"], atol=TOLERANCE)
    np.testing.assert_allclose(found["added"], one["added"], rtol=1e-4)
    assert found["averaged"] == pytest.approx(8 / replicas)
    for weights, others in zip(found["weights"], one["weights"], strict=True):
        np.testing.assert_allclose(weights, others, atol=TOLERANCE)
    assert "You must specify an aggregation method" in found["refused"]


@pytest.mark.smoke
@pytest.mark.parametrize("how", [pytest.param("eager", marks=pytest.mark.slow), "function"])
def test_four_replicas_of_a_process_train_as_one(how: str, one: Mapping[str, Any], programs: Programs) -> None:
    output = programs.python("four", *SCRIPT, "MirroredStrategy", how, environ=devices(4)).succeed()
    found = result_in(output)
    check(found, one, 4)
    assert found["classes"] == one["classes"]


def test_two_processes_train_as_one(one: Mapping[str, Any], programs: Programs, ports: tuple[str, ...]) -> None:
    config = {"worker": list(ports[:2])}
    tasks = [
        programs.python(
            f"worker:{index}",
            *SCRIPT,
            "MultiWorkerMirroredStrategy",
            "function",
            environ={
                **devices(2),
                "TF_CONFIG": json.dumps({"cluster": config, "task": {"type": "worker", "index": index}}),
            },
        )
        for index in range(2)
    ]
    first, second = (result_in(task.succeed()) for task in tasks)
    assert first == second  # the first values of a model without a seed, too
    check(first, one, 4)


OWN_STEPS = ("-m", "tests.cluster_compat.own_steps")


@pytest.mark.slow
def test_fit_trains_a_model_with_steps_of_its_own_as_one(
    programs: Programs, ports: tuple[str, ...], tmp_path: Path
) -> None:
    found = []
    for count in (1, 2):
        command = (*OWN_STEPS, "MirroredStrategy", str(tmp_path))
        found.append(result_in(programs.python(f"{count}", *command, environ=devices(count)).succeed()))
    config = {"worker": list(ports[:2])}
    tasks = [
        programs.python(
            f"worker:{index}",
            *(*OWN_STEPS, "MultiWorkerMirroredStrategy", str(tmp_path / "two")),
            environ={
                **devices(1),
                "TF_CONFIG": json.dumps({"cluster": config, "task": {"type": "worker", "index": index}}),
            },
        )
        for index in range(2)
    ]
    found += [result_in(task.succeed()) for task in tasks]
    assert [one["replicas"] for one in found] == [1, 2, 2, 2]
    for one in found[1:]:
        np.testing.assert_allclose(one["hits"], found[0]["hits"], atol=1e-6)
        for weights, others in zip(one["weights"], found[0]["weights"], strict=True):
            np.testing.assert_allclose(weights, others, atol=TOLERANCE)
    assert len(list((tmp_path / "two").glob("*.weights.h5"))) == 2
