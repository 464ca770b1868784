"""Two workers of two devices each: the switches of the Trainer, padding, and what a strategy says of itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.programs import Programs

SLOW = pytest.mark.slow
SCRIPT = ("-m", "tests.cluster_allreduce.everywhere")
TWO_DEVICES = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
TOLERANCE = 2e-6
COARSE = 1e-3
"""Where the computation is in bfloat16."""
OF_ITSELF = ("described", "replicas", "batch", "rows", "examples")


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """What one device finds."""
    programs, out = Programs(), tmp_path_factory.mktemp("one") / "found.json"
    try:
        programs.python("alone", *SCRIPT, "one", str(out)).succeed()
        yield json.loads(out.read_text(encoding="utf-8"))
    finally:
        programs.end_all()


# strategy -> replicas, and words of its description
STRATEGIES: dict[str, tuple[int, list[str]]] = {
    "mirrored": (
        4,
        ["MultiWorkerMirrored: 4 devices (data 4)", "cpu:0 of worker:0 to cpu:1 of worker:1, each: 6.5 kB"],
    ),
    "tensor": (
        2,
        ["hidden/kernel  float32[16,32]  2.0 kB  axis 1 in 2 over model", "of worker:1, each: 3.3 kB of variables"],
    ),
    "fsdp": (
        4,
        ["out/kernel     float32[32,8]   1.0 kB  axis 0 in 4 over data", "of worker:1, each: 1.9 kB of variables"],
    ),
    "local": (4, ["ParameterServer: 1 ps", "ps:0: 6.5 kB of variables and optimizer state"]),
}


@pytest.mark.parametrize(
    "strategy",
    [
        pytest.param("mirrored", marks=SLOW),
        pytest.param("tensor", marks=SLOW),
        pytest.param("fsdp", marks=SLOW),
        pytest.param("local", marks=SLOW),
    ],
)
def test_each_switch_does_what_it_does_on_one_device(
    strategy: str, one: Any, programs: Programs, tmp_path: Path
) -> None:
    replicas, described = STRATEGIES[strategy]
    ps = int(strategy == "local")
    out = tmp_path / "found.json"
    job = programs.trainband("run", f"--ps={ps}", "--workers=2", *SCRIPT, strategy, str(out), environ=TWO_DEVICES)
    output = job.succeed()
    found = json.loads(out.read_text(encoding="utf-8"))
    for words in described:
        assert words in found["described"]
        assert words in output
    assert (found["replicas"], found["batch"]) == (replicas, 10 * replicas)
    assert found["rows"] == (12 if ps else 24)
    switches = [name for name in one if name not in OF_ITSELF and (name in found or not ps)]
    assert len(switches) == (1 if ps else 9)
    for name in switches:
        apart = np.abs(np.array(found[name]) - np.array(one[name])).max()
        assert apart < (COARSE if name in ("bf16", "three") else TOLERANCE), name
    for name in switches:  # each does something, or nothing that shows
        same = one[name] == one["none"]
        assert same == (name in ("none", "remat", "policy", "not donated")), name
    if not ps:
        assert found["examples"] == one["examples"] // 2 == 22  # of this worker
