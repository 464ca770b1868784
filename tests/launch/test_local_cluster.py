"""Local clusters, with real processes that import nothing but what they need."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.descriptors import open_descriptors, open_now, opened_since

from trainband.cluster import Cluster, ClusterSpec, Task
from trainband.errors import ClusterError, DeadlineExceeded, YourError
from trainband.launch import LocalCluster, LocalElasticWorkers, exec_gate
from trainband.launch.backend import Watcher
from trainband.launch.environment import task_environment
from trainband.launch.options import Grace, Restarts
from trainband.launch.output_lines import LONGEST_LINE, LineSplitter
from trainband.launch.reaper import groups_left

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for leaks in /proc")

DEADLINE_S = 80.0
GRACE = Grace(ps_s=60.0, stop_s=60.0, kill_s=60.0)
IMPATIENT = Grace(ps_s=60.0, stop_s=0.5, kill_s=60.0)
WORKER0, WORKER1, PS = Task("worker", 0), Task("worker", 1), Task("ps", 0)

PRELUDE = """
import json, os, signal, subprocess, sys, time
task = "{type}:{index}".format(**json.loads(os.environ["TF_CONFIG"])["task"])
def wait_forever():
    while True:
        signal.pause()
"""


def _marked(marker: str) -> list[int]:
    """The processes other than this one that have the marker in their environment; zombies have none."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if marker.encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
    return found


def _wait_for_end(pids: list[int]) -> bool:
    """Whether all of these processes, ours or not, end within the deadline."""
    until = time.monotonic() + DEADLINE_S
    for pid in pids:
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            if not select.select([pidfd], [], [], max(0.0, until - time.monotonic()))[0]:
                return False
        finally:
            os.close(pidfd)
    return True


@pytest.fixture(autouse=True)
def no_leaks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fails a test that leaves a process, a thread or a signal handler behind."""
    marker = f"marker-{uuid.uuid4()}"
    monkeypatch.setenv("TRAINBAND_TEST", marker)
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)  # of the tests: the launcher makes its own
    threads = threading.active_count()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    descriptors = open_now()
    yield
    left = _marked(marker)
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert not left, f"the test left the processes {left}"
    assert threading.active_count() == threads
    assert {number: signal.getsignal(number) for number in handlers} == handlers
    until = time.monotonic() + DEADLINE_S
    while (opened := opened_since(descriptors)) and time.monotonic() < until:
        time.sleep(0.05)  # a thread of gRPC's may be in the middle of something, of a test before
    assert not opened, f"the test left open: {opened}"


class Recorder:
    """Keeps what a cluster says."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, str]] = []
        self.notes: list[str] = []

    def line(self, task: Task, stream: str, text: str) -> None:
        self.lines.append((str(task), stream, text))

    def of(self, task: Task) -> list[str]:
        return [text for name, _, text in self.lines if name == str(task)]


def _cluster(recorder: Recorder, script: str, **options: Any) -> LocalCluster:
    defaults = {"environ": os.environ, "grace": GRACE, "on_line": recorder.line, "on_note": recorder.notes.append}
    return LocalCluster(["-c", PRELUDE + script], **{**defaults, **options})


def test_a_job_that_succeeds() -> None:
    recorder = Recorder()
    script = "print(os.environ['TF_CONFIG']); print('to stderr', file=sys.stderr); print('no end', end='')"
    with _cluster(recorder, script, ps=1, workers=2, chief=True) as cluster:
        outcome = cluster.wait(DEADLINE_S)
        spec = cluster.spec
    assert (outcome.kind, outcome.exit_code, recorder.notes) == ("succeeded", 0, [])
    assert [str(task) for task in spec.tasks()] == ["chief:0", "worker:0", "worker:1", "ps:0"]
    for task in spec.tasks():
        config = json.loads(recorder.of(task)[0])
        assert ClusterSpec(config["cluster"]) == spec
        assert config["task"] == {"type": task.job, "index": task.index}
        assert {(stream, text) for name, stream, text in recorder.lines if name == str(task)} >= {
            ("stderr", "to stderr"),
            ("stdout", "no end"),
        }


