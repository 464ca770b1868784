"""`trainband run --ps 0`: workers that are one job, start again as one, and go on without the one that always fails.

The programs here have what such a job has, and nothing of JAX: worker:0 listens at its address, the others call it,
and whoever loses a peer ends at once, often before the one whose connections were closed as it began to end.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.programs import Programs

RING = """
import json, os, signal, socket, sys, time

config = json.loads(os.environ["TF_CONFIG"])
addresses, index = config["cluster"]["worker"], config["task"]["index"]
host, _, port = addresses[0].rpartition(":")
size = len(addresses)
marks, fault = sys.argv[1:]


def rendezvous():
    '''Connections to the peers, once all are there.'''
    if index == 0:
        with socket.create_server((host, int(port))) as server:
            peers = [server.accept()[0] for _ in range(1, size)]
        for peer in peers:
            peer.sendall(b"go")
        return peers
    while True:
        try:
            peer = socket.create_connection((host, int(port)), timeout=30)
        except ConnectionRefusedError:
            time.sleep(0.01)
            continue
        if peer.recv(2) == b"go":
            return [peer]
        sys.exit("worker:0 has gone")


first = not os.path.exists(os.path.join(marks, "failed"))  # before the rendezvous, after which it may be made
peers = rendezvous()
print(f"worker:{index} of {size} at {addresses[index]} has met the others", flush=True)
if fault == "die once" and first and index == 1:
    open(os.path.join(marks, "failed"), "w").close()
    os.kill(os.getpid(), signal.SIGKILL)
if fault == "fail always" and size == 3 and index == 1:
    raise SystemExit("my card is broken")
if fault == "fail always" and size == 3 or fault == "die once" and first:
    for peer in peers:
        if not peer.recv(1):
            os._exit(75)
        sys.exit("nobody was to say anything")
print(f"worker:{index} has trained", flush=True)
for peer in peers:  # nobody leaves before the others have trained
    peer.shutdown(socket.SHUT_WR)
    peer.recv(1)
"""


def _start(programs: Programs, tmp_path: Path, fault: str, *options: str) -> tuple[str, str]:
    script = tmp_path / "train.py"
    script.write_text(RING)
    run = programs.trainband("run", "--ps", "0", "--workers", "3", *options, str(script), "--", str(tmp_path), fault)
    return run.succeed(), run.stderr


def _reports(stderr: str) -> list[str]:
    """The launcher's, but for that at the end which says that these scripts train nothing together."""
    *notes, alone = [line for line in stderr.splitlines() if line.startswith("trainband: ")]
    assert alone.startswith("trainband: WARNING: no task joined the cluster; ")
    return notes


def test_a_worker_that_is_killed_takes_all_with_it_and_all_come_back(programs: Programs, tmp_path: Path) -> None:
    stdout, stderr = _start(programs, tmp_path, "die once", "--restarts", "2")
    (note,) = _reports(stderr)
    assert re.fullmatch(
        r"trainband: worker:1 failed \(killed by SIGKILL\); (stopping worker:\d(, worker:2)? and )?"
        r"restarting the job in 1 s \(1 of 2\)",
        note,
    )
    assert sorted(re.findall(r"^\[worker:\d\] (worker:\d) has trained$", stdout, re.MULTILINE)) == [
        "worker:0",
        "worker:1",
        "worker:2",
    ]
    places = re.findall(r"of 3 at (\S+) has met", stdout)
    assert len(places) == len(set(places)) > 3


def test_a_worker_that_always_fails_is_left_out(programs: Programs, tmp_path: Path) -> None:
    stdout, stderr = _start(programs, tmp_path, "fail always", "--restarts", "1", "--min-workers", "2")
    notes = _reports(stderr)
    assert len(notes) == 3, stderr
    assert re.fullmatch(r"trainband: worker:1 failed \(exit code 1\); .*restarting the job in 1 s \(1 of 1\)", notes[0])
    assert notes[1].startswith("trainband: worker:1 failed (exit code 1)")
    assert notes[2] == "trainband: worker:1 failed twice; continuing without it on 2 workers (at least 2 are required)"
    assert len(re.findall(r"^\[worker:\d\] worker:\d has trained$", stdout, re.MULTILINE)) == 2
    assert "worker:1 of 2 at" in stdout


def test_without_restarts_the_job_fails_by_the_one_that_was_killed(programs: Programs, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(RING)
    run = programs.trainband("run", "--ps", "0", "--workers", "2", str(script), "--", str(tmp_path), "die once")
    stderr = run.fail(r"^── worker:1 failed: killed by SIGKILL ──", code=137)
    assert re.search(r"^trainband: worker:1 failed \(killed by SIGKILL\)", stderr, re.MULTILINE)
