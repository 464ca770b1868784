"""Workers that compute in lockstep, as real processes: what they train to, and what they say when one of them fails.

Which processes end, and whom they name, is proven by `tests/simulation/in_step`.
"""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cluster_allreduce.conftest import OnOneDevice
from tests.machines import Machines
from tests.programs import Program, Programs

from trainband.checkpoint import Checkpoint, CheckpointDirectory
from trainband.cluster.worker_group import LOST_A_PEER

SCRIPT = ("-m", "tests.cluster_allreduce.in_step")
TIMEOUT_S = 15.0
ENDLESS = ("--steps=100000", "--step_s=0.02")
TWO_DEVICES = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
TOLERANCE = 2e-6
SLOW = pytest.mark.slow
PER_CALL = pytest.mark.parametrize("per_call", ["--per_call=1", pytest.param("--per_call=3", marks=SLOW)])
"""Every step a call of its own, and three in each."""


def run(programs: Programs, *flags: str, workers: int = 2, launcher: tuple[str, ...] = ()) -> Program:
    """The script under the launcher, without a ps."""
    return programs.trainband("run", "--ps=0", f"--workers={workers}", *launcher, *SCRIPT, *flags)


def by_hand(programs: Programs, ports: tuple[str, ...], *flags: str, workers: int = 3) -> list[Program]:
    """Each worker by itself, so that nobody ends the others when one fails."""
    started = []
    for index in range(workers):
        cluster = {"cluster": {"worker": list(ports[:workers])}, "task": {"type": "worker", "index": index}}
        environ = {"TF_CONFIG": json.dumps(cluster), "NPROC": "1", "PJRT_NPROC": "1", "PYTHONUNBUFFERED": "1"}
        started.append(programs.python(f"worker:{index}", *SCRIPT, *flags, environ=environ))
    return started


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def apart(one: Any, other: Any) -> float:
    return float(np.abs(np.array(one["params"]) - np.array(other["params"])).max())


@pytest.mark.parametrize(
    ("model", "per_call", "fault"),
    [
        pytest.param("mlp", 1, "", marks=SLOW),
        pytest.param("mlp", 3, "", marks=SLOW),
        ("mlp", 3, "other kind"),
        ("mlp", 1, "other init"),
        pytest.param("mlp", 1, "keys", marks=SLOW),
        pytest.param("mlp", 1, "scalars", marks=SLOW),
        ("convnet", 1, ""),
        pytest.param("convnet", 3, "", marks=SLOW),
        pytest.param("convnet", 1, "accelerators", marks=SLOW),
        ("mlp", 3, "accelerators"),
        pytest.param("transformer", 1, "", marks=SLOW),
    ],
)
def test_they_train_as_one_device(
    model: str, per_call: int, fault: str, programs: Programs, on_one_device: OnOneDevice, tmp_path: Path
) -> None:
    """With batches of NumPy's with a scalar in them, where those of one worker are on its device; from other first
    params on one; with random keys in the optimizer's state; and by the programs for accelerators.
    """
    flags = (f"--model={model}", f"--per_call={per_call}", f"--fault={fault}")
    job = run(programs, *flags, f"--out={tmp_path / 'all'}")
    job.succeed()
    if fault != "other init":
        assert "differ" not in job.stderr
    assert read(tmp_path / "all")["step"] == 8
    assert apart(on_one_device(f"--model={model}"), read(tmp_path / "all")) < TOLERANCE


@pytest.mark.parametrize("strategy", [pytest.param(name, marks=SLOW) for name in ("fsdp", "mirrored", "sync", "local")])
def test_a_loss_may_say_where_an_activation_lies(
    strategy: str, programs: Programs, on_one_device: OnOneDevice, tmp_path: Path
) -> None:
    flags = (f"--strategy={strategy}", "--fault=constrained", "--validate", f"--out={tmp_path / 'all'}")
    ps = "--ps=1" if strategy in ("sync", "local") else "--ps=0"
    devices = TWO_DEVICES if strategy == "local" else {}
    programs.trainband("run", ps, "--workers=2", *SCRIPT, *flags, environ=devices).succeed()
    assert apart(on_one_device(), read(tmp_path / "all")) < TOLERANCE