def test_a_task_that_fails_ends_the_others_and_its_last_lines_are_kept() -> None:
    recorder = Recorder()
    script = """
if task == "worker:1":
    for i in range(50): print("line", i)
    sys.exit(3)
wait_forever()
"""
    with _cluster(recorder, script, keep_lines=4) as cluster:
        outcome = cluster.wait(DEADLINE_S)
        assert cluster.last_lines(WORKER1) == [f"line {i}" for i in range(46, 50)]
    assert (outcome.kind, outcome.exit_code, outcome.failed) == ("failed", 3, WORKER1)
    assert recorder.of(WORKER1) == [f"line {i}" for i in range(50)]
    assert recorder.notes == ["worker:1 failed (exit code 3); stopping the others: ps:0, worker:0"]


def test_a_task_killed_by_a_signal_fails_the_job() -> None:
    recorder = Recorder()

    def kill_when_ready(task: Task, stream: str, text: str) -> None:
        recorder.line(task, stream, text)
        if task == WORKER0:
            cluster.send(task, signal.SIGKILL)

    with _cluster(recorder, "print('ready'); wait_forever()", on_line=kill_when_ready) as cluster:
        outcome = cluster.wait(DEADLINE_S)
    assert (outcome.exit_code, outcome.failed, outcome.reason) == (137, WORKER0, "killed by SIGKILL")


def test_a_function_is_the_program_of_every_task() -> None:
    recorder, greeting = Recorder(), "hello"

    def program() -> str:
        print(greeting, json.loads(os.environ["TF_CONFIG"])["task"]["type"], sys.argv[1:])
        return "dropped"

    with LocalCluster(program, environ=os.environ, ps=1, workers=1, on_line=recorder.line) as cluster:
        assert cluster.wait(DEADLINE_S).exit_code == 0
    assert {text for _, _, text in recorder.lines} == {"hello ps []", "hello worker []"}


def test_a_function_that_cannot_be_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    lock = threading.Lock()
    with pytest.raises(ClusterError, match=r"cannot be sent to the tasks: .*lock.* Create that object inside the"):
        LocalCluster(lambda: lock.acquire(), environ={})
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(YourError, match=r"cloudpickle, which is not installed: pip install 'trainband\[notebook\]'"):
        LocalCluster(lambda: None, environ={})


def test_a_ps_that_serves_for_ever_is_stopped_after_success() -> None:
    recorder = Recorder()
    impatient = Grace(ps_s=0.2, stop_s=60.0, kill_s=60.0)
    with _cluster(recorder, "wait_forever() if task == 'ps:0' else None", grace=impatient) as cluster:
        assert cluster.wait(DEADLINE_S).kind == "succeeded"
    assert recorder.notes == ["ps:0 did not exit within 0.2 s after the workers; sent SIGTERM"]


def test_a_task_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    recorder = Recorder()
    script = """
if task == "worker:1":
    sys.stdin.read()  # there is no standard input to wait for
    while not os.path.exists(os.environ["READY"]): time.sleep(0.01)
    sys.exit(1)
if task == "worker:0":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    open(os.environ["READY"], "w").close()
wait_forever()
"""
    environ = {**os.environ, "READY": str(tmp_path / "ready")}
    with _cluster(recorder, script, ps=0, environ=environ, grace=IMPATIENT) as cluster:
        assert cluster.wait(DEADLINE_S).failed == WORKER1
    assert recorder.notes[1:] == ["worker:0 did not exit within 0.5 s after SIGTERM; sent SIGKILL"]


# Holds the task's stderr open. The task goes on when it is up.
GRANDCHILD = """
code = "import signal; signal.signal(signal.SIGTERM, signal.{}); print(1, flush=True); signal.pause()"
child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
child.stdout.readline()
"""


@pytest.mark.parametrize("handler", ["SIG_DFL", "SIG_IGN"])
def test_what_a_task_leaves_behind_is_ended(handler: str) -> None:
    """A grandchild, with the task's pipes open, outlives a task that exits with 0."""
    recorder = Recorder()
    script = GRANDCHILD.format(handler) + "print(child.pid); os._exit(0)"
    with _cluster(recorder, script, ps=0, workers=1, grace=IMPATIENT) as cluster:
        assert cluster.wait(DEADLINE_S).kind == "succeeded"
        pid = next(int(text) for text in recorder.of(WORKER0) if text.isdigit())
        os.kill(pid, 0)
    assert _wait_for_end([pid])


def test_leaving_the_block_early_ends_the_tasks_and_waiting_has_a_deadline() -> None:
    recorder = Recorder()
    with _cluster(recorder, GRANDCHILD.format("SIG_DFL") + "wait_forever()") as cluster:
        with pytest.raises(DeadlineExceeded, match=r"ps:0, worker:0, worker:1 did not exit within 0\.01 s"):
            cluster.wait(0.01)
        pids = [cluster.process_id(task) for task in (PS, WORKER0, WORKER1)]
        assert cluster.alive == {PS, WORKER0, WORKER1}
    assert _wait_for_end(pids)
    cluster.close()


