"""Every attack of the toolbox, from another machine and as another user of this one, on a job that trains on."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

from tests.listening import listening_sockets
from tests.machines import Machines
from tests.programs import ROOT, Program, Programs, until
from tests.security.attacks import ATTACKS
from trainband.cluster.resolvers.credentials import SECRET_FILE

FLAGS = ("--train_steps=1000000", "--pause_s=0.02")
NOBODY = 65534
MUTE_S = 55.0
"""A refusal is said once a minute; the test reads it a moment later."""
MOST_BYTES = 400 << 20
"""How much a ps may grow by while it is attacked."""
UNBOUNDED = "squeezed call"
"""What gRPC unpacks before anybody is asked; docs/security.md says so. The job goes on all the same."""
NAMES = [one.name for one in ATTACKS if one.name != UNBOUNDED]


def resident_bytes(pid: int) -> int:
    """What a process has had in memory at most."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) << 10


def step_of(programs: Programs, address: str, machine: str = "") -> int:
    """The job's global step, asked as its user does; 0 where nobody answers."""
    asked = programs.trainband("status", "--json", address, machine=machine)
    return int(json.loads(asked.stdout)["version"]) if asked.wait() == 0 else 0


def attack(programs: Programs, *arguments: str, prefix: Sequence[str] = ()) -> Program:
    """The toolbox, without the job's secret."""
    command = ("env", "-u", SECRET_FILE, *prefix, sys.executable, "-m", "tests.security.attacks", *arguments)
    return programs.start("attacker", *command, environ={"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"})


ATTACKS_S = 300.0
"""For all of them, some of which are thousands of calls, on cores that others use too."""


def survives(
    programs: Programs, ps: Program, address: str, attacker: Callable[..., Program], machine: str = ""
) -> None:
    """Fails where an attack achieves something, or the job notices."""
    at_most = resident_bytes(ps.pid) + MOST_BYTES
    report = attacker(*NAMES).succeed(ATTACKS_S)
    assert report.count(": refused (") == len(NAMES), report
    assert resident_bytes(ps.pid) < at_most
    assert ": refused (" in attacker(UNBOUNDED).succeed()
    before = step_of(programs, address, machine)
    until(lambda: step_of(programs, address, machine) > before, "a step after the attacks")
    refused = [
        (at_s, line.partition(" refused ")[2].partition(": ")[2]) for at_s, line in ps.lines if " refused " in line
    ]
    assert any("no credentials of this job" in reason for _, reason in refused)
    said_at_s: dict[str, float] = {}
    for at_s, reason in refused:  # a slow machine takes longer than a minute for the attacks
        since_s = at_s - said_at_s.get(reason, -math.inf)
        assert since_s > MUTE_S, f"said again after {since_s:.1f} s: {reason}"
        said_at_s[reason] = at_s
    assert "\x1b" not in ps.output
    ps.expect_no_noise()
    programs.end_all()


@pytest.mark.slow
@pytest.mark.limit(500)
def test_a_job_withstands_another_machine(programs: Programs, machines: Machines) -> None:
    workers = machines.addresses[1:2]
    job = programs.cluster(*FLAGS, ps=machines.addresses[:1], workers=workers, machines=machines.names[:2])
    until(lambda: step_of(programs, machines.addresses[0], machines.names[0]) > 0, "the first step")
    prefix = ("ip", "netns", "exec", machines.names[2])
    attacker = partial(attack, programs, machines.addresses[0], prefix=prefix)
    survives(programs, job["ps:0"], machines.addresses[0], attacker, machines.names[0])


@pytest.mark.smoke
@pytest.mark.limit(500)
def test_a_job_withstands_another_user_of_its_machine(programs: Programs, ports: tuple[str, ...]) -> None:
    """Started by hand, without any secret: its tasks use their user's own."""
    if os.geteuid() != 0:
        pytest.skip("to be another user takes root")
    job = programs.cluster(*FLAGS, ps=ports[:1], workers=ports[1:2])
    until(lambda: step_of(programs, ports[0]) > 0, "the first step")
    listens = listening_sockets(program.pid for program in job.values())
    assert listens[job["worker:0"].pid] == set()
    assert sorted(one.partition("/")[0] for one in listens[job["ps:0"].pid]) == [ports[0], "@trainband"]
    survives(programs, job["ps:0"], ports[0], partial(attack, programs, "--user", str(NOBODY), ports[0]))
