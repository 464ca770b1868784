"""`trainband run --join`: what a job that runs is asked, and what can be wrong with the address."""

from __future__ import annotations

import http.server
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from msgspec import structs

import trainband.cli.run as run_module
from trainband.cli.join import find_places
from trainband.cli.main import main
from trainband.cluster import Cluster, ClusterSpec, Task
from trainband.errors import ClusterError, DeadlineExceeded, PeerError, ProtocolError, Refused, UnknownHost, Unreachable
from trainband.job.statistics import PsStatus
from trainband.launch import ReservedPorts
from trainband.ps.service.service import ParameterService
from trainband.wire.memory.transport import MemoryTransport
from trainband.wire.messages.calls import Vacancy
from trainband.wire.messages.codec import decode, encode
from trainband.wire.network import Network
from trainband.wire.transport import ANYBODY, Caller, Handler, Stream, Tensor, Timeouts

QUICK, PATIENT = Timeouts(connect_s=1.0), Timeouts(connect_s=60.0)
ENVIRON = {**os.environ, "PYTHONPATH": str(Path(run_module.__file__).parents[2])}


class Ps:
    """What the ps of a job answers to somebody who wants to join.

    Args:
      spec: the cluster that it tells of.
      index: its own.
      life: of the job.
    """

    def __init__(self, spec: ClusterSpec, index: int, life: str = "first", *, ended: bool = False) -> None:
        cluster = Cluster(spec=spec, task=Task("ps", index))
        service = ParameterService(cluster, timeouts=PATIENT, say=pytest.fail, incarnation=f"{life} {index}")
        status = decode(service.call("status", b""), PsStatus, "the service")
        self._answers = {"status": encode(structs.replace(status, ended=ended))}
        self._service = service
        self.asked: list[str] = []

    def call(self, action: str, body: bytes, caller: Caller = ANYBODY) -> bytes:  # noqa: ARG002 - the seam has it
        self.asked.append(action)
        return self._answers.get(action) or self._service.call(action, body)

    def stream(self, stream: Stream, caller: Caller = ANYBODY) -> None:  # noqa: ARG002 - the seam has it
        raise AssertionError(f"{stream.peer} opened a stream")

    def tensors(self) -> Sequence[Tensor]:
        return ()

    def read(self, name: str) -> tuple[int, object]:
        raise Refused(name)


class Net:
    """An in-memory network."""

    def __init__(self, owned: ExitStack) -> None:
        self.transport = MemoryTransport()
        self._owned = owned

    def serve(self, address: str, ps: Ps) -> Ps:
        handler: Handler = ps  # type: ignore[assignment]  # it reads nothing
        listener = self.transport.listen(address, handler, PATIENT)
        self._owned.callback(listener.stop, 1.0)
        return ps

    def find(self, address: str, workers: int = 1) -> list[Cluster]:
        return find_places(address, workers, transport=self.transport, timeouts=PATIENT)


@pytest.fixture
def net() -> Iterator[Net]:
    """Its listeners stop with the test."""
    with ExitStack() as owned:
        yield Net(owned)


def spec_of(**jobs: list[str]) -> ClusterSpec:
    return ClusterSpec(jobs)


TWO = spec_of(ps=["10.0.0.1:1", "10.0.0.2:1"], chief=["10.0.0.3:1"], worker=["10.0.0.4:1", "10.0.0.5:1"])


def test_each_place_is_for_a_worker_that_the_job_never_had(net: Net) -> None:
    ps = [net.serve(f"10.0.0.{i + 1}:1", Ps(TWO, i)) for i in range(2)]
    elastic = net.find("10.0.0.1:1", 2)
    assert [str(one.task) for one in elastic] == ["worker:2", "worker:3"]
    assert all(one.elastic and one.spec == TWO for one in elastic)
    assert [one.training_index for one in elastic] == [3, 4]
    assert ps[1].asked == []


