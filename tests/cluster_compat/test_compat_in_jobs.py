"""Scripts of TensorFlow 1 as real processes: a ps and workers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from tests.compat.golden_values import assert_close
from tests.programs import ROOT, Program, Programs

SCRIPTS = ROOT / "examples" / "tf1"
FEATURES = ROOT / "tests" / "cluster_compat" / "features.py"
LOCAL_MODELS = ROOT / "tests" / "cluster_compat" / "local_models.py"
PIPELINE = ROOT / "tests" / "cluster_compat" / "pipeline.py"
SEVERAL_TRAININGS = ROOT / "tests" / "cluster_compat" / "several_trainings.py"


def start(
    programs: Programs, script: Path, ps: Sequence[str], workers: Sequence[str], *flags: str, only: str = ""
) -> dict[str, Program]:
    """Starts the tasks of a job by hand, told by flags who they are; with `only`, one of them."""
    found = {}
    for job, hosts in (("ps", ps), ("worker", workers)):
        for index in range(len(hosts)):
            name = f"{job}:{index}"
            if only in ("", name):
                cluster = (f"--ps_hosts={','.join(ps)}", f"--worker_hosts={','.join(workers)}")
                task = (f"--job_name={job}", f"--task_index={index}")
                found[name] = programs.python(name, "-m", "trainband.compat", str(script), *cluster, *task, *flags)
    return found


def test_one_worker_on_a_ps_gives_what_tensorflow_gives_without(
    programs: Programs, ports: tuple[str, ...], tmp_path: Path
) -> None:
    values = tmp_path / "values.npz"
    tasks = start(programs, SCRIPTS / "mlp_supervisor.py", ports[:1], ports[1:2], f"--values={values}")
    assert "Worker 0: 100 local steps, global step 100" in tasks["worker:0"].succeed()
    tasks["ps:0"].succeed()
    with np.load(values) as found:
        assert_close(dict(found), "mlp_supervisor")


def test_two_workers_in_step_give_what_tensorflow_gives_for_the_whole_batch(
    programs: Programs, ports: tuple[str, ...], tmp_path: Path
) -> None:
    values = tmp_path / "values.npz"
    tasks = start(programs, SCRIPTS / "sync_replicas.py", ports[:2], ports[2:4], f"--values={values}")
    for number in (0, 1):
        assert f"worker {number} made 60 steps" in tasks[f"worker:{number}"].succeed()
    for number in (0, 1):
        tasks[f"ps:{number}"].succeed()
    with np.load(values) as found:
        assert_close(dict(found), "sync_replicas")


@pytest.mark.parametrize(
    "script",
    [pytest.param(one, marks=pytest.mark.slow) for one in ("lstm_classifier", "slim_convnet", "keras_model")],
)
def test_recurrent_slim_and_keras_networks_learn_on_a_ps_with_two_workers(
    programs: Programs, ports: tuple[str, ...], script: str
) -> None:
    tasks = start(programs, SCRIPTS / f"{script}.py", ports[:1], ports[1:3])
    said = [tasks[f"worker:{number}"].succeed(120.0) for number in (0, 1)]  # each compiles for seconds
    tasks["ps:0"].succeed()
    assert min(float(text.split(" at last")[0].rpartition(", ")[2]) for text in said) < 0.5


def start_chief_last(
    programs: Programs, script: Path, ps: str, workers: Sequence[str], *flags: str
) -> dict[str, Program]:
    """A chief that trains at once may make all steps of a short job before a worker of a busy machine has come up."""
    found: dict[str, Program] = {}
    for task in ("ps:0", "worker:1"):
        found |= start(programs, script, [ps], workers, *flags, only=task)
    found["worker:1"].wait_for("^trainband: waiting for worker:0")
    return found | start(programs, script, [ps], workers, *flags, only="worker:0")


def test_checkpoints_go_on_and_can_be_restored_without_a_job(
    programs: Programs, ports: tuple[str, ...], tmp_path: Path
) -> None:
    flags = (f"--checkpoint_dir={tmp_path / 'run'}", f"--values={tmp_path / 'values.npz'}")
    tasks = start_chief_last(programs, SCRIPTS / "monitored_hooks.py", ports[0], ports[1:3], *flags)
    ended = [int(tasks[f"worker:{i}"].succeed().rpartition("global step ")[2]) for i in (0, 1)]
    tasks["ps:0"].succeed()
    assert ended == [120, 120]
    assert list((tmp_path / "run").glob("events.out.tfevents.*"))

    tasks = start_chief_last(programs, SCRIPTS / "monitored_hooks.py", ports[0], ports[1:3], *flags, "--steps=160")
    for i in (0, 1):
        assert int(tasks[f"worker:{i}"].succeed().rpartition("global step ")[2]) == 160
    tasks["ps:0"].succeed()
    begun = re.search(r"resumes from .*\(global step (\d+)\)", tasks["worker:0"].stderr)
    assert begun
    assert int(begun[1]) == 120

    code = f"""
