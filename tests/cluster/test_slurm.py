"""Slurm's variables, as `srun` sets them and as shells on a node have them: recorded by `record_slurm.py`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainband.cluster import Cluster, ClusterSpec, Task, resolve
from trainband.cluster.resolvers import slurm
from trainband.errors import ClusterError

RECORDED: dict[str, list[dict[str, str]]] = json.loads(Path(__file__).with_name("slurm.json").read_text("utf-8"))
SRUN = {
    "SLURM_JOB_ID": "901593",
    "SLURM_JOB_NODELIST": "gpu[07-09],login1",
    "SLURM_NTASKS": "5",
    "SLURM_STEP_ID": "2",
    "SLURM_STEP_NODELIST": "gpu[07-09]",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
}
"""The fourth of five tasks on three nodes, in the third step of a job that has four."""
STEPS = ["step", "step, cyclic", "step, in planes of two", "step smaller than its job"]
STEPS += ["step over both groups", "step in one group"]
SHELLS = {
    "ssh, where a hook exports the job": {"SLURM_JOB_ID": "1"},
    "sbatch's script, where it has a step": SRUN | {"SLURM_STEP_ID": "4294967291", "SLURM_PROCID": "0"},
    "nothing of Slurm's": {},
    **{name: environs[0] for name, environs in RECORDED.items() if name not in (*STEPS, "step, arbitrary")},
}


def workers_of(cluster: Cluster) -> list[str]:
    """The addresses of the workers."""
    return [cluster.spec.address(task) for task in cluster.spec.workers]


def test_a_step_of_srun_is_a_cluster() -> None:
    found = resolve(SRUN)
    assert found is not None
    assert found.task == Task("worker", 3)
    addresses = [address.split(":") for address in workers_of(found)]
    assert [host for host, _ in addresses] == ["gpu07", "gpu07", "gpu08", "gpu08", "gpu09"]
    ports = [int(port) for _, port in addresses]
    assert ports == [ports[0], ports[0] + 1, ports[0], ports[0] + 1, ports[0]]
    assert 10_000 <= ports[0] < 30_000


def test_the_first_tasks_are_ps_where_the_user_says_so() -> None:
    tasks = [resolve(SRUN | {slurm.PS: "2", "SLURM_PROCID": str(rank)}) for rank in range(5)]
    assert [str(found.task) for found in tasks if found] == ["ps:0", "ps:1", "worker:0", "worker:1", "worker:2"]
    assert len({found.spec for found in tasks if found}) == 1, "all come to the same"


def test_two_steps_of_a_job_have_ports_of_their_own() -> None:
    addresses: set[str] = set()
    for step in "2", "3":
        found = resolve(SRUN | {"SLURM_STEP_ID": step})
        assert found is not None
        addresses |= set(workers_of(found))
    assert len(addresses) == 10


@pytest.mark.parametrize("name", STEPS)
def test_all_tasks_of_a_step_come_to_the_same_addresses(name: str) -> None:
    environs = RECORDED[name]
    found = [resolve(environ) for environ in environs]
    assert len({cluster.spec for cluster in found if cluster}) == 1
    for rank, (cluster, environ) in enumerate(zip(found, environs, strict=True)):
        assert cluster is not None
        assert cluster.task == Task("worker", rank)
        assert cluster.spec.address(cluster.task).partition(":")[0] == environ["SLURMD_NODENAME"], "it listens there"
    assert found[0] is not None
    assert len(set(workers_of(found[0]))) == len(environs), "each has an address of its own"


def test_the_first_group_has_the_first_ranks() -> None:
    found = resolve(RECORDED["step over both groups"][3] | {slurm.PS: "1"})
    assert found is not None
    assert found.task == Task("worker", 2)
    hosts = [found.spec.address(task).partition(":")[0] for task in (*found.spec.ps, *found.spec.workers)]
    assert hosts == ["c0", "127.0.0.11", "127.0.0.11", "127.0.0.12"]


def test_where_it_cannot_be_known_who_listens_where() -> None:
    with pytest.raises(
        ClusterError, match=r"127.0.0.11 runs the ranks 0,2 .* block has 0,1 there.* --distribution=block"
    ):
        resolve({**RECORDED["step, arbitrary"][0], "SLURM_DISTRIBUTION": ""})


def test_a_node_of_a_cloud_is_reached_by_its_address() -> None:
    aliases = "gpu07:10.0.0.7:ip-10-0-0-7,gpu08:[fd00::8]:ip-10-0-0-8"
    found = resolve(SRUN | {"SLURM_NODE_ALIASES": aliases})
    assert found is not None
    hosts = [address.rpartition(":")[0] for address in workers_of(found)]
    assert hosts == ["10.0.0.7", "10.0.0.7", "[fd00::8]", "[fd00::8]", "gpu09"]


@pytest.mark.parametrize("environ", SHELLS.values(), ids=SHELLS)
def test_a_shell_stands_alone(environ: dict[str, str]) -> None:
    assert resolve(environ) is None


def test_what_somebody_has_written_goes_first() -> None:
    config = '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}'
    spec = ClusterSpec({"worker": ["a:1", "b:1"]})
    assert resolve(SRUN | {"TF_CONFIG": config}) == Cluster(spec=spec, task=Task("worker", 0))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"SLURM_STEP_NODELIST": "", "SLURM_JOB_NODELIST": ""}, "SLURM_STEP_NODELIST is not set"),
        ({"SLURM_STEP_TASKS_PER_NODE": ""}, "SLURM_STEP_TASKS_PER_NODE is not set"),
        ({"SLURM_STEP_TASKS_PER_NODE": "two"}, "Slurm's tasks per node, 'two', are not a list"),
        ({"SLURM_PROCID": "7"}, "SLURM_PROCID is 7"),
        ({slurm.PS: "5"}, "TRAINBAND_PS = 5, but srun has started 5 tasks: none would be left for a worker"),
        ({slurm.PS: "one"}, "TRAINBAND_PS = 'one' is not a number"),
    ],
)
def test_what_is_half_set_is_named(change: dict[str, str], message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        resolve(SRUN | change)
