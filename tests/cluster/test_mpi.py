"""The variables of Open MPI's ranks, as `mpirun` sets them and as shells have them."""

from __future__ import annotations

import pytest

from trainband.cluster import Cluster, Task, resolve
from trainband.cluster.resolvers import mpi, slurm
from trainband.cluster.resolvers.ranks import PORT
from trainband.errors import ClusterError

ONE_MACHINE = {
    "OMPI_COMM_WORLD_LOCAL_RANK": "2",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "3",
    "OMPI_COMM_WORLD_NODE_RANK": "2",
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "3",
    "OMPI_UNIVERSE_SIZE": "2",
    "OMPI_VERSION": "5.0.11",
    "PMIX_HOSTNAME": "vm",
    "PMIX_NAMESPACE": "prterun-vm-24199@1",
    "PMIX_RANK": "1",
    "PRTE_LAUNCHED": "1",
}
"""Recorded: Open MPI 5.0.11, `mpirun --oversubscribe -n 3 env`. Ranks and local ranks need not have one order."""
TWO_MACHINES = {
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_COMM_WORLD_NODE_RANK": "1",
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "PMIX_HOSTNAME": "b.example.org",
    "PMIX_NAMESPACE": "prterun-vm-24255@1",
    "PMIX_RANK": "3",
    "PRTE_LAUNCHED": "1",
}
"""Recorded: Open MPI 5.0.11, `mpirun --host 127.0.0.1:2,127.0.0.2:2 -n 4 env`; the name of the host is another."""
HOSTS = {mpi.HOSTS: "a:2,b:2"}
UNEVEN = TWO_MACHINES | {
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "3",
    "PMIX_HOSTNAME": "a",
}
"""Recorded in the same way, `--host 127.0.0.1:2,127.0.0.2:1 -n 3`: the local size is that of the other machine."""
IN_AN_ALLOCATION = {
    "SLURM_JOB_ID": "901593",
    "SLURM_JOB_NODELIST": "b,c",
    "SLURM_TASKS_PER_NODE": "2(x2)",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NODELIST": "b,c",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    "SLURM_PROCID": "0",
}
"""What the ranks of an mpirun inherit from its daemons, which are a step of two tasks."""
ALONE = {
    "a shell that mpirun has started": ONE_MACHINE
    | {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0", "PMIX_RANK": "0"},
    "a module that sets parameters": {"OMPI_MCA_btl": "tcp,self", "OMPI_VERSION": "5.0.11", "PMIX_MCA_gds": "hash"},
    "srun --mpi=pmix of one task": {"PMIX_RANK": "0", "PMIX_NAMESPACE": "slurm.pmix.901593.0"},
}


def addresses_of(cluster: Cluster | None) -> list[str]:
    """All addresses, by rank."""
    assert cluster is not None
    tasks = (*cluster.spec.ps, *cluster.spec.workers)
    return [cluster.spec.address(task) for task in tasks]


def test_ranks_of_one_machine_are_a_cluster() -> None:
    found = mpi.resolve(ONE_MACHINE | {slurm.PS: "1"})
    assert found is not None
    assert found.task == Task("worker", 0)
    assert found.spec.jobs == ["worker", "ps"]
    hosts, ports = zip(*(address.split(":") for address in addresses_of(found)), strict=True)
    assert set(hosts) == {"127.0.0.1"}
    assert [int(port) - int(ports[0]) for port in ports] == [0, 1, 2]
    assert addresses_of(found) == addresses_of(mpi.resolve(ONE_MACHINE | {slurm.PS: "1", "OMPI_COMM_WORLD_RANK": "2"}))
    assert addresses_of(found) != addresses_of(mpi.resolve(ONE_MACHINE | {"PMIX_NAMESPACE": "prterun-vm-24200@1"}))


def test_hosts_that_the_user_names() -> None:
    found = mpi.resolve(TWO_MACHINES | HOSTS | {PORT: "4000"})
    assert addresses_of(found) == ["a:4000", "a:4001", "b:4002", "b:4003"]
    assert addresses_of(mpi.resolve(UNEVEN | {mpi.HOSTS: "a:2,b:1", PORT: "4000"})) == ["a:4000", "a:4001", "b:4002"]
    alone = {"PMIX_RANK": "2", "PMIX_NAMESPACE": "prterun-vm-1@1"}
    with_pmix = mpi.resolve(alone | HOSTS | {PORT: "4000"})
    assert with_pmix is not None
    assert (with_pmix.task, addresses_of(with_pmix)) == (Task("worker", 2), addresses_of(found))


def test_mpirun_goes_before_the_allocation_that_it_runs_in(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainband.cluster.resolvers._said", set())
    environ = TWO_MACHINES | IN_AN_ALLOCATION | {"PMIX_HOSTNAME": "c", PORT: "4000"}
    for _ in range(2):
        assert addresses_of(resolve(environ)) == ["b:4000", "b:4001", "c:4002", "c:4003"]
    assert capsys.readouterr().err == (
        "trainband: this is worker:3 of a cluster of 4 tasks, as mpirun says; Slurm would describe a cluster too, but "
        "mpirun takes precedence because it started this process. Set TF_CONFIG to override this.\n"
    )


def test_srun_is_slurms_whatever_pmix_says(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainband.cluster.resolvers._said", set())
    found = resolve(IN_AN_ALLOCATION | {"PMIX_RANK": "0", "PMIX_NAMESPACE": "slurm.pmix.901593.0"})
    assert found is not None
    assert capsys.readouterr().err == "trainband: this is worker:0 of a cluster of 2 tasks, as Slurm says.\n"


@pytest.mark.parametrize("environ", ALONE.values(), ids=ALONE)
def test_what_is_left_over_stands_alone(environ: dict[str, str]) -> None:
    assert resolve(environ) is None


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (TWO_MACHINES, "not all of them are on this machine.*mpirun -x TRAINBAND_HOSTS=a:2,b:2"),
        (TWO_MACHINES | {mpi.HOSTS: "a:2,b:1"}, "has places for 3 ranks, but mpirun has started 4"),
        (TWO_MACHINES | {mpi.HOSTS: "a:1,b:3"}, "rank 3 should be number 2 .* on b, .* number 1 .* --map-by slot"),
        (TWO_MACHINES | {mpi.HOSTS: "b:2,a:2"}, "rank 3 should run on a, but runs on b.example.org"),
        (TWO_MACHINES | {mpi.HOSTS: "a:2,b:two"}, "TRAINBAND_HOSTS: the ranks of b = 'two' is not a number"),
        (TWO_MACHINES | HOSTS | {"PMIX_NAMESPACE": ""}, "PMIX_NAMESPACE is not set, .*; set TRAINBAND_PORT"),
        (TWO_MACHINES | HOSTS | {slurm.PS: "4"}, "TRAINBAND_PS = 4, but mpirun has 4 tasks"),
        ({"OMPI_COMM_WORLD_RANK": "1"}, "OMPI_COMM_WORLD_RANK is set but OMPI_COMM_WORLD_SIZE is not"),
        ({"PMIX_RANK": "1", "PMIX_NAMESPACE": "prterun-vm-1@1"}, "Set TRAINBAND_HOSTS=.*unset PMIX_RANK"),
    ],
)
def test_what_cannot_be_known_is_asked_for(environ: dict[str, str], message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        resolve(environ)
