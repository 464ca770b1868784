"""A TensorFlow 2 job of one ps and one worker withstands its other worker, and programs that no worker survives."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainband.compat.tf2 as tf
from tests.programs import until
from tests.ps.hostile import mutated_bytes, with_module
from tests.security.insiders import ATTACKS, QUICK, VECTOR, Attack, Target, closure_of, opened
from trainband.cluster.credentials import new_secret, write_secret
from trainband.cluster.identity import Identity
from trainband.cluster.resolvers.credentials import SECRET_FILE
from trainband.compat.tf1.graphs.errors import OpError
from trainband.compat.tf2.coordinator import records as r
from trainband.compat.tf2.coordinator.link import Link
from trainband.compat.tf2.coordinator.programs import exported
from trainband.errors import PeerError
from trainband.launch.ports import ReservedPorts
from trainband.ps.program.check.check import checked_function
from trainband.ps.program.limits import ProgramLimits
from trainband.wire.network import Network

CRASHING = (1203, 2252)
"""With which the reader of JAX 0.12 ends by a segmentation fault, and by an abort. In other versions they need not."""
MUTATIONS = 20
CRASH_S = 60.0
"""For a server whose checker has to be started again."""
LYING_LU = """
module { func.func public @main(%x: tensor<3xf32>) -> tensor<3xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %a = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<f32>) -> tensor<3000x3000xf32>
  %r:3 = stablehlo.custom_call @lapack_sgetrf_ffi(%a) {mhlo.backend_config = {},
      operand_layouts = [dense<[0, 1]> : tensor<2xindex>], result_layouts = [dense<[0, 1]> : tensor<2xindex>,
      dense<0> : tensor<1xindex>, dense<> : tensor<0xindex>]}
    : (tensor<3000x3000xf32>) -> (tensor<3000x3000xf32>, tensor<1xi32>, tensor<i32>)
  %c = stablehlo.convert %r#1 : (tensor<1xi32>) -> tensor<1xf32>
  %s = stablehlo.reshape %c : (tensor<1xf32>) -> tensor<f32>
  %w = stablehlo.broadcast_in_dim %s, dims = [] : (tensor<f32>) -> tensor<3xf32>
  return %w : tensor<3xf32> } }
"""
"""LU of a matrix whose 3,000 pivots have room for one."""


class Job:
    """One ps and one worker in this process, with a secret, and a coordinator of them."""

    def __init__(self) -> None:
        with ReservedPorts(2) as reserved:
            addresses = [f"127.0.0.1:{port}" for port in reserved.ports]
            spec = tf.train.ClusterSpec({"worker": addresses[:1], "ps": addresses[1:]})
            self.servers = [tf.distribute.Server(spec, job_name=job, task_index=0) for job in ("worker", "ps")]
        self.target = Target(addresses[1], addresses[0], "theirs", lambda who: Network(identity=who))
        self.ps, self.worker = self.attached("theirs")
        self.ps.ask(r.Put((7,), (VECTOR,)), [np.ones(3, np.float32)], QUICK.stall_s)

    def attached(self, incarnation: str) -> tuple[Link, Link]:
        """The streams of a coordinator."""
        who, hello = Identity("chief:0", incarnation), r.Hello(incarnation, coordinates=True)
        with ExitStack() as stack:
            ps = stack.enter_context(closing(opened(self.target, who, self.target.ps, hello)))
            ps.ask(r.Commit(), [], QUICK.stall_s)
            worker = stack.enter_context(closing(opened(self.target, who, self.target.worker, hello)))
            worker.ask(r.Attach((self.target.ps,)), [], QUICK.stall_s)
            stack.pop_all()
        return ps, worker

    def run(self, data: bytes, number: int = 1) -> Any:
        """What the worker makes of three ones by this program."""
        self.worker.send(*closure_of(data, number))
        frame = self.worker.ask(r.Run(number, 0), [np.ones(3, np.float32)], CRASH_S)
        return frame.body[0].view(np.float32).copy()

    def expect_alive(self) -> None:
        """Fails where one of the two does not do its work any more."""
        assert self.run(exported(lambda x: [x * 3], [VECTOR], "cpu"), 1000).tolist() == [3, 3, 3]
        assert self.ps.ask(r.Commit(read=(7,)), [], QUICK.stall_s).body[0].view(np.float32).tolist() == [1, 1, 1]

    def close(self) -> None:
        """Ends all."""
        for link in (self.ps, self.worker):
            link.close()
        for server in self.servers:
            server.stop()


@pytest.fixture(scope="module", autouse=True)
def secret(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The job's secret, in the environment of all its tasks."""
    path: Path = tmp_path_factory.mktemp("secret") / "secret"
    write_secret(path, new_secret())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SECRET_FILE, str(path))
        yield


@pytest.fixture(scope="module")
def job() -> Iterator[Job]:
    with closing(Job()) as found:
        yield found


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda one: one.name)
def test_a_job_withstands_its_worker(job: Job, attack: Attack) -> None:
    assert attack.run(job.target) == ""
    job.expect_alive()


def test_a_program_that_writes_past_its_memory_is_refused(job: Job) -> None:
    program = with_module(exported(lambda x: [x + 1], [VECTOR], "cpu"), LYING_LU)
    with pytest.raises(OpError, match="lapack_sgetrf_ffi with other shapes"):
        job.run(program)
    with pytest.raises(OpError, match="lapack_sgetrf_ffi with other shapes"):
        job.ps.ask(r.Define(1), [np.frombuffer(program, np.uint8)], QUICK.stall_s)
    job.expect_alive()


def test_changed_bytes_end_neither_the_ps_nor_the_worker(job: Job) -> None:
    program = checked_function(
        exported(lambda x: [x * x + 1], [VECTOR], "cpu"), "cpu", ProgramLimits()
    )  # without lines
    accepted = 0
    for number, seed in enumerate((*CRASHING, *range(MUTATIONS))):
        data = mutated_bytes(program, random.Random(seed))
        with suppress(OpError):
            if number % 2:
                job.run(data, seed)
            else:
                job.ps.ask(r.Define(seed), [np.frombuffer(data, np.uint8)], CRASH_S)
            accepted += 1
    assert 0 < accepted < MUTATIONS
    job.expect_alive()


def test_a_coordinator_that_is_started_again_may_attach() -> None:
    with closing(Job()) as job:
        with pytest.raises(PeerError, match="serves another coordinator, which is connected from"):
            job.attached("again")
        for link in (job.ps, job.worker):
            link.close()
        found: list[tuple[Link, Link]] = []

        def attached() -> bool:
            with suppress(PeerError):
                found.append(job.attached("again"))
            return bool(found)

        until(attached, "the servers let the next coordinator in")
        job.ps, job.worker = found[0]
        with pytest.raises(OpError, match="has no variable 7"):
            job.ps.ask(r.Commit(read=(7,)), [], QUICK.stall_s)
        with pytest.raises(OpError, match="has no closure 1"):
            job.worker.ask(r.Run(1, 0), [], QUICK.stall_s)