@pytest.mark.parametrize(
    ("strategy", "model"),
    [
        ("fsdp", "mlp"),
        pytest.param("fsdp", "transformer", marks=SLOW),
        pytest.param("tensor", "transformer", marks=SLOW),
    ],
)
def test_variables_in_parts_over_workers(
    strategy: str, model: str, programs: Programs, on_one_device: OnOneDevice, tmp_path: Path
) -> None:
    flags = (f"--model={model}", "--validate")
    run(
        programs, f"--strategy={strategy}", *flags, f"--out={tmp_path / 'all'}", f"--dir={tmp_path / 'saved'}"
    ).succeed()
    one, all_ = on_one_device(*flags), read(tmp_path / "all")
    assert apart(one, all_) < TOLERANCE
    assert one["evaluations"] == all_["evaluations"] == [4, 8]
    # What they saved together, one device resumes from; and from what that saves, they.
    more = (f"--model={model}", "--steps=12", f"--dir={tmp_path / 'saved'}")
    run(programs, f"--strategy={strategy}", *more, f"--out={tmp_path / 'more'}").succeed()
    programs.python("again", *SCRIPT, "--strategy=one", *more, "--steps=16").succeed()
    by_hand = tmp_path / "by_hand"
    last = (f"--out={tmp_path / 'last'}", f"--save={by_hand}")
    output = run(programs, f"--strategy={strategy}", *more, "--steps=20", *last).succeed()
    assert read(tmp_path / "last")["step"] == 20, output
    home = CheckpointDirectory(by_hand, pytest.fail)
    assert home.steps() == [20]
    saved = next(iter(home.candidates()))
    directory = CheckpointDirectory(tmp_path / "saved", pytest.fail)
    automatic = next(iter(directory.candidates()))
    assert automatic.global_step == 20
    assert set(saved.manifest.tensors) == set(automatic.manifest.tensors)
    for name in saved.manifest.tensors:
        np.testing.assert_array_equal(saved.read(name), automatic.read(name))


def test_a_checkpoint_that_cannot_be_written_by_hand_holds_nobody_up(programs: Programs, tmp_path: Path) -> None:
    taken = tmp_path / "a file"
    taken.touch()
    job = run(programs, "--strategy=fsdp", f"--save={taken}")
    assert job.wait() != 0
    assert re.search(r"^\[worker:0\] error: CheckpointError: .*a file", job.output, re.MULTILINE), job.output


@pytest.mark.parametrize(
    ("strategy", "model"),
    [
        ("sync", "mlp"),
        pytest.param("sync", "transformer", marks=SLOW),
        pytest.param("local", "transformer", marks=SLOW),
        pytest.param("local", "convnet", marks=SLOW),
    ],
)
def test_a_checkpoint_goes_to_parameter_servers_and_back(
    strategy: str, model: str, programs: Programs, on_one_device: OnOneDevice, tmp_path: Path
) -> None:
    """As if one device had trained all the time, but for batch normalisation, which is each worker's own on a ps."""
    home = (f"--dir={tmp_path / 'saved'}", f"--model={model}")
    run(programs, *home, "--steps=4").succeed()
    ps = programs.trainband(
        "run", "--ps=2", "--workers=2", *SCRIPT, f"--strategy={strategy}", *home, "--steps=8", environ=TWO_DEVICES
    )
    ps.succeed()
    assert "resumes from" in ps.stderr
    run(programs, *home, "--strategy=fsdp", "--steps=12", f"--out={tmp_path / 'all'}").succeed()
    assert read(tmp_path / "all")["step"] == 12
    if model != "convnet":
        assert apart(on_one_device(f"--model={model}", "--steps=12"), read(tmp_path / "all")) < TOLERANCE


@pytest.mark.parametrize("model", ["mlp", pytest.param("transformer", marks=SLOW)])
def test_workers_of_several_devices_train_as_one(
    model: str, programs: Programs, on_one_device: OnOneDevice, tmp_path: Path
) -> None:
    """On a ps, and in lockstep."""
    for strategy, ps in (("local", 1), ("mirrored", 0)):
        flags = (f"--strategy={strategy}", f"--model={model}", f"--out={tmp_path / strategy}")
        programs.trainband("run", f"--ps={ps}", "--workers=2", *SCRIPT, *flags, environ=TWO_DEVICES).succeed()
        assert apart(on_one_device(f"--model={model}"), read(tmp_path / strategy)) < TOLERANCE


