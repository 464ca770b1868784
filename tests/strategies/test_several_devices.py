"""The strategies of one process on four devices: as one device on the whole batch, or clear words where that cannot be.

The devices are four of the CPU's, which a process must ask for before JAX starts: a script finds out everything, once.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.strategies import models
from tests.strategies.several_devices import NAMES, PARTS, QUICK

ROOT = Path(__file__).resolve().parents[2]
SLOW = pytest.mark.slow
TOLERANCE = 2e-6
"""Of params of a size about 1, after 8 steps in float32: 16 roundings."""
COARSE = 1e-3
"""Where the computation is in bfloat16."""

pytestmark = pytest.mark.limit(300)  # the script computes for a minute with a core of its own


class Found:
    """What the script finds out, each part of it once, when a test asks for it."""

    def __init__(self, directories: pytest.TempPathFactory) -> None:
        self._directories = directories
        self._found: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._found:
            (part,) = [part for part, names in PARTS.items() if name in names]
            directory = self._directories.mktemp(part)
            environ = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
            command = (sys.executable, "-W", "error", "-m", "tests.strategies.several_devices", str(directory), part)
            done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
            self._found |= json.loads((directory / "found.json").read_text(encoding="utf-8"))
        return self._found[name]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return Found(tmp_path_factory)


def apart(one: Any, other: Any) -> float:
    return float(np.abs(np.array(one) - np.array(other)).max())


@pytest.mark.parametrize(
    ("model", "name"),
    [
        pytest.param(model, name, marks=SLOW if model == "transformer" and name not in QUICK else ())
        for model in models.MODELS
        for name in NAMES[1:]
    ],
)
def test_each_trains_as_one_device(model: str, name: str, found: Found) -> None:
    part = found["rest transformer" if model == "transformer" and name not in QUICK else f"same {model}"]
    one, other = part["OneDevice"], part[name]
    assert found["devices"] == 4
    assert apart(one["params"], other["params"]) < TOLERANCE
    assert other["loss"] == pytest.approx(one["loss"], abs=TOLERANCE)
    assert other["accuracy"] == pytest.approx(one["accuracy"])


@pytest.mark.parametrize("part", ["switches", pytest.param("rest switches", marks=SLOW)])
@pytest.mark.parametrize(
    "switch",
    ["accumulate", "bf16", "remat", "policy", "not donated", "transform", "pruning"],
)
def test_the_switches_are_the_same_everywhere(switch: str, part: str, found: Found) -> None:
    one = found[part][switch].pop("OneDevice")
    for name, params in found[part][switch].items():
        assert apart(one, params) < (COARSE if switch == "bf16" else TOLERANCE), name


@pytest.mark.parametrize("name", [name if name in QUICK else pytest.param(name, marks=SLOW) for name in NAMES])
def test_several_steps_in_a_call_are_the_same_steps(name: str, found: Found) -> None:
    part = found["executions" if name in QUICK else "rest executions"]
    one, three = part["1"][name], part["3"][name]
    assert one["steps"] == three["steps"]
    assert one["steps"][:3] == [8, 1, 12]
    assert apart(one["params"], three["params"]) < TOLERANCE
    assert apart(one["losses"], three["losses"]) < TOLERANCE


def test_a_checkpoint_moves_between_all(found: Found) -> None:
    pairs = [(saved, other) for saved, kept in found["checkpoints"].items() for other in kept if other != "itself"]
    assert len(pairs) == 11
    for saved, other in pairs:
        kept = found["checkpoints"][saved]
        assert kept[other]["params"] == kept["itself"], f"{saved} under {other}"
        assert kept[other]["step"] == 4
        assert apart(kept[other]["after"], found["checkpoints"]["OneDevice"]["OneDevice"]["after"]) < TOLERANCE


def test_padding_counts_for_nothing(found: Found) -> None:
    padded = found["padded"]
    for case, strategy in (("mean", "Mirrored"), ("mean", "tensor"), ("state", "Mirrored"), ("call", "Mirrored")):
        one, other = padded[case]["OneDevice"], padded[case][strategy]
        assert apart(one["params"], other["params"]) < TOLERANCE, f"{case} under {strategy}"
        assert other["examples"] == one["examples"] == 12
    assert "3 examples cannot be split over 4 devices" in padded["refused"]
    assert [line for line in padded["said"] if "3 examples does not divide over 4 devices" in line]


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("too large", "data 2 x model 4 needs 8 devices, but there are 4: cpu:0, cpu:1, cpu:2, cpu:3"),
        ("too small", "data 3 takes 3 of the 4 devices"),
        ("no rest", "as many places as there are devices, which 3 does not divide"),
        (
            "a word",
            "the rule for 'hidden/kernel' must name what each axis of a variable is split over",
        ),
        (
            "no rules",
            "rules must be a list of (pattern, spec), such as [('kernel', (None, 'model'))], or made by auto_fsdp()",
        ),
        ("not called", "got auto_fsdp itself; call it"),
        ("no pair", "rules must be a list of (pattern, spec)"),
        ("no pattern at all", "rules must be a list of (pattern, spec)"),
        (
            "a number",
            "must name what each axis of a variable is split over, such as ('model',) or (None, 'model')",
        ),
        (
            "no mesh",
            "mesh must be a number of devices for each axis, such as {'data': 2, 'model': 4}, got [('data', 4)]",
        ),
        ("two rests", "only one axis can be -1"),
        ("no place", "must have 1 device or more"),
        ("no match", "'encoder/.*' matches the path of no variable; they are hidden/bias, hidden/kernel"),
        (
            "no axis",
            "names the axis 'model', which the mesh does not have; it has data (4)",
        ),
        ("too many axes", "hidden/bias float32[32] has 1 axes, but its rule has 2: (None, data)"),
        ("twice", "uses the mesh axis 'data' twice"),
        ("not divided", "conv float32[3,3,1,8] cannot be split: its axis 0 has 3 elements, which model with 4 devices"),
        ("no pattern", "'(' is not a regular expression"),
        ("same device", "name each device once"),
        ("strict", "should compute on gpu, but JAX sees only cpu:0"),
        ("remainder", "remainder must be 'pad' or 'refuse', got 'drop'"),
    ],
)
def test_what_cannot_be_is_said(what: str, words: str, found: Found) -> None:
    assert words in found["refusals"][what]


@pytest.mark.parametrize("name", NAMES)
def test_what_is_described_is_so(name: str, found: Found) -> None:
    told = found["descriptions"][name]
    assert told["told"] == told["held"]
    replicas = {"OneDevice": 1, "two": 2, "tensor": 2}.get(name, 4)
    assert (told["replicas"], told["batch"]) == (replicas, 10 * replicas)
    assert "data" in told["placed"]
    for words in ("hidden/kernel", "float32[16,32]", "of variables and optimizer state"):
        assert words in told["text"]


def test_the_parts_of_a_variable_are_named(found: Found) -> None:
    assert "axis 1 in 2 over model" in found["descriptions"]["tensor"]["text"]
    assert "cpu:0 to cpu:3, each: 3.3 kB" in found["descriptions"]["tensor"]["text"]


def test_a_loss_that_couples_examples_is_the_same_on_several_devices(found: Found) -> None:
    assert apart(found["coupled"]["OneDevice"], found["coupled"]["Mirrored"]) < TOLERANCE


@pytest.mark.parametrize("name", ["OneDevice", "Mirrored", "central", "tensor", "fsdp"])
def test_a_loss_may_say_where_activations_lie(name: str, found: Found) -> None:
    told = found["constrained"][name]
    assert apart(told["params"], found["same mlp"]["OneDevice"]["params"]) < TOLERANCE
    assert told["loss"] == pytest.approx(found["constrained"]["OneDevice"]["loss"], abs=TOLERANCE)


@pytest.mark.parametrize("name", NAMES)
def test_a_mesh_that_the_script_has_set_is_refused(name: str, found: Found) -> None:
    for told in found["mesh of the script"][name]:
        assert "ModelError: jax.set_mesh has set the mesh {'mine': 4} here; leave jax.set_mesh out" in told


@pytest.mark.parametrize("name", NAMES)
def test_a_gradient_that_is_not_finite_changes_nothing(name: str, found: Found) -> None:
    told = found["refused"][name]
    assert (told["refused"], told["step"]) == (1, 3)
    assert apart(told["params"], found["refused"]["OneDevice"]["params"]) < TOLERANCE


@pytest.mark.parametrize("name", NAMES)
def test_predictions(name: str, found: Found) -> None:
    assert len(found["predictions"][name]) == (24 + 5) * 32
    assert apart(found["predictions"][name], found["predictions"]["OneDevice"]) < TOLERANCE


@pytest.mark.slow
@pytest.mark.limit(600)
@pytest.mark.parametrize("name", NAMES)
def test_the_programs_for_accelerators_compute_the_same(name: str, found: Found) -> None:
    told = found["accelerators"]
    for model in models.MODELS:
        one, other = found[f"same {model}"]["OneDevice"], told["same"][model][name]
        assert apart(one["params"], other["params"]) < TOLERANCE, model
        assert other["loss"] == pytest.approx(one["loss"], abs=TOLERANCE)
    for per_call in ("1", "3"):
        one, other = found["executions"][per_call]["OneDevice"], told["executions"][per_call][name]
        assert one["steps"] == other["steps"]
        assert apart(one["params"], other["params"]) < TOLERANCE
        assert apart(one["losses"], other["losses"]) < TOLERANCE
    assert told["refused"][name]["refused"] == 1
    assert apart(told["refused"][name]["params"], found["refused"]["OneDevice"]["params"]) < TOLERANCE
    assert apart(told["predictions"][name], found["predictions"]["OneDevice"]) < TOLERANCE


@pytest.mark.slow
@pytest.mark.limit(600)
def test_padding_on_accelerators(found: Found) -> None:
    for case in ("mean", "state", "call"):
        one, other = found["padded"][case]["OneDevice"], found["accelerators"]["padded"][case]["Mirrored"]
        assert apart(one["params"], other["params"]) < TOLERANCE, case
        assert one["examples"] == other["examples"]


@pytest.mark.parametrize("name", NAMES)
def test_what_is_on_a_device_does_not_go_by_way_of_the_host(name: str, found: Found) -> None:
    assert found["transfers"][name] == ""
