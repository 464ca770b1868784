"""The process that checks update programs: what it survives, what its ps survives, and what passes."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
import optax
import pytest
from tests.programs import ROOT, until
from tests.ps.hostile import CALLBACK, ENDLESS, SIZE, honest, mutate_and_check, of_function, of_text, plan, program_of
from tests.ps.jobs import FAST, in_thread, spec_of
from tests.ps.plans import plan_of
from tests.ps.test_program_verifier import ALLOWED

from trainband.cluster import Cluster, Task
from trainband.cluster.credentials import new_secret, write_secret
from trainband.errors import ProtocolError, Refused
from trainband.ps.program import slow_updates
from trainband.ps.program.check import checker as checkers
from trainband.ps.program.check.checker import CheckedPrograms, ProgramChecker
from trainband.ps.program.check.checker_process import may_fork
from trainband.ps.program.check.records import send
from trainband.ps.program.compiled_program import CompiledProgram, Program
from trainband.ps.program.limits import ProgramLimits
from trainband.ps.program.update_program import UpdateProgram
from trainband.ps.server import Server
from trainband.ps.service.service import ParameterService
from trainband.version import VERSION
from trainband.wire.memory.transport import MemoryTransport
from trainband.wire.messages import calls as m
from trainband.wire.messages.codec import decode, encode

TRAINED = (True,)
LIMITS = ProgramLimits()


@pytest.fixture(scope="module")
def checker() -> Iterator[ProgramChecker]:
    """One for all tests: to start it, in a process with threads, means to import JAX."""
    made = ProgramChecker()
    yield made
    made.close()


def check(checker: ProgramChecker, program: UpdateProgram, limits: ProgramLimits = LIMITS) -> UpdateProgram:
    return checker.check(program, "worker:0", TRAINED, limits)


# --- what passes


def _mask(params: Any) -> Any:
    return jax.tree.map(lambda p: p.ndim > 1, params)


def _labels(params: Any) -> Any:
    return {name: "matrix" if name == "matrix" else "rest" for name in params}


_SCHEDULE = optax.warmup_cosine_decay_schedule(0.0, 1e-2, 5, 50)
OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda: optax.sgd(0.1),
    "momentum": lambda: optax.sgd(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: optax.adam(1e-3),
    "adam in bfloat16": lambda: optax.adam(1e-3, mu_dtype=jnp.bfloat16),
    "adamw": lambda: optax.adamw(_SCHEDULE, mask=_mask),
    "nadam": lambda: optax.nadam(1e-3),
    "amsgrad": lambda: optax.amsgrad(1e-3),
    "adamax": lambda: optax.adamax(1e-3),
    "adabelief": lambda: optax.adabelief(1e-3),
    "adadelta": lambda: optax.adadelta(1e-3),
    "adan": lambda: optax.adan(1e-3),
    "adafactor": lambda: optax.adafactor(1e-2, min_dim_size_to_factor=2),
    "adagrad": lambda: optax.adagrad(1e-2),
    "fromage": lambda: optax.fromage(1e-2),
    "lamb": lambda: optax.lamb(1e-3),
    "lars": lambda: optax.lars(1e-3),
    "lion": lambda: optax.lion(1e-4),
    "muon": lambda: optax.contrib.muon(1e-3),
    "noisy_sgd": lambda: optax.noisy_sgd(1e-3, key=0),
    "novograd": lambda: optax.novograd(1e-3),
    "optimistic": lambda: optax.optimistic_gradient_descent(0.1),
    "radam": lambda: optax.radam(1e-3),
    "rmsprop": lambda: optax.rmsprop(1e-3, centered=True, momentum=0.9),
    "rprop": lambda: optax.rprop(1e-3),
    "sign_sgd": lambda: optax.sign_sgd(1e-3),
    "yogi": lambda: optax.yogi(1e-3),
    "schedule free": lambda: optax.contrib.schedule_free_adamw(1e-3),
    "prodigy": lambda: optax.contrib.prodigy(),
    "table schedule": lambda: optax.sgd(lambda count: jnp.asarray([0.1, 0.2, 0.3])[jnp.minimum(count, 2)]),
    "injected hyperparameters": lambda: optax.inject_hyperparams(optax.adam)(learning_rate=_SCHEDULE),
    "multi_transform": lambda: optax.multi_transform({"matrix": optax.sgd(1e-2), "rest": optax.adam(1e-1)}, _labels),
    "frozen": lambda: optax.multi_transform({"matrix": optax.set_to_zero(), "rest": optax.sgd(1e-1)}, _labels),
    "accumulation": lambda: optax.MultiSteps(optax.adam(1e-3), 3),
    "clipping": lambda: optax.chain(
        optax.clip(1.0), optax.clip_by_global_norm(1.0), optax.adaptive_grad_clip(0.1), optax.sgd(0.1)
    ),
    "centralize": lambda: optax.chain(optax.centralize(), optax.sgd(0.1)),
    "noise": lambda: optax.chain(optax.add_noise(0.1, 0.5, 3), optax.trace(0.9), optax.scale(-0.1)),
    "lookahead of finite": lambda: optax.apply_if_finite(optax.adam(1e-3), 5),
    "ema": lambda: optax.chain(optax.ema(0.9), optax.sgd(0.1)),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_optimizers_of_optax_pass(name: str, checker: ProgramChecker) -> None:
    params = {"matrix": np.ones((6, 4), np.float32), "vector": np.ones(5, np.float32), "scalar": np.float32(1)}
    program, trained = program_of(plan_of(params, OPTIMIZERS[name]()))
    canonical = checker.check(program, "worker:0", trained, LIMITS)
    assert program.signature is not None
    blocks = tuple(np.full(block.size, 0.5, block.dtype) for block in program.signature.blocks)
    found = []
    for one in (program, canonical):
        compiled = CompiledProgram(one, "the test", trained)
        state = compiled.initialise(compiled.owned(blocks))
        found.append(compiled.update(compiled.owned(blocks), state, blocks, compiled.owned(blocks)))
    jax.tree.map(np.testing.assert_array_equal, *jax.device_get(found))


def test_a_slow_update_names_the_task_that_defined_the_program(
    checker: ProgramChecker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slow_updates, "LEAST_S", 0.0)
    monkeypatch.setattr(slow_updates, "TIMES", 0.0)
    said: list[str] = []
    program = CheckedPrograms(LIMITS, checker, said.append)(honest(), "worker:3", TRAINED)
    blocks = tuple(np.full(SIZE, 0.5, np.float32) for _ in TRAINED)
    counts = []
    for _ in range(3):
        program.update(program.owned(blocks), (), blocks, program.owned(blocks))
        counts.append(len(said))
    assert counts == [0, 1, 1]  # not of the first, which may compile, and once a minute
    assert "worker:3 has defined the program" in said[0]


def test_what_optimizers_need_compiles_and_runs_in_the_confined_process(checker: ProgramChecker) -> None:
    names = ("sort", "random", "qr", "eigh", "full svd", "cholesky", "inverse", "triangular solve", "complex")
    for name in names:
        assert check(checker, of_function(ALLOWED[name])).update, name
    # Several threads of XLA's, and more memory than its allocator has at first.
    large = of_function(lambda p, g: p - g * jnp.sum(jnp.tile(p, (512, 64)) @ jnp.tile(g, (512, 64)).T))
    assert check(checker, large).update


# --- what does not


def test_a_ps_lives_on_whatever_it_is_sent() -> None:
    with Server(
        Cluster(spec=spec_of(1, 1), task=Task("ps", 0)),
        transport=(transport := MemoryTransport()),
        timeouts=FAST,
        say=lambda _: None,
    ):
        connection = transport.connect("ps0:1", FAST)
        connection.call("join", encode(_join()), timeout_s=10.0)
        for body, words in (
            (CALLBACK, "a custom call of 'xla_ffi_python"),
            (ENDLESS, "loop without a proven bound"),
        ):
            with pytest.raises(Refused, match=f"the update program of worker:0 is refused: its function.*{words}"):
                connection.call("define", encode(_define(of_text(body))), timeout_s=60.0)
        answer = connection.call("define", encode(_define(honest())), timeout_s=60.0)
        assert decode(answer, m.Joined, "the ps").defined
        connection.close()


def _join() -> m.Join:
    return m.Join("worker:0", "life", "here", 7, plan().description, version=VERSION)


def _define(program: UpdateProgram) -> m.Define:
    return m.Define(0, "life", 0, plan().description, program.initialise, program.update)


def test_changed_bytes_end_no_more_than_the_checker(checker: ProgramChecker) -> None:
    program, trained = program_of(plan_of({"w": np.ones(5, np.float32)}, optax.adam(1e-3)))
    accepted = [mutate_and_check(i.to_bytes(4, "little"), program, trained, checker) for i in range(200)]
    assert not all(accepted)
    assert check(checker, honest()).update  # and it, or its successor, goes on


def test_a_program_that_ends_the_checker_is_refused(checker: ProgramChecker, monkeypatch: pytest.MonkeyPatch) -> None:
    check(checker, honest())
    first = checker.pid
    assert first is not None
    os.kill(first, signal.SIGSTOP)  # so that it does not answer first

    def send_and_crash(connection: Any, data: bytes) -> None:
        send(connection, data)
        for number in (signal.SIGSEGV, signal.SIGCONT):
            os.kill(first, number)

    monkeypatch.setattr(checkers, "send", send_and_crash)
    bad = of_function(lambda p, g: p - 2 * g)
    words = r"the update program of worker:0 crashed the checker \(signal 11\): it is damaged"
    with pytest.raises(Refused, match=words):
        check(checker, bad)
    monkeypatch.undo()
    with pytest.raises(Refused, match=words):
        check(checker, bad)  # it is remembered: nothing is started for it
    assert checker.pid is None
    assert check(checker, replace(honest(), jax="again")).update
    assert checker.pid not in (None, first)


def test_a_program_that_takes_too_long_is_refused() -> None:
    checker = ProgramChecker()
    try:
        with pytest.raises(Refused, match=r"the update program of worker:0 did not finish in 0\.01\d* s"):
            check(checker, honest(), ProgramLimits(time_s=0.01, time_s_per_mib=0.1))
        assert checker.pid is None  # it was killed
    finally:
        checker.close()


def test_a_program_may_not_take_more_memory_than_it_is_allowed(checker: ProgramChecker) -> None:
    large = of_function(lambda p, g: p + jnp.sum(jnp.sort(jnp.outer(jnp.tile(p, 1000), jnp.tile(g, 1000)))))
    with pytest.raises(Refused, match=r"the update program of worker:0 (crashed the checker|cannot be checked)"):
        check(checker, large, ProgramLimits(memory_bytes=1 << 20, tensor_bytes=1 << 30, work=1 << 40))


def sorted_many(count: int) -> UpdateProgram:
    """A program with this many sorted arrays of 244 MiB at once."""

    def update(params: jax.Array, gradient: jax.Array) -> Any:
        matrix = jnp.outer(jnp.tile(params, 1000), jnp.tile(gradient, 1000))
        return params + jnp.sum(math.prod(jnp.sort(matrix * i) for i in range(1, count + 1)))

    return of_function(update)


def test_a_program_that_needs_much_memory_is_not_run_in_its_check(checker: ProgramChecker) -> None:
    assert check(checker, honest()).checked_s is not None
    large = check(checker, sorted_many(2), ProgramLimits(work=1 << 40))
    assert large.update
    assert large.checked_s is None


def test_a_checker_that_holds_much_memory_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    checker = ProgramChecker()
    monkeypatch.setattr(checkers, "_MOST_IDLE_BYTES", 0)
    try:
        assert check(checker, honest()).update
        assert checker.pid is None
    finally:
        checker.close()


def test_a_program_is_refused_for_the_memory_that_a_run_would_need(checker: ProgramChecker) -> None:
    check(checker, honest())
    pid = checker.pid
    with pytest.raises(
        Refused, match=r"of worker:0 is refused: a run of it needs 1,\d{3} MiB .*memory_bytes=.* has, 768 MiB"
    ):
        check(checker, sorted_many(6), ProgramLimits(memory_bytes=768 << 20, memory_per_shard_byte=1, work=1 << 40))
    assert checker.pid == pid  # it is said before anything runs


def test_bytes_that_are_no_program_are_a_protocol_error(checker: ProgramChecker) -> None:
    with pytest.raises(ProtocolError, match=r"the update program that worker:0 exported with JAX .* cannot be loaded"):
        check(checker, replace(honest(), update=b"garbage"))


def test_a_ps_answers_while_a_program_is_checked() -> None:
    started, go_on = threading.Event(), threading.Event()

    def slow(program: UpdateProgram, sender: str, trained: Any, /) -> Program:
        started.set()
        assert go_on.wait(60.0)
        return CompiledProgram(program, sender, trained)

    service = ParameterService(
        Cluster(spec=spec_of(1, 1), task=Task("ps", 0)), timeouts=FAST, say=lambda _: None, compile_program=slow
    )
    service.call("join", encode(_join()))
    defining: Future[Any] = in_thread(lambda: service.call("define", encode(_define(honest()))), "define")
    try:
        assert started.wait(60.0)
        assert decode(service.call("state", b""), m.JobState, "the ps").live == ("worker:0",)
        assert service.status().task == "ps:0"
        assert not defining.done()
    finally:
        go_on.set()
    assert decode(defining.result(60.0), m.Joined, "the ps").defined


# --- the process


def test_what_cannot_be_forked_is_started(checker: ProgramChecker) -> None:
    jax.devices()
    assert not may_fork()
    check(checker, honest())
    pid = checker.pid
    assert pid is not None
    assert os.readlink(f"/proc/{pid}/fd/1") == os.devnull  # noqa: PTH115 - a link that is no path
    kinds = {os.readlink(f"/proc/{pid}/fd/{name}").partition(":")[0] for name in os.listdir(f"/proc/{pid}/fd")}  # noqa: PTH115, PTH208
    assert kinds <= {os.devnull, "socket", "anon_inode", "pipe"}


A_PS = """
import os, sys, time
import msgspec
from pathlib import Path
import jax
import trainband
from trainband.cluster import Cluster, ClusterSpec, Task
from trainband.ps.program.check.checker import SHARED as checker
from trainband.ps.program.limits import ProgramLimits
from trainband.ps.program.signature import Signature
from trainband.ps.program.update_program import UpdateProgram