@pytest.mark.slow
def test_those_who_share_a_part_go_on_at_one_place_in_the_data(programs: Programs, tmp_path: Path) -> None:
    """The checkpoint is of one worker, and knows no place of the second."""
    run(programs, "--strategy=one", "--steps=8", f"--out={tmp_path / 'one'}", workers=1).succeed()
    home = f"--dir={tmp_path / 'saved'}"
    run(programs, "--strategy=one", "--steps=4", home, workers=1).succeed()
    job = run(programs, "--strategy=tensor", "--steps=8", home, f"--out={tmp_path / 'shared'}")
    job.succeed()
    assert "WARNING" not in job.stderr, job.output
    assert apart(read(tmp_path / "one"), read(tmp_path / "shared")) <= TOLERANCE


def test_a_newcomer_says_that_it_begins_its_data(programs: Programs, tmp_path: Path) -> None:
    home = f"--dir={tmp_path / 'saved'}"
    run(programs, "--strategy=one", "--steps=4", home, workers=1).succeed()
    job = run(programs, "--steps=6", home)
    job.succeed()
    told = [line for line in job.stderr.splitlines() if "begins at the start of its data" in line]
    assert [line.partition(" ")[0] for line in told] == ["[worker:1]"], job.output


# what happens, whom it happens to, what the others say
FAULTS = [
    pytest.param("is killed", 1, r"worker:1 at \S+ is gone: its connection was lost", marks=SLOW),
    ("is killed", 0, r"worker:0 at \S+ is gone: its connection was lost"),
    pytest.param("stands still", 2, r"worker:2 at \S+ is gone: no heartbeat for \d+ s", marks=SLOW),
    pytest.param("stands still", 0, r"worker:0 at \S+ is gone: no heartbeat for \d+ s", marks=SLOW),
]


