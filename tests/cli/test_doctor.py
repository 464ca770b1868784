"""`trainband doctor`: what it makes of what machines say."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import trainband.cli.doctor as doctor_module
from trainband.cli.doctor.decisions import routes, security
from trainband.cli.doctor.finding import Finding, Mark
from trainband.cli.doctor.machine import locked_memory
from trainband.cli.doctor.networks import rdma_ports
from trainband.cli.doctor.subprocesses import ask_python
from trainband.cli.doctor.ucx_library import describe, parse_ucx_info
from trainband.cluster.transport_choice import TransportChoice

UCX_INFO = """
# Memory domain: tcp
#     Component: tcp
#
#      Transport: tcp
#         Device: eth0
#           Type: network
#  System device: <unknown>
#
#      capabilities:
#            bandwidth: 11.27/ppn + 0.00 MB/sec
#      device priority: 0
#       device address: 6 bytes
#
#      Transport: tcp
#         Device: lo
# Connection manager: tcp
#      max_conn_priv: 2064 bytes
#
# Memory domain: mlx5_0
#      Transport: rc_mlx5
#         Device: mlx5_0:1
#      Transport: cuda_copy
#         Device: cuda
"""


def marks(findings: list[Finding]) -> Mapping[str, Mark]:
    return {finding.name: finding.mark for finding in findings}


def test_transports_of_ucx() -> None:
    transports = parse_ucx_info(UCX_INFO)
    assert transports == {"tcp": ["eth0", "lo"], "rc_mlx5": ["mlx5_0:1"], "cuda_copy": ["cuda"]}
    shown, rdma, gpu = describe(transports, has_rdma=True)
    assert shown.text == "tcp (eth0, lo), rc_mlx5 (mlx5_0:1), cuda_copy (cuda)"
    assert (rdma.mark, rdma.text, gpu.text) == (Mark.OK, "rc_mlx5", "cuda_copy")


def test_a_ucx_without_rdma_matters_where_there_are_rdma_ports() -> None:
    assert marks(describe({"tcp": ["eth0"]}, has_rdma=True))["RDMA"] is Mark.PROBLEM
    assert marks(describe({"tcp": ["eth0"]}, has_rdma=False))["RDMA"] is Mark.INFO


def test_rdma_ports(tmp_path: Path) -> None:
    for device, state in (("mlx5_0", "4: ACTIVE"), ("mlx5_1", "1: DOWN")):
        port = tmp_path / "sys/class/infiniband" / device / "ports/1"
        port.mkdir(parents=True)
        for name, text in (("state", state), ("rate", "400 Gb/sec (4X NDR)"), ("link_layer", "InfiniBand")):
            (port / name).write_text(f"{text}\n")
    up, down = rdma_ports(tmp_path)
    assert (up.name, up.mark, up.text) == ("mlx5_0:1", Mark.OK, "InfiniBand, active, 400 Gb/sec (4X NDR)")
    assert (down.name, down.mark) == ("mlx5_1:1", Mark.PROBLEM)
    assert not down.stops_jobs
    assert rdma_ports(tmp_path / "sys") == []


@pytest.mark.parametrize(
    ("soft", "hard", "has_rdma", "mark"),
    [
        (8 << 20, 8 << 20, True, Mark.PROBLEM),
        (8 << 20, -1, True, Mark.PROBLEM),
        (8 << 20, 8 << 20, False, Mark.INFO),
        (64 << 20, -1, True, Mark.OK),
        (-1, -1, True, Mark.OK),
    ],
)
def test_locked_memory(soft: int, hard: int, has_rdma: bool, mark: Mark) -> None:
    found = locked_memory(soft, hard, has_rdma=has_rdma)
    assert found.mark is mark
    assert ("LimitMEMLOCK" in found.advice) == (mark is Mark.PROBLEM and hard >= 0)


def test_a_ucx_that_does_not_start_is_passed_over() -> None:
    ways = (TransportChoice.SHARED_MEMORY, TransportChoice.UCX, TransportChoice.FLIGHT)
    assert [found.text for found in routes(ways, ucx_works=False)] == ["shared memory", "Arrow Flight"]
    assert routes(ways, ucx_works=True)[1].text.startswith("UCX")
    assert marks(routes((TransportChoice.SHARED_MEMORY,), ucx_works=True))["other machines"] is Mark.PROBLEM


def test_a_secret_that_cannot_be_read_stops_a_job(tmp_path: Path) -> None:
    assert security({"TRAINBAND_SECRET_FILE": str(tmp_path / "none")}).stops_jobs
    assert security({"TRAINBAND_TLS": str(tmp_path)}).stops_jobs
    assert security({}).mark is Mark.MISSING


def test_a_machine_needs_the_certificates_of_its_own_tasks_alone(tmp_path: Path) -> None:
    for name in ("ca.pem", "worker-0.pem", "worker-0.key"):
        (tmp_path / name).write_text("x")
        (tmp_path / name).chmod(0o600)
    found = security({"TRAINBAND_TLS": str(tmp_path)})
    assert (found.mark, found.facts) == (Mark.OK, {"certificates": ["worker-0"]})
    (tmp_path / "worker-0.key").chmod(0o644)
    assert security({"TRAINBAND_TLS": str(tmp_path)}).stops_jobs


def test_a_process_that_hangs_is_given_up() -> None:
    assert ask_python("import time; time.sleep(600)", 0.2).code is None


def test_a_real_machine_and_an_address_where_nobody_is() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "trainband.cli.main", "doctor", "--json", "--timeout=60", address],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(doctor_module.__file__).parents[3])},
    )
    assert done.stderr == ""
    found = json.loads(done.stdout)
    assert (done.returncode, found["ok"]) == (1, False)
    sections = found["sections"]
    assert list(sections) == ["machine", "accelerators", "network", "transports", "peers", "trainband would use"]
    (peer,) = sections["peers"]
    assert (peer["name"], peer["mark"], peer["facts"]) == (address, "problem", {"error": "Unreachable"})
    named = {finding["name"]: finding for findings in sections.values() for finding in findings}
    assert named["JAX"]["mark"] == "ok"
    assert named["loopback port"]["mark"] == "ok"
    assert all(finding["advice"] for finding in named.values() if finding["mark"] == "problem")