import numpy as np, trainband.compat.tf1 as tf
w1, b1, w2 = (tf.get_variable(*one) for one in (("w1", [8, 16]), ("b1", [16]), ("w2", [16, 1])))
step = tf.train.get_or_create_global_step()
optimizer = tf.train.MomentumOptimizer(0.1, 0.9)
optimizer.minimize(tf.reduce_sum(tf.matmul(w1 + b1, w2)), step)
with tf.Session() as session:
    path = tf.train.latest_checkpoint({str(tmp_path / "run")!r})
    tf.train.Saver().restore(session, path)
    assert abs(session.run(optimizer.get_slot(w1, "momentum"))).max() > 0
    kept = np.load({str(tmp_path / "values.npz")!r})
    assert session.run(step) == 160, session.run(step)
    print(float(abs(session.run(w1) - kept["w1"]).max()))
    assert any(name == "optimizer/slots/momentum/w1" for name, _ in tf.train.list_variables(path))
"""
    assert float(programs.python("restore", "-c", code).succeed()) < 0.1


@pytest.mark.smoke
def test_a_worker_waits_for_the_chief_and_says_so(programs: Programs, ports: tuple[str, ...]) -> None:
    script = SCRIPTS / "mlp_supervisor.py"
    tasks = start(programs, script, ports[:1], ports[1:3], only="ps:0")
    tasks |= start(programs, script, ports[:1], ports[1:3], only="worker:1")
    tasks["worker:1"].wait_for(r"worker:0 to initialise the variables")
    tasks |= start(programs, script, ports[:1], ports[1:3], only="worker:0")
    for name in ("worker:0", "worker:1", "ps:0"):
        tasks[name].succeed()


HEAD = """
import pathlib, time
import tensorflow as tf
flags = tf.app.flags
for name in ("ps_hosts", "worker_hosts", "job_name", "dir"):
    flags.DEFINE_string(name, "", "")
flags.DEFINE_integer("task_index", 0, "")
FLAGS = flags.FLAGS
cluster = tf.train.ClusterSpec({"ps": FLAGS.ps_hosts.split(","), "worker": FLAGS.worker_hosts.split(",")})
server = tf.train.Server(cluster, FLAGS.job_name, FLAGS.task_index)
if FLAGS.job_name == "ps":
    server.join()
step = tf.train.get_or_create_global_step()
"""

LEFT_OPEN = """
w = tf.get_variable("w", [3], initializer=tf.ones_initializer())
train = tf.train.AdamOptimizer(0.1).minimize(tf.reduce_sum(w * w), step)
saver = tf.train.Saver([w, step])
sv = tf.train.Supervisor(is_chief=FLAGS.task_index == 0, logdir=FLAGS.dir, global_step=step, saver=saver)
session = sv.prepare_or_wait_for_session(server.target)
for _ in range(5):
    session.run([train, step])
print(saver.save(session, FLAGS.dir + "/mine", global_step=step))
"""


def test_a_script_that_leaves_its_session_open(programs: Programs, ports: tuple[str, ...], tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(HEAD + LEFT_OPEN)
    home = tmp_path / "home"
    home.mkdir()
    tasks = start(programs, script, ports[:1], ports[1:2], f"--dir={home}")
    assert tasks["worker:0"].succeed() == f"{home / 'mine'}-5\n"
    tasks["ps:0"].succeed()
    assert (home / "mine-5.safetensors").exists()
    assert [path.name for path in home.glob("step-*")] == ["step-000000000005"]


PAUSING = """
w = tf.get_variable("w", [], initializer=tf.zeros_initializer())
train = tf.train.GradientDescentOptimizer(1.0).minimize(w, step)
begun, done = (pathlib.Path(FLAGS.dir) / name for name in ("begun", "done"))
stop = tf.train.StopAtStepHook(last_step=22)
with tf.train.MonitoredTrainingSession(server.target, FLAGS.task_index == 0, hooks=[stop]) as session:
    session.run([w, train])
    if FLAGS.task_index == 1:
        while not begun.exists():
            time.sleep(0.05)
        for _ in range(20):
            session.run(train)
        done.touch()
    else:
        begun.touch()
        while not done.exists():
            time.sleep(0.05)
        time.sleep(0.2)
        before, _, at = session.run([w, train, step])
        print(int(before), int(at), session.should_stop())