@pytest.mark.parametrize(("fault", "of", "words"), FAULTS)
def test_the_others_end_with_the_name(
    fault: str, of: int, words: str, programs: Programs, ports: tuple[str, ...]
) -> None:
    workers = by_hand(programs, ports, *ENDLESS, f"--timeout_s={TIMEOUT_S:g}")
    for worker in workers:
        worker.wait_for("^training$")
    workers[of].send(signal.SIGKILL if fault == "is killed" else signal.SIGSTOP)
    for worker in workers:
        if worker is not workers[of]:
            assert worker.wait() in (1, LOST_A_PEER)
            assert re.search(rf"(^error: PeerError: |ERROR: {worker.name} ends: ){words}", worker.stderr, re.MULTILINE)
            assert "start the job again" in worker.stderr
            worker.expect_no_noise()
    workers[of].send(signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize("of", [0, 1])
def test_one_that_is_killed_before_its_first_step_is_named_at_once(
    of: int, programs: Programs, ports: tuple[str, ...], tmp_path: Path
) -> None:
    """When nothing has been exchanged yet that could fail."""
    mark = tmp_path / "mark"
    workers = by_hand(programs, ports, "--fault=dies first", f"--of={of}", f"--mark={mark}", "--timeout_s=600")
    for worker in workers[:of] + workers[of + 1 :]:
        worker.wait_for(rf"^trainband: waiting for worker:{of} \(\d+ s\)$")
    mark.touch()
    assert workers[of].wait() == -signal.SIGKILL
    for worker in workers[:of] + workers[of + 1 :]:
        assert worker.wait() in (1, LOST_A_PEER)
        assert f"worker:{of} at {ports[of]} is gone: its connection was lost" in worker.stderr


@pytest.mark.slow
def test_one_that_lives_and_stands_still_is_named(programs: Programs, ports: tuple[str, ...]) -> None:
    workers = by_hand(
        programs, ports, "--steps=100", "--fault=stands still", "--of=2", "--step_s=0.02", f"--timeout_s={TIMEOUT_S:g}"
    )
    for worker in workers[:2]:
        assert worker.wait() in (1, LOST_A_PEER)
        assert re.search(
            r"worker:2 at \S+ is stuck: it is alive but has not advanced from step \d for \d+ s", worker.stderr
        )
    assert re.search(r"^trainband: waiting for worker:2 \(\d+ s\)$", workers[0].stderr, re.MULTILINE)
    workers[2].send(signal.SIGKILL)


@pytest.mark.slow  # in `make test`, test_one_that_is_in_python_is_not_ended_from_c
def test_an_error_of_one_is_told_by_the_others(programs: Programs, ports: tuple[str, ...]) -> None:
    workers = by_hand(programs, ports, "--steps=100", "--fault=raises", "--step_s=0.02")
    workers[1].fail("^error: OSError: the disk with the pictures is gone")
    for worker in (workers[0], workers[2]):
        assert worker.wait() in (1, LOST_A_PEER)
        assert "worker:1 has failed: OSError: the disk with the pictures is gone" in worker.stderr


@pytest.mark.parametrize("of", [0, pytest.param(1, marks=SLOW)])
def test_one_that_is_in_python_is_not_ended_from_c(
    of: int, programs: Programs, ports: tuple[str, ...], tmp_path: Path
) -> None:
    """The service is in the chief's process: where that shuts it down, XLA ends all others."""
    mark = tmp_path / "mark"
    flags = ("--steps=100", "--fault=raises in time", f"--of={of}", "--at=4", f"--mark={mark}")
    workers = by_hand(programs, ports, *flags, workers=2)
    workers[of].fail("^error: OSError: the disk with the pictures is gone")
    mark.touch()
    assert workers[1 - of].wait() == LOST_A_PEER
    words = rf"^error: PeerError: worker:{of} has failed: OSError: the disk with the pictures is gone"
    assert re.search(words, workers[1 - of].stderr, re.MULTILINE), workers[1 - of].output


@PER_CALL
def test_the_launcher_brings_the_job_back(per_call: str, programs: Programs, tmp_path: Path) -> None:
    flags = ("--steps=20", "--step_s=0.05", per_call)
    run(programs, *flags, f"--out={tmp_path / 'whole'}").succeed()
    job = run(
        programs,
        *flags,
        f"--out={tmp_path / 'broken'}",
        f"--dir={tmp_path / 'saved'}",
        "--fault=dies once",
        "--at=12",
        f"--mark={tmp_path / 'died'}",
        launcher=("--restarts=2",),
    )
    job.succeed()
    assert re.search(r"worker:1 failed \(killed by SIGKILL\); stopping worker:0 and restarting the job", job.stderr)
    assert "resumes from" in job.stderr
    assert read(tmp_path / "broken") == read(tmp_path / "whole")  # to the bit


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        pytest.param("dies", "killed by SIGKILL", marks=SLOW),
        pytest.param("stands still", "it is stuck: all its peers have lost it", marks=SLOW),
    ],
)
def test_it_goes_on_with_fewer(
    fault: str, reason: str, programs: Programs, on_one_device: OnOneDevice, tmp_path: Path
) -> None:
    job = run(
        programs,
        "--steps=20",
        "--step_s=0.05",
        f"--dir={tmp_path / 'saved'}",
        f"--fault={fault}",
        "--of=2",
        "--at=8",
        "--timeout_s=6",
        f"--out={tmp_path / 'fewer'}",
        workers=3,
        launcher=("--restarts=0", "--min-workers=2"),
    )
    job.succeed()
    assert f"trainband: worker:2 failed ({reason}); stopping" in job.stderr
    assert "SIGTERM; sent SIGKILL" not in job.stderr  # who is stuck is not asked first
    assert "worker:2 failed once; continuing without it on 2 workers (at least 2 are required)" in job.stderr
    assert "[worker:1] worker:1 is done at global step 20" in job.stdout
    assert apart(on_one_device("--steps=20"), read(tmp_path / "fewer")) < TOLERANCE


