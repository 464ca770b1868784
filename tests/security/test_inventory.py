"""Every socket that trainband listens on is in the inventory of docs/security.md."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.listening import listening_sockets
from tests.programs import ROOT, Programs

SOURCE = ROOT / "src" / "trainband"
INVENTORY = (ROOT / "docs" / "security.md").read_text().partition("## Inventory")[2].partition("\n## ")[0]

SERVERS = frozenset({"FlightServerBase", "TCPServer", "UnixStreamServer", "HTTPServer", "ThreadingHTTPServer"})
"""Classes that listen."""
CALLS = frozenset(
    {
        *("create_server", "start_server", "start_unix_server", "create_unix_server", "create_datagram_endpoint"),
        *("get_distributed_runtime_service", "make_gloo_tcp_collectives", "ucp_worker_create"),
        *("uvicorn.Server", "make_server", "start_http_server"),
    }
)
"""Functions that listen, or make something that does."""


def listens(tree: ast.Module) -> Iterator[int]:
    """The lines on which a file listens."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            bases = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
            if bases & SERVERS:
                yield node.lineno
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            is_socket = name.endswith(".listen") and all(isinstance(one, ast.Constant) for one in node.args)
            if is_socket or name in CALLS or name.rpartition(".")[2] in CALLS:
                yield node.lineno
        elif isinstance(node, ast.Constant) and node.value in CALLS:  # a C function, called by its name
            yield node.lineno


def files_that_listen() -> set[str]:
    found = set()
    for path in SOURCE.rglob("*.py"):
        if next(listens(ast.parse(path.read_text())), None) is not None:
            found.add(str(path.relative_to(SOURCE)))
    return found


def test_every_listening_socket_is_in_the_inventory() -> None:
    named = set(re.findall(r"`([\w/]+\.py)`", INVENTORY))
    tests = {name for name in named if name.startswith("tests/")}
    assert files_that_listen() <= named, "add what listens there to the inventory of docs/security.md"
    assert not {name for name in named - tests if not (SOURCE / name).is_file()}, "these files have gone"
    assert not {name for name in tests if not (ROOT / name).is_file()}, "these tests have gone"


def test_the_search_finds_each_way_to_listen() -> None:
    text = 'a.listen(5)\nb.listen()\nclass C(socketserver.TCPServer): ...\nuvicorn.Server(x)\n"ucp_worker_create"\n'
    assert sorted(listens(ast.parse(text))) == [1, 2, 3, 4, 5]
    assert not [*listens(ast.parse("transport.listen(address, handler, timeouts)\nfeed.listen(tell)"))]


IN_STEP = """
import time
import jax.numpy as jnp, numpy as np, optax, trainband

def batches():
    while True:
        time.sleep(0.05)
        yield np.ones(4, np.float32)

strategy = trainband.MultiWorkerMirrored(trainband.cluster.resolve())
trainer = trainband.Trainer(
    init=lambda key: {"w": jnp.zeros(())}, loss=lambda params, x: jnp.mean((params["w"] - x) ** 2),
    optimizer=optax.sgd(0.1), strategy=strategy, console=False,
)
with trainband.MonitoredSession(trainer) as session:
    session.run(next(batches()))
    print("in step", flush=True)
    while True:
        session.run(next(batches()))
"""


@pytest.mark.slow
def test_a_job_on_one_machine_listens_on_its_loopback_interface_alone(programs: Programs, tmp_path: Path) -> None:
    """With ps: see `test_a_job_withstands_another_user_of_its_machine`."""
    script = tmp_path / "train.py"
    script.write_text(IN_STEP)
    options = ("--ps", "0", "--workers", "2", "--dashboard", "--metrics-port", "0")
    job = programs.trainband("run", *options, str(script), terminal=False)
    job.wait_for("in step")
    page = job.wait_for(r"the page of this job is at http://([\d.:]+)/")[1]
    metrics = {job.wait_for(rf"metrics of worker:{i} are at http://([\d.:]+)/")[1] for i in range(2)}
    found = [sockets for sockets in listening_sockets(programs.processes()).values() if sockets]
    addresses = set().union(*found)
    assert {page} | metrics <= addresses
    # The guard of the coordination service, and gloo in each worker; the service and the proxy are Unix sockets.
    unnamed = [one for one in addresses - {page} - metrics if not one.startswith(("@", "/"))]
    assert all(one.startswith("127.0.0.1:") for one in unnamed)
    assert len(unnamed) == 3, addresses
    programs.end_all()