"""


def test_a_worker_that_has_paused_reads_what_others_have_trained_and_makes_no_update_past_the_last_step(
    programs: Programs, ports: tuple[str, ...], tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(HEAD + PAUSING)
    tasks = start(programs, script, ports[:1], ports[1:3], f"--dir={tmp_path}")
    assert tasks["worker:0"].succeed() == "-22 22 True\n"
    tasks["worker:1"].succeed()
    tasks["ps:0"].succeed()


@pytest.mark.parametrize(
    "more",
    [pytest.param((), id="float32"), pytest.param(("--double",), id="float64", marks=pytest.mark.slow)],
)
def test_a_job_of_one_worker_does_what_a_process_by_itself_does(
    programs: Programs, ports: tuple[str, ...], tmp_path: Path, more: tuple[str, ...]
) -> None:
    alone, job = tmp_path / "alone0.npz", tmp_path / "job0.npz"
    mine, theirs = (f"--values={tmp_path}/{name}%d.npz" for name in ("alone", "job"))
    by_itself = programs.python("alone", "-m", "trainband.compat", str(FEATURES), mine, *more)
    tasks = start(programs, FEATURES, ports[:1], ports[1:2], theirs, *more)
    assert "global step 20" in by_itself.succeed()
    assert "global step 20" in tasks["worker:0"].succeed()
    assert "never" not in tasks["ps:0"].succeed()
    with np.load(alone) as wanted, np.load(job) as found:
        assert set(wanted) == set(found)
        for name in wanted:
            assert found[name].dtype == wanted[name].dtype, name
            np.testing.assert_allclose(found[name], wanted[name], rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.slow
def test_several_trainings_and_assignments_give_what_a_process_by_itself_gives(
    programs: Programs, ports: tuple[str, ...], tmp_path: Path
) -> None:
    alone, job = tmp_path / "alone.npz", tmp_path / "job.npz"
    by_itself = programs.python("alone", "-m", "trainband.compat", str(SEVERAL_TRAININGS), f"--values={alone}")
    tasks = start(programs, SEVERAL_TRAININGS, ports[:2], ports[2:3], f"--values={job}")
    assert by_itself.succeed() == tasks["worker:0"].succeed() == "global step 14\n"
    for name in ("ps:0", "ps:1"):
        assert "never" not in tasks[name].succeed()
    with np.load(alone) as wanted, np.load(job) as found:
        for name in wanted:
            np.testing.assert_allclose(found[name], wanted[name], rtol=1e-4, atol=1e-5, err_msg=name)


def test_what_one_worker_assigns_stays_whatever_others_push(
    programs: Programs, ports: tuple[str, ...], tmp_path: Path
) -> None:
    tasks = start(programs, FEATURES, ports[:1], ports[1:3], f"--values={tmp_path}/%d.npz")
    for name in ("worker:0", "worker:1", "ps:0"):
        tasks[name].succeed()
    with np.load(tmp_path / "0.npz") as found:
        assert found["scale"] == 0.5
        assert found["seen"] >= 20 * 6


@pytest.mark.parametrize(
    "style", [*(pytest.param(one, marks=pytest.mark.slow) for one in ("downpour", "accumulate")), "elastic"]
)
def test_a_local_model_on_one_worker_is_trained_as_in_one_process(
    programs: Programs, ports: tuple[str, ...], tmp_path: Path, style: str
) -> None:
    alone, job = tmp_path / "alone", tmp_path / "job"
    by_itself = programs.python(
        "alone", "-m", "trainband.compat", str(LOCAL_MODELS), f"--style={style}", f"--values={alone}"
    )
    tasks = start(programs, LOCAL_MODELS, ports[:1], ports[1:2], f"--style={style}", f"--values={job}")
    assert by_itself.succeed() == tasks["worker:0"].succeed() == "trained [2.0, -1.0, 0.5]\n"
    tasks["ps:0"].succeed()
    with np.load(f"{alone}0.npz") as wanted, np.load(f"{job}0.npz") as found:
        for name in wanted:
            np.testing.assert_allclose(found[name], wanted[name], rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(
    "style",
    [pytest.param("downpour", marks=pytest.mark.slow), pytest.param("accumulate", marks=pytest.mark.slow), "elastic"],
)
def test_two_workers_with_local_models_train_one(
    programs: Programs, ports: tuple[str, ...], tmp_path: Path, style: str
) -> None:
    tasks = start(programs, LOCAL_MODELS, ports[:1], ports[1:3], f"--style={style}", f"--values={tmp_path}/")
    for name in ("worker:0", "worker:1"):
        assert tasks[name].succeed() == "trained [2.0, -1.0, 0.5]\n"
    tasks["ps:0"].succeed()


def test_trainband_run_tells_a_script_by_its_flags(programs: Programs) -> None:
    script = str(SCRIPTS / "mlp_supervisor.py")
    output = programs.trainband(
        "run", "--tensorflow", "--ps", "1", "--workers", "2", script, "--", "--steps=50"
    ).succeed()
    assert re.search(r"^\[worker:0\] Worker 0: \d+ local steps, global step 5\d", output, re.MULTILINE)
    assert re.search(r"^\[worker:1\] Worker 1: \d+ local steps, global step 5\d", output, re.MULTILINE)


def test_workers_train_from_files_by_queues(programs: Programs, ports: tuple[str, ...], tmp_path: Path) -> None:
    tasks = start(programs, PIPELINE, ports[:1], ports[1:3], f"--data_dir={tmp_path}", "--steps=60")
    found = [float(tasks[f"worker:{number}"].succeed().rpartition("accuracy ")[2]) for number in (0, 1)]
    assert max(found) > 0.8  # one of them may come when the other has made all steps
    tasks["ps:0"].succeed()