@pytest.mark.parametrize("strategy", [pytest.param("--strategy=mirrored", marks=SLOW), "--strategy=fsdp"])
def test_sigterm_to_one_saves_and_ends_all(
    strategy: str, programs: Programs, ports: tuple[str, ...], tmp_path: Path
) -> None:
    workers = by_hand(programs, ports, *ENDLESS, strategy, f"--dir={tmp_path}", "--save_steps=1000000", workers=2)
    for worker in workers:
        worker.wait_for("^training$")
    workers[1].send(signal.SIGTERM)
    for worker in workers:
        assert worker.wait() == 128 + signal.SIGTERM
        worker.expect_no_noise()
    assert "ends the training: worker:1: SIGTERM asked this task to end" in workers[0].stderr
    newest = CheckpointDirectory(tmp_path, pytest.fail).newest()
    assert newest is not None
    assert [entry.steps for entry in newest.manifest.workers.values()] == 2 * [newest.global_step]
    (saved,) = [path for path in tmp_path.iterdir() if path.name.startswith("step-")]
    flags = (strategy, f"--dir={tmp_path}", f"--steps={int(saved.name[5:]) + 3}")
    again = by_hand(programs, ports[2:], *flags, workers=2)
    for worker in again:
        worker.succeed()
    assert f"resumes from {saved}" in again[0].stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("at", "per_call"),
    [
        (2, "--per_call=3"),
        (7, "--per_call=1"),
        (2, "--per_call=1"),
        (7, "--per_call=3"),
    ],
)
def test_the_end_of_one_workers_data_ends_all(at: int, per_call: str, programs: Programs) -> None:
    output = run(programs, "--fault=used up", "--steps=20", f"--at={at}", per_call).succeed()
    assert f"worker:1 is done at global step {at}: its batches are used up" in output
    assert f"worker:0 is done at global step {at}: worker:1: its batches are used up" in output


@pytest.mark.slow  # in `make test`, with a validation
@PER_CALL
def test_the_end_may_come_with_a_checkpoint(per_call: str, programs: Programs, tmp_path: Path) -> None:
    flags = ("--fault=used up", "--steps=20", "--at=9", "--step_s=0.3", f"--dir={tmp_path}", "--save_steps=5", per_call)
    output = run(programs, *flags).succeed()
    for worker in range(2):
        assert f"[worker:{worker}] worker:{worker} is done at global step 9" in output


@pytest.mark.parametrize("per_call", [pytest.param("--per_call=1", marks=SLOW), "--per_call=3"])
@pytest.mark.parametrize("strategy", [pytest.param("mirrored", marks=SLOW), "fsdp"])
@pytest.mark.parametrize(
    ("at", "evaluations"), [pytest.param(3, [3], marks=SLOW), pytest.param(5, [4, 5], marks=SLOW), (7, [4, 7])]
)
def test_the_end_may_come_with_a_validation(
    at: int, evaluations: list[int], strategy: str, per_call: str, programs: Programs, tmp_path: Path
) -> None:
    """The others must not evaluate after a step that the end has made one too many: in parts, all do it together."""
    if per_call == "--per_call=3":  # validations are between two calls, the first at step 6 at the earliest
        evaluations = [6, 7] if at == 7 else [at]
    flags = (f"--strategy={strategy}", "--validate", "--fault=used up", "--steps=20", f"--at={at}", per_call)
    output = run(programs, *flags, f"--out={tmp_path / 'all'}").succeed()
    for worker in range(2):
        assert f"[worker:{worker}] worker:{worker} is done at global step {at}" in output
    assert read(tmp_path / "all")["evaluations"] == evaluations


def test_the_chief_may_end_it_before_a_hook_in_which_all_take_part(programs: Programs, tmp_path: Path) -> None:
    flags = ("--strategy=fsdp", "--fault=stops", "--at=6", "--steps=9", "--looks=3", "--validate")
    output = run(programs, *flags, f"--dir={tmp_path}").succeed()
    for worker in range(2):
        assert f"[worker:{worker}] worker:{worker} had enough at global step 6" in output
        assert f"[worker:{worker}] worker:{worker} is done at global step 15" in output


# flags -> the step of the best checkpoint: in parts, all give theirs in the step that was validated, and no later
BEST = [
    pytest.param(("--validate", "--steps=7"), 7, marks=SLOW),
    pytest.param(("--validate", "--steps=7", "--fault=no directory"), 7, marks=SLOW),
    pytest.param(("--validate", "--steps=20", "--fault=used up", "--at=4"), 4, marks=SLOW),
    pytest.param(("--validate_last", "--fault=stops", "--at=4"), 4, marks=SLOW),
    (("--validate_last", "--fault=stops", "--at=5"), 5),
]


