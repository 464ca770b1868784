"""Ports, addresses and peers that are not as they should be."""

from __future__ import annotations

import os
import signal
import socket

import pytest
from tests.programs import MNIST, Programs

HURRY = "--wait=start_s=3,connect_s=1,call_s=1"


def test_a_port_that_a_stranger_has(programs: Programs, ports: tuple[str, ...]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        address = f"127.0.0.1:{stranger.getsockname()[1]}"
        ps = programs.task("ps:0", ps=[address], workers=ports[:1])
        ps.fail(rf"^error: {address} is taken by another process; end that process \(`ss .*` names it\) or give")


def test_a_port_that_another_ps_has(programs: Programs, ports: tuple[str, ...]) -> None:
    first = programs.task("ps:0", ps=ports[:1], workers=ports[1:2])
    worker = programs.task("worker:0", "--pause_s=0.01", ps=ports[:1], workers=ports[1:2])
    worker.wait_for("^training$")
    second = programs.task("ps:0", ps=ports[:1], workers=ports[1:2])
    second.fail(rf"^error: {ports[0]} is taken by another process; ")
    for task in (worker, first):  # which have not been disturbed
        task.interrupt()
        assert task.wait() == 130
        task.expect_no_noise()


def test_an_address_of_another_machine(programs: Programs, ports: tuple[str, ...]) -> None:
    ps = programs.task("ps:0", ps=["192.0.2.7:2222"], workers=ports[:1])
    ps.fail(r"^error: cannot serve at 192\.0\.2\.7:2222: 192\.0\.2\.7 is not an address of this machine; check")


def test_a_host_that_does_not_exist(programs: Programs, ports: tuple[str, ...]) -> None:
    worker = programs.task("worker:0", HURRY, ps=["nowhere.invalid:2222"], workers=ports[:1])
    worker.fail(r"^error: waited \d+\.\d s for ps:0 at nowhere\.invalid:2222 to come up; check its host name")


def test_an_address_where_packets_vanish(programs: Programs, ports: tuple[str, ...]) -> None:
    """192.0.2.0/24 belongs to nobody (RFC 5737)."""
    worker = programs.task("worker:0", HURRY, ps=["192.0.2.7:2222"], workers=ports[:1])
    worker.fail(r"^error: .*192\.0\.2\.7:2222.*; check that it runs", 60.0)


def test_an_address_where_somebody_else_listens(programs: Programs, ports: tuple[str, ...]) -> None:
    """It takes the connection and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        address = f"127.0.0.1:{stranger.getsockname()[1]}"
        worker = programs.task("worker:0", HURRY, ps=[address], workers=ports[:1])
        worker.fail(rf"^error: .*{address}.*; check that it runs", 60.0)


def test_a_worker_without_its_ps_says_for_whom_it_waits(programs: Programs, ports: tuple[str, ...]) -> None:
    worker = programs.task("worker:0", "--wait=start_s=6", ps=ports[:1], workers=ports[1:2])
    worker.wait_for(rf"^trainband: waiting for ps:0 at {ports[0]} to come up \(\d+ s\)$")
    worker.fail(rf"^error: waited \d+\.\d s for ps:0 at {ports[0]} to come up; check that it runs and that its address")


def test_a_ps_without_workers_says_for_whom_it_waits(programs: Programs, ports: tuple[str, ...]) -> None:
    ps = programs.task("ps:0", ps=ports[:1], workers=ports[1:2])
    ps.wait_for(r"^trainband: waiting for the first worker to join")
    ps.interrupt()
    assert ps.wait() == 130
    ps.expect_no_noise()


def test_two_tasks_that_claim_one_index(programs: Programs, ports: tuple[str, ...]) -> None:
    ps = programs.task("ps:0", ps=ports[:1], workers=ports[1:3])
    first = programs.task("worker:0", "--pause_s=0.01", ps=ports[:1], workers=ports[1:3])
    first.wait_for("^training$")
    second = programs.task("worker:0", ps=ports[:1], workers=ports[1:3])
    second.fail(
        rf"^error: worker:0 is already in the job: process {first.pid} on {socket.gethostname()}, "
        r"last heard from .* s ago\. Give this process another task index, or end that one first\.$"
    )
    for task in (first, ps):
        task.interrupt()
        assert task.wait() == 130


HALF_SET: list[tuple[list[str], dict[str, str], str]] = [
    (["--ps_hosts=a:1", "--worker_hosts=b:1", "--job_name=worker"], {}, "task_index is missing"),
    (["--ps_hosts=a", "--worker_hosts=b:1", "--job_name=ps", "--task_index=0"], {}, "ps_hosts.*the port is missing"),
    ([], {"TF_CONFIG": "{"}, "TF_CONFIG is not JSON"),
    ([], {"TF_CONFIG": '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}'}, "at least one ps"),
]


def test_half_set_clusters(programs: Programs) -> None:
    """All at once; tests/cluster/test_resolvers.py has the other ways to get it wrong."""
    started = [
        (programs.python(f"mnist.py {flags} {environ}", str(MNIST), *flags, environ=environ), message)
        for flags, environ, message in HALF_SET
    ]
    for program, message in started:
        errors = program.fail(rf"^error: .*{message}")
        assert errors.count("\n") == 1, program.output


@pytest.mark.parametrize("command", ["status", "status --json"])
def test_the_status_of_nobody(command: str, programs: Programs, ports: tuple[str, ...]) -> None:
    program = programs.trainband(*command.split(), ports[0], "--timeout=60")
    errors = program.fail(rf"^error: nothing listens at {ports[0]}\. Give trainband status the address", code=2)
    assert errors.count("\n") == 1


def test_the_status_of_somebody_who_is_stopped(programs: Programs, ports: tuple[str, ...]) -> None:
    ps = programs.task("ps:0", ps=ports[:1], workers=ports[1:2])
    ps.wait_for("waiting for the first worker")
    os.kill(ps.pid, signal.SIGSTOP)
    program = programs.trainband("status", ports[0], "--timeout=1")
    program.fail(rf"^error: {ports[0]} gave no answer in 1 s\. Give trainband status", code=2)
    os.kill(ps.pid, signal.SIGCONT)
    ps.interrupt()
    assert ps.wait() == 130