def test_a_callback_that_raises_ends_the_tasks() -> None:
    def break_down(task: Task, stream: str, text: str) -> None:  # noqa: ARG001
        raise BrokenPipeError("the terminal has gone")

    script = "print('ready'); wait_forever()"
    with pytest.raises(BrokenPipeError), _cluster(Recorder(), script, on_line=break_down) as cluster:
        cluster.wait(DEADLINE_S)


def test_it_works_in_another_thread_too() -> None:
    outcomes = []

    def run() -> None:
        with _cluster(Recorder(), "print('hello')", ps=1, workers=1) as cluster:
            outcomes.append(cluster.wait(DEADLINE_S).kind)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(DEADLINE_S)
    assert outcomes == ["succeeded"]


def test_much_output_of_several_tasks_comes_whole() -> None:
    recorder = Recorder()
    script = "for i in range(3000): print(task, i, 'x' * 100); print(task, i, file=sys.stderr)"
    with _cluster(recorder, script) as cluster:
        assert cluster.wait(DEADLINE_S).exit_code == 0
    for task in (PS, WORKER0, WORKER1):
        mine = [(stream, text) for name, stream, text in recorder.lines if name == str(task)]
        assert [text for stream, text in mine if stream == "stdout"] == [f"{task} {i} {'x' * 100}" for i in range(3000)]
        assert [text for stream, text in mine if stream == "stderr"] == [f"{task} {i}" for i in range(3000)]


def test_a_traceback_stands_behind_the_lines_before_it() -> None:
    """The two streams are two pipes, and whoever reads stderr first has the last lines in the wrong order."""
    recorder = Recorder()
    script = "for i in range(500): print(i); print(i, file=sys.stderr)"
    with _cluster(recorder, script, ps=0, workers=1) as cluster:
        cluster.wait(DEADLINE_S)
    for i in range(500):
        assert recorder.lines.index(("worker:0", "stdout", str(i))) < recorder.lines.index(
            ("worker:0", "stderr", str(i))
        )


def test_tasks_lead_groups_and_sessions_of_their_own() -> None:
    """Linux shares cores out by session; and a terminal's Ctrl-C is the launcher's to pass on."""
    recorder = Recorder()
    with _cluster(recorder, "print(os.getpid() == os.getpgid(0) == os.getsid(0))", ps=0, workers=1) as cluster:
        cluster.wait(DEADLINE_S)
    assert recorder.of(WORKER0) == ["True"]


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="this kernel does not group processes by session")
def test_a_task_is_as_nice_as_its_launcher() -> None:
    command = ["nice", "-n", "5", sys.executable, "-I", "-S", exec_gate.__file__, "/bin/cat", "/proc/self/autogroup"]
    # In a session of its own, as every task is started.
    done = subprocess.run(command, input=exec_gate.OPEN, stdout=subprocess.PIPE, start_new_session=True, check=True)
    assert done.stdout.decode().split()[-2:] == ["nice", str(os.nice(0) + 5)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ps": -1}, r"ps must be 0 or more, got -1"),
        ({"workers": 0}, r"no task would train"),
        ({"threads": 0}, r"threads must be 1 or more"),
        ({"ps": 0, "min_workers": 0}, r"min_workers must be from 1 to the number of workers, which is 2, got 0"),
        ({"ps": 0, "min_workers": 3}, r"min_workers must be from 1 to the number of workers, which is 2, got 3"),
        (
            {"ps": 2, "min_workers": 1},
            r"min_workers=1 is for .* this one has ps=2, so its workers may join and leave",
        ),
    ],
)
def test_a_cluster_that_cannot_be_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        _cluster(Recorder(), "", **options)
    with pytest.raises(ClusterError, match=r"program is empty"):
        LocalCluster([], environ={})


def test_unknown_tasks_and_unstarted_clusters_are_errors() -> None:
    cluster = _cluster(Recorder(), "")
    for ask in (lambda: cluster.spec, cluster.wait):
        with pytest.raises(ClusterError, match="has not been started"):
            ask()
    cluster.close()
    with _cluster(Recorder(), "", ps=0, workers=1) as cluster:
        cluster.wait(DEADLINE_S)
        cluster.send(WORKER0, signal.SIGTERM)  # it has ended, and nobody else gets it
        with pytest.raises(ClusterError, match=r"no task ps:0, only worker:0"):
            cluster.last_lines(PS)