@pytest.mark.parametrize(("flags", "step"), BEST)
def test_the_best_is_of_the_step_that_was_validated(
    flags: tuple[str, ...], step: int, programs: Programs, tmp_path: Path
) -> None:
    run(programs, "--strategy=fsdp", *flags, f"--dir={tmp_path}", "--save_steps=3").succeed()
    home = CheckpointDirectory(tmp_path, pytest.fail)
    assert home.best is not None
    assert home.best[:2] == (step, "loss")
    assert Checkpoint.open(home.path_of(step)).manifest.metrics["loss"] == home.best[2]


@pytest.mark.slow
@PER_CALL
def test_the_end_may_come_with_a_refused_gradient(per_call: str, programs: Programs) -> None:
    output = run(programs, "--fault=not finite", "--steps=8", "--at=7", per_call).succeed()
    for worker in range(2):
        assert f"[worker:{worker}] worker:{worker} is done at global step 6" in output


@pytest.mark.slow
@PER_CALL
def test_another_training_after_an_early_end(per_call: str, programs: Programs, tmp_path: Path) -> None:
    output = run(programs, "--fault=stops", "--at=6", "--steps=9", f"--dir={tmp_path}", per_call).succeed()
    for worker, reason in enumerate(["enough for now", "the chief has ended the training"]):
        assert f"[worker:{worker}] worker:{worker} had enough at global step 6: {reason}" in output
        assert f"[worker:{worker}] worker:{worker} is done at global step 15" in output


@pytest.mark.slow
@pytest.mark.smoke
def test_another_trainer_on_the_same_strategy(programs: Programs) -> None:
    """It has another optimizer and another end: what was said of the first training is not heard again."""
    output = run(programs, "--fault=another trainer", "--steps=4").succeed()
    for worker in range(2):
        assert f"[worker:{worker}] worker:{worker} is done at global step 8" in output


@pytest.mark.slow
def test_one_that_evaluates_before_its_first_step_is_waited_for(programs: Programs) -> None:
    run(programs, "--fault=evaluates first", "--start_s=6", "--timeout_s=4").succeed()


@pytest.mark.slow
def test_one_that_evaluates_for_long_is_waited_for(programs: Programs) -> None:
    job = run(programs, "--fault=evaluates long", "--timeout_s=10", "--step_s=0.3")
    assert "worker:1 is done at global step 8" in job.succeed()
    assert re.search(r"waiting for worker:0, which evaluates \(\d+ s\)", job.stderr), job.output


@pytest.mark.slow  # in `make test`, of two workers that are to end
@PER_CALL
def test_all_places_in_the_data_are_saved_when_one_is_to_end(
    per_call: str, programs: Programs, ports: tuple[str, ...], tmp_path: Path
) -> None:
    flags = ("--steps=100000", "--step_s=0.1", f"--dir={tmp_path}", "--save_steps=1000000", per_call)
    workers = by_hand(programs, ports, *flags)
    for worker in workers:
        worker.wait_for("^training$")
    workers[1].send(signal.SIGTERM)
    for worker in workers:
        assert worker.wait() == 128 + signal.SIGTERM
    newest = CheckpointDirectory(tmp_path, pytest.fail).newest()
    assert newest is not None
    assert {entry.steps for entry in newest.manifest.workers.values()} == {newest.global_step}
    assert len(newest.manifest.workers) == 3


