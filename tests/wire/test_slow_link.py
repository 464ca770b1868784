"""A large frame on a slow link: as long as parts of it arrive, no deadline passes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from trainband.cluster.transport_choice import TRUSTED_FABRIC

STALL_S = 1.5


@pytest.mark.parametrize("kind", ["flight", "ucx"])
def test_a_frame_may_travel_for_longer_than_it_may_stand_still(kind: str) -> None:
    if os.geteuid() != 0 or any(shutil.which(program) is None for program in ("unshare", "ip", "tc")):
        pytest.skip("a slow link needs root and the programs unshare, ip and tc")
    slow = "ip link set lo up && tc qdisc add dev lo root tbf rate 200mbit burst 128kb latency 400ms || exit 77"
    program = sys.executable, "-m", "tests.wire.slow_link", kind, "64", str(STALL_S)
    done = subprocess.run(
        ["unshare", "-n", "sh", "-c", f'{slow}; exec "$@"', "sh", *program],
        env={**os.environ, "UCX_TLS": "tcp", TRUSTED_FABRIC: "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60.0,
    )
    if done.returncode == 77:
        pytest.skip(f"this machine does not let us make a slow link: {done.stderr}")
    assert done.returncode == 0, done.stderr
    whole, took_s, longest_s, share, over = json.loads(done.stdout)
    assert whole
    assert took_s > 2 * STALL_S  # up and down again
    assert longest_s < STALL_S
    assert share > 0.5, "what moves is known while the frame is under way"
    assert over, "nothing moves between frames"