SPEC = ClusterSpec({"ps": ["a:1"], "worker": ["a:2", "a:3", "a:4"]})
ALONE = ClusterSpec({"worker": ["a:1"]})
ENVIRONMENTS: list[tuple[dict[str, str], ClusterSpec, int, int | None, dict[str, str | None]]] = [
    # 8 cores among 3 workers
    ({}, SPEC, 8, None, {"NPROC": "2", "PJRT_NPROC": "2", "JAX_PLATFORMS": None}),
    # never less than one thread
    ({}, SPEC, 2, None, {"NPROC": "1", "PJRT_NPROC": "1"}),
    # a task that is alone has the machine
    ({}, ALONE, 8, None, {"NPROC": None, "PJRT_NPROC": None}),
    # the user's word stands, and one of the two speaks for both
    ({"NPROC": "5"}, SPEC, 8, None, {"NPROC": "5", "PJRT_NPROC": None}),
    ({"JAX_PLATFORMS": "cuda"}, SPEC, 8, None, {"JAX_PLATFORMS": "cuda"}),
    # an argument beats the environment
    ({"NPROC": "5"}, SPEC, 8, 3, {"NPROC": "3", "PJRT_NPROC": "3"}),
    # a cluster around the launcher is not the tasks'
    ({"TF_CONFIG": "{}", "PYTHONUNBUFFERED": "", "HOME": "/h"}, SPEC, 8, None, {"PYTHONUNBUFFERED": "1", "HOME": "/h"}),
]


@pytest.mark.parametrize(("environ", "spec", "cores", "threads", "expected"), ENVIRONMENTS)
def test_the_environment_of_a_task(
    environ: dict[str, str], spec: ClusterSpec, cores: int, threads: int | None, expected: dict[str, str | None]
) -> None:
    trainers = len(spec.workers) if spec.ps else None
    cluster = Cluster(spec=spec, task=WORKER0)
    result = task_environment(environ, cluster=cluster, trainers=trainers, cores=cores, threads=threads)
    assert {name: result.get(name) for name in expected} == expected
    assert ClusterSpec(json.loads(result["TF_CONFIG"])["cluster"]) == spec


@pytest.mark.parametrize(("environ", "platforms"), [({}, "cpu"), ({"JAX_PLATFORMS": "cuda,cpu"}, "cuda,cpu")])
def test_a_ps_gets_no_accelerator_unless_the_user_says_so(environ: dict[str, str], platforms: str) -> None:
    assert (
        task_environment(environ, cluster=Cluster(spec=SPEC, task=PS), trainers=3, cores=8)["JAX_PLATFORMS"]
        == platforms
    )


def _elastic(*indices: int, spec: ClusterSpec = SPEC) -> list[Cluster]:
    return [Cluster(spec=spec, task=Task("worker", index), elastic=True) for index in indices]


def test_elastic_workers_are_started_and_seen_to_their_end() -> None:
    recorder = Recorder()
    script = PRELUDE + "print(os.environ['TF_CONFIG'], os.environ.get('NPROC'))"
    with LocalElasticWorkers(
        ["-c", script], workers=_elastic(3, 4), environ=os.environ, threads=5, watcher=Watcher(line=recorder.line)
    ) as workers:
        assert workers.wait(DEADLINE_S).exit_code == 0
        assert workers.spec == SPEC
    for index in (3, 4):
        (line,) = recorder.of(Task("worker", index))
        config, _, threads = line.rpartition(" ")
        assert json.loads(config)["task"] == {"type": "worker", "index": index, "elastic": True}
        assert threads == "5"