def holds(pid, text):
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            first, last = (int(end, 16) for end in line.split()[0].split("-"))
            if line.split()[1].startswith("rw"):
                memory.seek(first)
                if text in memory.read(last - first):
                    return True
    return False


kept = open(sys.argv[1], "rb")
initialise, update, signature = msgspec.msgpack.decode(kept.read(), type=tuple[bytes, bytes, Signature])
spec = ClusterSpec({"ps": ["127.0.0.1:1"], "worker": ["127.0.0.1:2"]})
trainband.ParameterServer(Cluster(spec=spec, task=Task("ps", 0)))
pid = checker.pid
assert pid is not None
secret = Path(os.environ["TRAINBAND_SECRET_FILE"]).read_bytes().strip()
assert (holds(os.getpid(), secret), holds(pid, secret)) == (True, False)
checker.prepare()
assert checker.pid == pid
assert Path(f"/proc/{pid}/cmdline").read_bytes() == Path("/proc/self/cmdline").read_bytes()  # it is a fork
canonical = checker.check(UpdateProgram(initialise, update, "", signature), "worker:0", (True,), ProgramLimits())
assert checker.pid == pid
limits = dict(line.rsplit(None, 3)[:2] for line in Path(f"/proc/{pid}/limits").read_text().splitlines())
status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
print(limits["Max core file size"], limits["Max file size"], status["NoNewPrivs"].strip(), status["Seccomp"].strip())
print(sorted({os.readlink(f"/proc/{pid}/fd/{name}").partition(":")[0] for name in os.listdir(f"/proc/{pid}/fd")}))
print(pid, flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc, and forks here")
def test_a_ps_forks_a_checker_that_holds_nothing_and_ends_with_it(tmp_path: Path) -> None:
    program = honest()
    file = tmp_path / "program"
    file.write_bytes(msgspec.msgpack.encode((program.initialise, program.update, program.signature)))
    secret = tmp_path / "job.secret"
    write_secret(secret, new_secret())
    ps = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", A_PS, str(file)],
        cwd=ROOT,
        env={**os.environ, "TRAINBAND_SECRET_FILE": str(secret), "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert ps.stdout is not None
    try:
        assert ps.stdout.readline().split() == ["1", "0", "1", "2"]
        assert ps.stdout.readline().strip() == str(["/dev/null", "socket"])
        pid = int(ps.stdout.readline())
    finally:
        ps.kill()
        ps.wait()
        ps.stdout.close()
    until(lambda: not Path(f"/proc/{pid}").exists(), "the checker to end with its ps")