OTHERS = r"ModelMismatch: worker:\d and worker:\d have different programs: "
WRONG = [
    ("other batch", r"DataError: workers that compute in lockstep need batches of one shape, but that of worker:0 is"),
    ("other model", OTHERS + r"variable \S+ is float32\[.*\] here and missing there"),
    ("other values", OTHERS + r"variable \S+/bias is float32\[\d+\] here and float32\[\d+\] there"),
    ("other optimizer", OTHERS + "the optimizer's "),
    ("other steps", OTHERS + r"steps_per_execution is \d here and \d there"),
    ("other transform", OTHERS + r"worker_transform is (none|some) here and (none|some) there"),
    ("other dtype", OTHERS + r"compute_dtype is (none|bfloat16) here and (none|bfloat16) there"),
    ("other metrics", r"ModelMismatch: .* have different metrics: accuracy is (missing|float32\[\]) here and "),
    ("other mesh", OTHERS + r"the mesh is \{'data': \d.*\} here and \{'data': \d.*\} there"),
    ("other rules", OTHERS + r"the sharding of \S+ is P\w*\(.*\) here and P\w*\(.*\) there"),
    (
        "other evaluation",
        r"DataError: each worker .* batch 1 of worker:1 differs from that of worker:0",
    ),
    ("predicts instead", r"ClusterError: worker:\d (evaluates|predicts by .*), but worker:\d (evaluates|predicts by)"),
    ("uneven evaluation", r"DataError: each worker .*; but there are 1 on worker:0 and more on others\."),
    ("asks alone", r"ClusterError: worker:1 asks for the params, but worker:0 continues its training: workers that"),
    ("asks first", r"ClusterError: worker:1 asks for the params, but worker:0 comes to its first step: workers that"),
    (
        "asks later",
        r"ClusterError: worker:\d asks for the params, (but worker:\d continues|and so does worker:\d, but at)",
    ),
    (
        "evaluates alone",
        r"PeerError: worker:0 at \S+ has left the job, while worker:1 evaluates: workers that",
    ),
    ("large mesh", "ModelError: mesh: data 4 x model 1 needs 4 devices, .* 2: cpu:0 of worker:0, cpu:0 of worker:1"),
    ("other devices", r"ClusterError: the workers must have the same number of devices .*: worker:0 1, worker:1 2"),
    ("twice", r"ClusterError: this process already takes part in a job of several workers"),
    ("JAX first", r"ClusterError: JAX has already started its backends, without the other workers"),
    ("another port", r"AddressInUse: worker:0 cannot listen on its port \d+: "),
]
IN_PARTS = (
    "other rules",
    "predicts instead",
    "other evaluation",
    "uneven evaluation",
    "asks alone",
    "asks first",
    "asks later",
    "evaluates alone",
)


PROVEN_BELOW = {
    *("other model", "other values", "other steps", "other transform", "other dtype", "other metrics", "other mesh"),
    *("other rules", "asks alone", "asks first", "asks later", "predicts instead", "uneven evaluation"),
    *("other devices", "twice", "JAX first", "another port"),
}
"""By `tests/spmd` and `tests/simulation/in_step`."""


@pytest.mark.parametrize(
    ("fault", "words"), [pytest.param(*row, marks=SLOW if row[0] in PROVEN_BELOW else ()) for row in WRONG]
)
def test_what_cannot_be_is_said(fault: str, words: str, programs: Programs) -> None:
    strategy = {"other mesh": "tensor", "large mesh": "tensor"}.get(fault, "fsdp" if fault in IN_PARTS else "mirrored")
    job = run(programs, f"--fault={fault}", "--start_s=20", f"--strategy={strategy}")
    assert job.wait() != 0
    assert re.search(rf"^\[worker:\d\] error: {words}", job.stderr, re.MULTILINE), job.output


@pytest.mark.slow
def test_first_values_that_differ_are_said(programs: Programs) -> None:
    job = run(programs, "--fault=other init", workers=3)
    job.succeed()
    words = r"^\[worker:0\] trainband: the first params of worker:1 differ from worker:0's; all begin with the latter$"
    assert re.search(words, job.stderr, re.MULTILINE), job.output
    assert "model state" not in job.stderr


@pytest.mark.parametrize(
    ("strategy", "per_call"),
    [pytest.param("mirrored", 1, marks=SLOW), ("mirrored", 3), pytest.param("fsdp", 1, marks=SLOW)],
)
def test_an_optimizer_with_other_numbers_is_seen_after_its_first_step(
    strategy: str, per_call: int, programs: Programs
) -> None:
    """Where they have the same, nothing is said: `test_they_train_as_one_device`."""
    job = run(programs, f"--strategy={strategy}", f"--per_call={per_call}", "--steps=6", "--fault=other numbers")
    job.succeed()
    words = r"^\[(worker:\d)\] trainband: WARNING: after the first step, \S+ of worker:1 differs from worker:0's by \d"
    assert sorted(re.findall(words, job.stderr, re.MULTILINE)) == ["worker:0", "worker:1"], job.output


@pytest.mark.slow
def test_workers_with_one_part_of_the_batch_should_bring_the_same(programs: Programs) -> None:
    job = run(programs, "--strategy=tensor", "--fault=other data")
    job.succeed()
    words = (
        "trainband: WARNING: worker:0 and worker:1 compute the same part of each batch together, .* give both the same"
    )
    assert re.search(words, job.stderr), job.output
    job = run(programs, "--strategy=tensor")
    job.succeed()
    assert "WARNING" not in job.stderr