def test_the_first_ps_gives_the_names_whichever_is_asked(net: Net) -> None:
    for i in range(2):
        net.serve(f"10.0.0.{i + 1}:1", Ps(TWO, i))
    found = [str(net.find(address)[0].task) for address in ("10.0.0.2:1", "10.0.0.1:1", "10.0.0.2:1")]
    assert found == ["worker:2", "worker:3", "worker:4"]


def test_a_ps_that_is_away_for_a_while_is_passed_over(net: Net) -> None:
    net.serve("10.0.0.2:1", Ps(TWO, 1))
    assert [str(one.task) for one in net.find("10.0.0.2:1", 2)] == ["worker:2", "worker:3"]


def test_a_ps_may_be_asked_at_another_address_than_workers_use(net: Net) -> None:
    ps = net.serve("10.0.0.1:1", Ps(TWO, 0))
    net.serve("front-door:7", ps)
    assert [str(one.task) for one in net.find("front-door:7", 2)] == ["worker:2", "worker:3"]


def test_a_job_on_loopback_is_joined_from_its_own_machine_only(net: Net) -> None:
    spec = spec_of(ps=["127.0.0.1:2222"], worker=["127.0.0.1:2223"])
    ps = Ps(spec, 0)
    net.serve("node7:2222", ps)
    with pytest.raises(
        ClusterError, match=r"only from its own machine, because its ps:0 is at 127\.0\.0\.1:2222\. Join"
    ):
        net.find("node7:2222")
    net.serve("127.0.0.1:2222", ps)
    net.serve("localhost:2222", ps)
    found = [str(net.find(address)[0].task) for address in ("127.0.0.1:2222", "localhost:2222")]
    assert found == ["worker:2", "worker:3"]  # worker:1 was for whoever had to be refused


def test_an_address_that_leads_elsewhere_from_here(net: Net) -> None:
    net.serve("tunnel:1", Ps(TWO, 0))
    net.serve("10.0.0.1:1", Ps(TWO, 0, "another job"))
    with pytest.raises(ProtocolError, match=r"reach ps:0 at 10\.0\.0\.1:1, .*: another task answers"):
        net.find("tunnel:1")


def test_another_job_at_the_address_of_the_first_ps(net: Net) -> None:
    other = spec_of(ps=["a:1", "10.0.0.1:1"], worker=["b:1"])
    net.serve("10.0.0.1:1", Ps(other, 1))
    net.serve("10.0.0.2:1", Ps(TWO, 1))
    with pytest.raises(
        ProtocolError, match=r"ps:1 says that ps:0 of its job is at 10\.0\.0\.1:1, but .* ps:1 of another"
    ):
        net.find("10.0.0.2:1")


def test_a_job_that_has_ended(net: Net) -> None:
    net.serve("10.0.0.1:1", Ps(TWO, 0, ended=True))
    with pytest.raises(Refused, match=r"the job at 10\.0\.0\.1:1 has ended; workers can no longer join it"):
        net.find("10.0.0.1:1")