@pytest.mark.parametrize(
    ("spec", "workers", "trainers"),
    [
        (SPEC, 1, None),  # has a machine of its own
        (SPEC, 2, 2),
        # shares it with the planned workers
        (ClusterSpec({"ps": ["127.0.0.1:1"], "worker": ["127.0.0.1:2", "localhost:3"]}), 1, 3),
    ],
)
def test_elastic_workers_share_the_cores_with_tasks_that_train_here(
    spec: ClusterSpec, workers: int, trainers: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(12)), raising=False)
    environ = {name: value for name, value in os.environ.items() if name not in ("NPROC", "PJRT_NPROC")}
    recorder = Recorder()
    with LocalElasticWorkers(
        ["-c", "import os; print(os.environ.get('NPROC'))"],
        workers=_elastic(*range(3, 3 + workers), spec=spec),
        environ=environ,
        watcher=Watcher(line=recorder.line),
    ) as cluster:
        cluster.wait(DEADLINE_S)
    assert recorder.of(Task("worker", 3)) == [str(trainers and 12 // trainers)]


NOT_ELASTIC: list[tuple[list[Cluster], str]] = [
    ([], r"LocalElasticWorkers\.workers is empty"),
    ([Cluster(spec=SPEC, task=WORKER0)], r"the cluster lists one of worker:0"),
    (_elastic(3, 3), r"worker:3, worker:3 are not different workers of one job"),
    (_elastic(3) + _elastic(4, spec=ALONE), r"worker:3, worker:4 are not different workers of one job"),
]


@pytest.mark.parametrize(("workers", "message"), NOT_ELASTIC)
def test_what_cannot_be_started_as_elastic_workers(workers: list[Cluster], message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        LocalElasticWorkers(["train.py"], workers=workers, environ={})


# Each run of a task says what it was told, and knows the how-manieth run of the task it is.
RUNS = """
config = json.loads(os.environ["TF_CONFIG"])
print(os.environ["TF_CONFIG"], flush=True)
runs = len([name for name in os.listdir(os.environ["RUNS"]) if name.startswith(task + "-")])
open(os.path.join(os.environ["RUNS"], f"{task}-{os.getpid()}"), "w").close()
def wait_for(other, runs):
    while len([name for name in os.listdir(os.environ["RUNS"]) if name.startswith(other + "-")]) < runs:
        time.sleep(0.01)
"""
SOON = Restarts(limit=2, first_delay_s=0.01)


def _workers_of(line: str) -> list[str]:
    workers: list[str] = json.loads(line)["cluster"]["worker"]
    return workers


def test_without_ps_all_that_train_start_again_at_new_addresses(tmp_path: Path) -> None:
    recorder = Recorder()
    script = """
if task == "evaluator:0":
    wait_for("worker:0", 2)
elif task == "chief:0" and runs == 0:
    sys.exit(0)  # it ends well, and is started again all the same
elif task == "worker:1" and runs == 0:
    wait_for("worker:0", 1)
    wait_for("chief:0", 1)
    os.kill(os.getpid(), signal.SIGKILL)
elif runs == 0:
    wait_forever()
"""
    environ = {**os.environ, "RUNS": str(tmp_path)}
    options: dict[str, Any] = {"ps": 0, "chief": True, "evaluator": True, "restarts": SOON, "environ": environ}
    with _cluster(recorder, RUNS + script, **options) as cluster:
        outcome = cluster.wait(DEADLINE_S)
        spec = cluster.spec
    assert (outcome.kind, len(recorder.notes)) == ("succeeded", 1)
    assert re.fullmatch(
        r"worker:1 failed \(killed by SIGKILL\); stopping (chief:0, )?worker:0 and "
        r"restarting the job in 0\.01 s \(1 of 2\)",
        recorder.notes[0],
    )
    assert len(recorder.of(Task("evaluator", 0))) == 1
    for task in spec.workers:
        before, after = recorder.of(task)
        assert not set(_workers_of(before)) & set(_workers_of(after))
        assert ClusterSpec(json.loads(after)["cluster"]) == spec


def test_a_job_goes_on_without_the_worker_that_fails_too_often(tmp_path: Path) -> None:
    recorder = Recorder()
    script = """
if len(config["cluster"]["worker"]) == 3:
    wait_for("worker:0", runs + 1)
    wait_for("worker:2", runs + 1)
    wait_forever() if task != "worker:1" else sys.exit(4)
print("trained", os.environ["NPROC"])
"""
    environ = {name: value for name, value in os.environ.items() if name not in ("NPROC", "PJRT_NPROC")}
    restarts = Restarts(limit=1, first_delay_s=0.01)
    options: dict[str, Any] = {"ps": 0, "workers": 3, "min_workers": 2, "restarts": restarts}
    with _cluster(recorder, RUNS + script, environ={**environ, "RUNS": str(tmp_path)}, **options) as cluster:
        assert cluster.wait(DEADLINE_S).kind == "succeeded"
        assert cluster.spec.workers == (WORKER0, WORKER1)
        with pytest.raises(ClusterError, match="no task worker:2, only worker:0, worker:1"):
            cluster.process_id(Task("worker", 2))
    assert recorder.notes == [
        "worker:1 failed (exit code 4); stopping worker:0, worker:2 and restarting the job in 0.01 s (1 of 1)",
        "worker:1 failed (exit code 4); stopping worker:0, worker:2",
        "worker:1 failed twice; continuing without it on 2 workers (at least 2 are required)",
    ]
    runs = {index: recorder.of(Task("worker", index)) for index in range(3)}
    assert {index: len(lines) for index, lines in runs.items()} == {0: 4, 1: 4, 2: 2}
    assert [len(_workers_of(line)) for line in runs[0][:3]] == [3, 3, 2]
    assert runs[0][3] == f"trained {max(1, len(os.sched_getaffinity(0)) // 2)}"


def test_a_survivor_that_ignores_sigterm_does_not_hold_the_others_up(tmp_path: Path) -> None:
    recorder = Recorder()
    script = """
if runs:
    sys.exit(0)
if task == "worker:1":
    wait_for("ready", 1)
    sys.exit(1)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(os.path.join(os.environ["RUNS"], "ready-"), "w").close()
wait_forever()
"""
    environ = {**os.environ, "RUNS": str(tmp_path)}
    with _cluster(recorder, RUNS + script, ps=0, restarts=SOON, environ=environ, grace=IMPATIENT) as cluster:
        assert cluster.wait(DEADLINE_S).kind == "succeeded"
    assert recorder.notes == [
        "worker:1 failed (exit code 1); stopping worker:0 and restarting the job in 0.01 s (1 of 2)",
        "worker:0 did not exit within 0.5 s after SIGTERM; sent SIGKILL",
    ]


def test_many_restarts_hold_no_more_than_the_first() -> None:
    recorder, held = Recorder(), list[int]()

    def check(text: str) -> None:
        if " failed (" in text:
            held.append(len(open_descriptors()))

    restarts = Restarts(limit=4, first_delay_s=0.01, max_delay_s=0.01)
    script = "sys.exit(1) if task == 'worker:0' else wait_forever()"
    with _cluster(recorder, script, ps=0, restarts=restarts, on_note=check) as cluster:
        assert cluster.wait(DEADLINE_S).failed == WORKER0
    assert len(held) == 5
    # At a note, the readers of the tasks before may not have closed their pipes yet; what leaks would grow each time.
    assert min(held[2:]) <= min(held[:2]), held


def test_leaving_the_block_while_a_job_waits_for_its_next_start() -> None:
    recorder = Recorder()
    restarts = Restarts(limit=1, first_delay_s=1000.0, max_delay_s=1000.0)
    with _cluster(recorder, "sys.exit(1)", ps=0, restarts=restarts) as cluster:
        while cluster.alive or not recorder.notes:
            with contextlib.suppress(DeadlineExceeded):
                cluster.wait(0.05)
        with pytest.raises(DeadlineExceeded, match=r"a job that is about to restart did not exit within 0\.01 s"):
            cluster.wait(0.01)
    assert len(recorder.notes) == 1
    assert recorder.notes[0].endswith("restarting the job in 1000 s (1 of 1)")


def test_elastic_workers_are_started_again_each_by_itself(tmp_path: Path) -> None:
    recorder = Recorder()
    script = PRELUDE + RUNS + "sys.exit(1) if task == 'worker:3' and not runs else wait_for('worker:3', 2)"
    with LocalElasticWorkers(
        ["-c", script],
        workers=_elastic(3, 4),
        environ={**os.environ, "RUNS": str(tmp_path)},
        restarts=SOON,
        watcher=Watcher(line=recorder.line, report=recorder.notes.append),
    ) as workers:
        assert workers.wait(DEADLINE_S).exit_code == 0
    assert recorder.notes == ["worker:3 failed (exit code 1); restarting it in 0.01 s (1 of 2)"]
    assert len(recorder.of(Task("worker", 4))) == 1


@pytest.mark.smoke
def test_lines_are_cut_at_their_ends_only() -> None:
    cutter = LineSplitter()
    text = "naïve — 漢字\n".encode()
    assert [line for byte in text for line in cutter.feed(bytes([byte]))] == ["naïve — 漢字"]
    assert cutter.feed(b"a\r\n\n  10%\r 100%\nbad \xff\nrest") == ["a", "", " 100%", "bad \ufffd"]
    assert cutter.finish() == ["rest"]
    assert cutter.finish() == []
    assert [len(line) for line in cutter.feed(b"x" * (2 * LONGEST_LINE + 7))] == [LONGEST_LINE] * 2
    assert cutter.feed(b"\n") == ["x" * 7]


def test_the_reaper_knows_which_groups_are_left() -> None:
    assert groups_left(["+12\n", "+345\n", "-12\n", "+6"]) == [345]  # the last line was cut off in the middle
    assert groups_left(["-12\n"]) == []


class Launcher:
    """`trainband run` as a process; each task's line `ready PID` says that it is up."""

    def __init__(self, path: Path, script: str, *options: str) -> None:
        path.write_text(PRELUDE + script)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "trainband.cli.main", "run", *options, str(path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
        )
        # A deadline for all the reads below: without it a launcher that hangs would hang the tests.
        self._alarm = threading.Timer(DEADLINE_S, self.process.kill)
        self._alarm.start()

    def wait_until_ready(self, n: int) -> list[int]:
        """The processes that the first `n` ready lines name."""
        pids: list[int] = []
        assert self.process.stdout is not None
        while len(pids) < n:
            line = self.process.stdout.readline()
            assert line, f"ended early: {self.process.stderr.read() if self.process.stderr else ''}"
            if " ready " in line:
                pids.append(int(line.split()[-1]))
        return pids

    def finish(self) -> tuple[int, str]:
        """Its exit code and what it wrote on stderr."""
        _, errors = self.process.communicate()
        self._alarm.cancel()
        self._alarm.join()
        return self.process.returncode, errors


READY = "print('ready', os.getpid())\n"


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_to_the_command_ends_all_tasks(tmp_path: Path, number: int, exit_code: int) -> None:
    launcher = Launcher(tmp_path / "train.py", READY + "wait_forever()")
    pids = launcher.wait_until_ready(3)
    launcher.process.send_signal(number)
    code, errors = launcher.finish()
    assert code == exit_code
    assert errors == f"trainband: received {signal.Signals(number).name}; stopping ps:0, worker:0, worker:1\n"
    assert _wait_for_end(pids)


def test_ctrl_c_on_a_terminal_is_one_interrupt(tmp_path: Path) -> None:
    """A terminal signals the launcher's whole process group; the tasks and the reaper are in others."""
    script = (
        "signal.signal(signal.SIGINT, lambda *_: print('hit'))\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"
    )
    launcher = Launcher(tmp_path / "train.py", script + READY + "wait_forever()")
    pids = launcher.wait_until_ready(3)
    os.killpg(launcher.process.pid, signal.SIGINT)
    assert launcher.process.stdout is not None
    assert "hit" not in launcher.process.stdout.read()
    assert launcher.finish()[0] == 130
    assert _wait_for_end(pids)


def test_a_launcher_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    grandchild = "import os, signal; print('ready', os.getpid(), flush=True); signal.pause()"
    script = f"child = subprocess.Popen([sys.executable, '-c', {grandchild!r}])\n" + READY + "wait_forever()"
    launcher = Launcher(tmp_path / "train.py", script)
    pids = launcher.wait_until_ready(6)
    marked = _marked(os.environ["TRAINBAND_TEST"])
    assert {*pids} < {*marked}
    launcher.process.kill()
    assert launcher.finish()[0] == -signal.SIGKILL
    assert _wait_for_end(marked)  # the tasks, their children and the reaper


def test_a_launcher_that_is_killed_leaves_no_stubborn_task(tmp_path: Path) -> None:
    path = tmp_path / "launcher.py"
    task = PRELUDE + "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('ready'); wait_forever()"
    path.write_text(
        "import os, signal\n"
        "from trainband.launch import LocalCluster\n"
        "from trainband.launch.options import Grace\n"
        f"with LocalCluster(['-c', {task!r}], environ=os.environ, ps=0, workers=1, grace=Grace(stop_s=0.2),\n"
        "                  on_line=lambda *_: os.kill(os.getpid(), signal.SIGKILL)) as cluster:\n"
        "    cluster.wait()\n"
    )
    assert subprocess.run([sys.executable, str(path)], timeout=DEADLINE_S, check=False).returncode == -signal.SIGKILL
    assert _wait_for_end(_marked(os.environ["TRAINBAND_TEST"]))


COMPILES = """
import jax, tempfile
hits = []
jax.monitoring.register_event_listener(lambda name, **_: hits.append(name) if name.endswith("/cache_hits") else None)
jax.jit(lambda x: x * 2 + 1)(3.0)
print("found", len(hits), os.environ["JAX_COMPILATION_CACHE_DIR"])
"""


def test_a_task_that_is_started_again_finds_what_was_compiled() -> None:
    recorder = Recorder()
    script = COMPILES + "sys.exit(0 if hits else 3)"
    with _cluster(recorder, script, ps=0, workers=1, restarts=SOON) as cluster:
        assert cluster.wait(DEADLINE_S).kind == "succeeded"
    lives = [line.split() for line in recorder.of(WORKER0) if line.startswith("found")]
    assert [words[1] == "0" for words in lives] == [True, False]
    (directory,) = {words[2] for words in lives}
    assert not Path(directory).exists()


def test_whoever_says_where_compiled_programs_go_is_heard(tmp_path: Path) -> None:
    recorder = Recorder()
    environ = {**os.environ, "JAX_COMPILATION_CACHE_DIR": str(tmp_path)}
    script = "print(os.environ['JAX_COMPILATION_CACHE_DIR'])"
    with _cluster(recorder, script, ps=0, workers=1, restarts=SOON, environ=environ) as cluster:
        cluster.wait(DEADLINE_S)
    assert recorder.of(WORKER0) == [str(tmp_path)]
    assert tmp_path.exists()


def test_a_launcher_that_is_killed_leaves_nothing_compiled(tmp_path: Path) -> None:
    path, said = tmp_path / "launcher.py", tmp_path / "said"
    task = PRELUDE + "print(os.environ['JAX_COMPILATION_CACHE_DIR'], flush=True); wait_forever()"
    path.write_text(
        "import os, pathlib, signal\n"
        "from trainband.launch import LocalCluster\n"
        "from trainband.launch.options import Restarts\n"
        "def die(task, stream, line):\n"
        f"    pathlib.Path({str(said)!r}).write_text(line)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        f"with LocalCluster(['-c', {task!r}], environ=os.environ, ps=0, workers=1, restarts=Restarts(limit=1),\n"
        "                  on_line=die) as cluster:\n"
        "    cluster.wait()\n"
    )
    assert subprocess.run([sys.executable, str(path)], timeout=DEADLINE_S, check=False).returncode == -signal.SIGKILL
    assert _wait_for_end(_marked(os.environ["TRAINBAND_TEST"]))
    assert "trainband-compiled-" in said.read_text()
    assert not Path(said.read_text()).exists()


def test_where_there_is_no_place_for_what_is_compiled_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    there_is = tempfile.mkdtemp

    def full(*, prefix: str) -> str:
        if prefix == "trainband-compiled-":
            raise OSError("no space")
        return there_is(prefix=prefix)

    monkeypatch.setattr(tempfile, "mkdtemp", full)
    recorder = Recorder()
    script = "print(os.environ.get('JAX_COMPILATION_CACHE_DIR'))"
    with _cluster(recorder, script, ps=0, workers=1, restarts=SOON) as cluster:
        cluster.wait(DEADLINE_S)
    assert recorder.of(WORKER0) == ["None"]
    assert recorder.notes == ["restarted tasks will compile their programs again: no space"]


def test_without_a_place_for_its_secret_no_job_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "mkdtemp", full)
    recorder = Recorder()
    with (
        pytest.raises(ClusterError, match="secret cannot be stored: No space left on device"),
        _cluster(recorder, "print('started')", ps=0, workers=1),
    ):
        pass
    assert recorder.of(WORKER0) == []


def test_the_tasks_share_a_secret_that_is_gone_with_them() -> None:
    recorder = Recorder()
    script = (
        "from pathlib import Path; path = Path(os.environ['TRAINBAND_SECRET_FILE']); "
        "print(path, oct(path.stat().st_mode & 0o777), oct(path.parent.stat().st_mode & 0o777), path.read_text())"
    )
    with _cluster(recorder, script, ps=0, workers=2) as cluster:
        cluster.wait(DEADLINE_S)
    one, other = (line.split() for task in (WORKER0, WORKER1) for line in recorder.of(task) if line)
    assert one[1:] == other[1:]
    path, *modes, secret = one
    assert modes == ["0o600", "0o700"]
    assert len(secret) >= 32
    assert not Path(path).parent.exists()
    assert secret not in " ".join(recorder.notes)


def test_a_task_does_not_start_when_the_launcher_dies_before_the_gate_opens() -> None:
    gate = Path(exec_gate.__file__)
    shut = subprocess.run(
        [sys.executable, "-I", "-S", str(gate), sys.executable, "-c", "print('started')"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert (shut.returncode, shut.stdout, shut.stderr) == (1, b"", b"")