@pytest.mark.parametrize(
    ("fault", "why", "of"),
    [
        ("ends first", "its script ended", 1),
        pytest.param("fails first", "OSError: the disk with the pictures is gone", 0, marks=SLOW),
        pytest.param("fails first", "OSError: the disk with the pictures is gone", 1, marks=SLOW),
        pytest.param("ends first", "its script ended", 0, marks=SLOW),
    ],
)
def test_a_script_that_fails_before_it_trains_is_named(
    of: int, fault: str, why: str, programs: Programs, ports: tuple[str, ...], tmp_path: Path
) -> None:
    """XLA would end those who wait for it from C++."""
    mark = tmp_path / "mark"
    workers = by_hand(programs, ports, f"--fault={fault}", f"--of={of}", f"--mark={mark}", workers=2)
    workers[1 - of].wait_for(rf"^trainband: waiting for worker:{of} \(\d+ s\)$")
    mark.touch()
    # Where the chief, which is told, has left before it, XLA ends it from C++: it has failed in either case.
    assert workers[of].wait() in ((1, -signal.SIGABRT) if of else (1,))
    assert workers[1 - of].wait() == LOST_A_PEER
    assert f"worker:{of} has failed: {why}" in workers[1 - of].stderr, workers[1 - of].output


@pytest.mark.slow
def test_those_who_wait_know_for_whom(programs: Programs, ports: tuple[str, ...]) -> None:
    cluster = {"cluster": {"worker": list(ports[:3])}}
    tasks = [{"TF_CONFIG": json.dumps({**cluster, "task": {"type": "worker", "index": index}})} for index in range(3)]
    # Three processes that start on two cores are silent for seconds, while JAX connects them.
    flags = ("--steps=2", "--timeout_s=30")
    workers = [programs.python(f"worker:{index}", *SCRIPT, *flags, environ=tasks[index]) for index in (0, 1)]
    for worker in workers:
        worker.wait_for(r"^trainband: waiting for worker:2 to come up \(\d+ s\)$")
    second = programs.python("worker:1 again", *SCRIPT, environ=tasks[1])
    second.fail(
        "^error: Refused: worker:0 at .* knows another process as worker:1: give each process its own task index"
    )
    for worker in (*workers, programs.python("worker:2", *SCRIPT, *flags, environ=tasks[2])):
        worker.succeed()


def test_on_machines_of_their_own(programs: Programs, machines: Machines) -> None:
    addresses = machines.addresses[:3]
    workers = []
    for index in range(3):
        cluster = {"cluster": {"worker": list(addresses)}, "task": {"type": "worker", "index": index}}
        environ = {**os.environ, "TF_CONFIG": json.dumps(cluster), "NPROC": "1", "PYTHONUNBUFFERED": "1"}
        flags = (*SCRIPT, *ENDLESS, f"--timeout_s={TIMEOUT_S:g}")
        name = f"worker:{index}"
        workers.append(programs.python(name, *flags, environ=environ, machine=machines.names[index]))
    for worker in workers:
        worker.wait_for("^training$")
    # What others may reach: the chief's guard, and gloo, which asks nobody for a proof.
    for index, address in enumerate(addresses):
        listening = {line.split()[3] for line in machines.sockets(index) if line.startswith("LISTEN")}
        own = {where for where in listening if where.startswith(f"{address.partition(':')[0]}:")}
        assert own, "gloo listens on the interface of the job"
        assert {where.rpartition(":")[2] for where in listening - own} == ({"2222"} if index == 0 else set())
        assert ("WARNING: gloo and NCCL carry gradients" in workers[index].stderr) is (index == 0)
    machines.unplug(2)
    for worker in workers[:2]:
        assert worker.wait() in (1, LOST_A_PEER), worker.output
        assert re.search(r"worker:2 at \S+ is gone: no heartbeat for \d+ s", worker.stderr), worker.output
    assert workers[2].wait() in (1, LOST_A_PEER), workers[2].output  # for it, the others are gone
    assert re.search(r"worker:0 at \S+ is gone: no heartbeat for \d+ s", workers[2].stderr), workers[2].output
