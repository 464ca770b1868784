"""Machines that are reached by ssh: network namespaces with an sshd in each."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.machines import Machines

SSH_PORT = 22
START_S = 20.0


@contextmanager
def reachable_by_ssh(machines: Machines, directory: Path) -> Iterator[str]:
    """Runs an sshd on every machine but the first. Gives the command, for the first machine, that reaches them.

    Skips the test where the programs are missing.
    """
    sshd = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/usr/bin")
    if sshd is None or shutil.which("ssh-keygen") is None or shutil.which("ssh") is None:
        pytest.skip("ssh, ssh-keygen or sshd is not installed: make platforms installs them on Debian, as root")
    for name in ("host", "user"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", directory / name], check=True, timeout=20.0
        )
    (directory / "user.pub").rename(directory / "authorized")
    Path("/run/sshd").mkdir(exist_ok=True)  # an empty directory that sshd insists on
    (directory / "config").write_text(
        f"Port {SSH_PORT}\nHostKey {directory}/host\nAuthorizedKeysFile {directory}/authorized\nPidFile none\n"
        "PermitRootLogin prohibit-password\nPasswordAuthentication no\nUsePAM no\nStrictModes no\nPrintMotd no\n"
        "AcceptEnv TRAINBAND_TEST PYTHONPATH NPROC PJRT_NPROC UCX_TLS\n"
    )
    daemons = []
    try:
        for name in machines.names[1:]:
            command = ["ip", "netns", "exec", name, sshd, "-D", "-e", "-f", str(directory / "config")]
            daemons.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        for name, daemon in zip(machines.names[1:], daemons, strict=True):
            _await(name, daemon)
        options = f"-i {directory}/user -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
        yield f"ssh {options} -o 'SendEnv=TRAINBAND_TEST PYTHONPATH NPROC PJRT_NPROC UCX_TLS'"
    finally:
        for daemon in daemons:
            daemon.terminate()
        for daemon in daemons:
            daemon.wait(20.0)


def _await(machine: str, daemon: subprocess.Popen[bytes]) -> None:
    """Waits until the machine's sshd listens."""
    until = time.monotonic() + START_S
    while time.monotonic() < until and daemon.poll() is None:
        listed = subprocess.run(
            ["ip", "netns", "exec", machine, "ss", "-Htln", f"sport = :{SSH_PORT}"], capture_output=True, timeout=10.0
        )
        if listed.stdout:
            return
        time.sleep(0.05)
    pytest.fail(f"no sshd listens on {machine} at {socket.gethostname()}")