def test_nonsense_from_a_ps(net: Net) -> None:
    ps = net.serve("10.0.0.1:1", Ps(TWO, 0))
    ps._answers["vacancy"] = encode(Vacancy({"ps": {0: "10.0.0.1"}}, 2))  # noqa: SLF001 - made up
    with pytest.raises(
        ClusterError, match=r"the cluster of the job at 10\.0\.0\.1:1, ps\[0\] = '10\.0\.0\.1': the port"
    ):
        net.find("10.0.0.1:1")
    ps._answers["status"] = b"nonsense"  # noqa: SLF001
    with pytest.raises(ProtocolError, match=r"the server at 10\.0\.0\.1:1 is not a trainband ps.*Give --join"):
        net.find("10.0.0.1:1")


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("nowhere", r"--join = 'nowhere': the port is missing; write host:port"),
        ("a:x", r"--join = 'a:x': the port must be a number"),
        (":2222", r"the host is missing"),
        ("http://a:2222", r"without a scheme"),
        ("::1:2222", r"in brackets"),
    ],
)
def test_a_malformed_address(address: str, message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        find_places(address, 1)


# --- real ports


def _find(address: str, timeouts: Timeouts = PATIENT) -> PeerError:
    with pytest.raises(PeerError) as raised:
        find_places(address, 1, transport=Network(), timeouts=timeouts)
    assert address in str(raised.value)
    assert "Give --join the address of any ps" in str(raised.value)
    return raised.value


def test_a_port_where_nobody_listens() -> None:
    """As that of a worker, whose address stands in the cluster too."""
    with ReservedPorts(1) as reserved:
        assert isinstance(_find(reserved.addresses[0]), Unreachable)


def test_a_host_that_does_not_exist() -> None:
    assert isinstance(_find("there-is-no-such-host.invalid:2222"), UnknownHost)


def test_a_port_that_is_silent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert isinstance(_find(f"127.0.0.1:{server.getsockname()[1]}", QUICK), DeadlineExceeded)


def test_who_waits_for_a_port_that_is_silent_says_so() -> None:
    said: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(DeadlineExceeded):
            find_places(address, 1, transport=Network(), timeouts=Timeouts(connect_s=4.0), say=said.append)
    assert re.fullmatch(rf"waiting for {address} to answer \(\d s\)", said[0])


class Quiet(http.server.BaseHTTPRequestHandler):
    """Refuses everything."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        pass


def test_a_port_that_speaks_something_else() -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet)
    thread = threading.Thread(target=server.serve_forever, name="test-http")
    thread.start()
    try:
        error = _find(f"127.0.0.1:{server.server_port}")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert isinstance(error, ProtocolError)
    assert "is not a trainband ps" in str(error)


# --- the command


@pytest.mark.parametrize(
    "options", [["--ps=1"], ["--ps", "0"], ["--chief"], ["--evaluator"], ["--host=127.0.0.1"], ["--min-workers=1"]]
)
def test_what_belongs_to_a_job_of_ones_own_cannot_go_with_it(
    options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["run", "--join", "127.0.0.1:1", *options, __file__])
    assert ended.value.code == 2
    name = options[0].partition("=")[0]
    assert f"--join adds workers to a running job; leave {name} out." in capsys.readouterr().err


def test_no_workers_to_join_with(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["run", "--join", "127.0.0.1:1", "--workers=0", __file__])
    assert ended.value.code == 2
    assert "--join with --workers 0 starts nothing" in capsys.readouterr().err


@pytest.mark.parametrize(("options", "workers"), [([], 1), (["--workers", "2"], 2), (["--workers", "1"], 1)])
def test_each_worker_learns_its_place(options: list[str], workers: int, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "from trainband.cluster import resolve\n"
        "cluster = resolve()\n"
        "print(cluster.task, cluster.elastic, cluster.is_chief, cluster.training_index, cluster.spec.ps[0])\n"
    )
    with ExitStack() as owned, ReservedPorts(2) as reserved:
        spec = spec_of(ps=[reserved.addresses[0]], worker=[reserved.addresses[1]])
        handler: Handler = Ps(spec, 0)  # type: ignore[assignment]  # it reads nothing
        listener = Network().listen(reserved.addresses[0], handler, PATIENT)
        owned.callback(listener.stop, 1.0)
        result = subprocess.run(
            [
                *(sys.executable, "-W", "error", "-m", "trainband.cli.main", "run"),
                *("--join", reserved.addresses[0], *options, str(script)),
            ],
            capture_output=True,
            text=True,
            timeout=60.0,
            env=ENVIRON,
            check=False,
        )
    assert result.returncode == 0
    assert "trainband: WARNING: no task joined the cluster; " in result.stderr
    assert sorted(result.stdout.splitlines()) == [
        f"[worker:{i}] worker:{i} True False {i} ps:0" for i in range(1, workers + 1)
    ]
