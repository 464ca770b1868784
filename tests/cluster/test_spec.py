"""ClusterSpec, Task and Cluster."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainband.cluster import JOBS, Address, Cluster, ClusterSpec, Task
from trainband.errors import ClusterError

DENSE = ClusterSpec({"ps": ["a:1", "b:1"], "worker": ["c:1", "d:1", "e:1"]})
SPARSE = ClusterSpec({"ps": ["a:1"], "worker": {3: "f:1", 1: "d:1"}})
WITH_CHIEF = ClusterSpec({"worker": ["c:1"], "chief": ["b:1"], "evaluator": ["g:1"], "ps": ["a:1"]})


@pytest.mark.smoke
def test_a_dense_cluster_answers_as_tensorflow_does() -> None:
    assert DENSE.as_dict() == {"ps": ["a:1", "b:1"], "worker": ["c:1", "d:1", "e:1"]}
    assert sorted(DENSE.jobs) == ["ps", "worker"]
    assert DENSE.num_tasks("worker") == 3
    assert DENSE.task_indices("worker") == [0, 1, 2]
    assert DENSE.task_address("worker", 2) == "e:1"
    assert DENSE.job_tasks("ps") == ["a:1", "b:1"]


def test_a_sparse_cluster_answers_as_tensorflow_does() -> None:
    """Rows from the docstrings and tests of tf.train.ClusterSpec."""
    assert SPARSE.as_dict() == {"ps": ["a:1"], "worker": {1: "d:1", 3: "f:1"}}
    assert SPARSE.num_tasks("worker") == 2
    assert SPARSE.task_indices("worker") == [1, 3]
    assert SPARSE.task_address("worker", 3) == "f:1"
    assert SPARSE.job_tasks("worker") == [None, "d:1", None, "f:1"]
    # A mapping without gaps is dense, in whatever order it was written.
    assert ClusterSpec({"worker": {1: "b:1", 0: "a:1"}}).as_dict() == {"worker": ["a:1", "b:1"]}
    # A job may be there without tasks.
    assert ClusterSpec({"ps": [], "worker": ["a:1"]}).num_tasks("ps") == 0
    assert ClusterSpec({"ps": []}).job_tasks("ps") == []


def test_what_is_not_there_is_an_error_that_says_what_is() -> None:
    with pytest.raises(ClusterError, match=r"no job 'chief'; it has worker, ps"):
        DENSE.num_tasks("chief")
    with pytest.raises(ClusterError, match=r"no task worker:0; its worker indices are 1, 3"):
        SPARSE.task_address("worker", 0)


def test_equality_hash_truth_and_copies() -> None:
    other_order = ClusterSpec({"worker": ("c:1", "d:1", "e:1"), "ps": {"0": "a:1", "1": "b:1"}})
    assert other_order == DENSE
    assert hash(other_order) == hash(DENSE)
    assert other_order.jobs == DENSE.jobs
    assert DENSE != SPARSE
    assert ClusterSpec(DENSE) == DENSE
    assert eval(repr(SPARSE)) == SPARSE
    assert copy.deepcopy(SPARSE) == SPARSE
    assert pickle.loads(pickle.dumps(SPARSE)) == SPARSE
    assert not ClusterSpec({})
    assert DENSE


def test_it_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        DENSE._jobs = ()  # type: ignore[misc]  # noqa: SLF001
    DENSE.as_dict().clear()
    assert DENSE.jobs == ["worker", "ps"]


def test_tasks_workers_ps_and_chief() -> None:
    assert [str(task) for task in WITH_CHIEF.tasks()] == ["chief:0", "worker:0", "ps:0", "evaluator:0"]
    assert WITH_CHIEF.workers == (Task("chief", 0), Task("worker", 0))
    assert WITH_CHIEF.ps == (Task("ps", 0),)
    assert WITH_CHIEF.chief == Task("chief", 0)
    assert DENSE.chief == Task("worker", 0)
    assert Task("worker", 3) in SPARSE
    assert Task("worker", 0) not in SPARSE
    assert "worker:3" not in SPARSE
    with pytest.raises(ClusterError, match="neither chief:0 nor worker:0"):
        _ = SPARSE.chief


BAD_SPECS: list[tuple[object, str]] = [
    # not a cluster at all
    (None, r"must be a mapping"),
    ("worker", r"must be a mapping"),
    (["a:1"], r"must be a mapping"),
    # jobs
    ({"trainer": ["a:1"]}, r"'trainer' is not a job; the jobs are chief, worker, ps, evaluator\."),
    ({"master": ["a:1"]}, r"'master' is called 'chief' here"),
    ({3: ["a:1"]}, r"3 is not a job"),
    ({"chief": ["a:1", "b:1"]}, r"ClusterSpec\.chief: a cluster has one chief, at index 0; got the indices \[0, 1\]"),
    ({"chief": {1: "a:1"}}, r"ClusterSpec\.chief: .*\[1\]"),
    # the tasks of a job
    ({"worker": "a:1"}, r"ClusterSpec\.worker must be a list"),  # a string is a sequence, too
    ({"worker": 3}, r"ClusterSpec\.worker must be a list"),
    (
        {"worker": {-1: "a:1"}},
        r"ClusterSpec\.worker: a task's index must be a non-negative integer of at most 9 digits, got -1",
    ),
    ({"worker": {True: "a:1"}}, r"got True"),
    ({"worker": {"one": "a:1"}}, r"got 'one'"),
    ({"worker": {1.0: "a:1"}}, r"got 1\.0"),
    ({"worker": {"1": "a:1", 1: "b:1"}}, r"index 1 is listed twice"),
    # addresses
    ({"worker": ["a:1", 7]}, r"ClusterSpec\.worker\[1\]: an address is a string"),
    ({"worker": [None]}, r"ClusterSpec\.worker\[0\]"),
    ({"worker": ["a"]}, r"ClusterSpec\.worker\[0\] = 'a': the port is missing"),
    ({"worker": [""]}, r"port is missing"),
    ({"worker": [":2222"]}, r"host is missing"),
    ({"worker": ["a:"]}, r"port must be a number from 1 to 65535, got ''"),
    ({"worker": ["a:0"]}, r"got '0'"),
    ({"worker": ["a:65536"]}, r"got '65536'"),
    ({"worker": ["a:-1"]}, r"got '-1'"),
    ({"worker": ["a:+1"]}, r"got '\+1'"),
    ({"worker": ["a:²"]}, r"got '²'"),  # a digit to str.isdigit, not to int
    ({"worker": ["a:" + "9" * 5000]}, r"port must be"),  # int() refuses so many digits with an error of its own
    ({"worker": ["grpc://a:1"]}, r"without a scheme"),
    ({"worker": ["a b:1"]}, r"'a b' is not a host name"),
    ({"worker": [" a:1"]}, r"is not a host name"),
    ({"worker": ["::1:2222"]}, r"in brackets"),
    ({"worker": ["[::1]"]}, r"port is missing"),
    ({"worker": ["[::g]:1"]}, r"not an IPv6 address"),
    # twice the same door
    ({"worker": ["a:1", "a:1"]}, r"worker\[1\] = 'a:1': ClusterSpec\.worker\[0\] already has that address"),
    ({"worker": ["a:1"], "ps": ["A:1"]}, r"ClusterSpec\.ps\[0\] = 'A:1': ClusterSpec\.worker\[0\] already has"),
    ({"worker": ["localhost:1", "127.0.0.1:1"]}, r"already has that address"),
    ({"worker": ["a:1", "a:01"]}, r"already has that address"),
]


@pytest.mark.parametrize(("cluster", "message"), BAD_SPECS)
def test_a_bad_cluster_is_refused_with_the_name_of_the_field(cluster: object, message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        ClusterSpec(cluster)  # type: ignore[arg-type]


def test_an_address_has_a_host_and_a_port() -> None:
    assert Address.parse("Node-1.example:65535", "x") == Address("node-1.example", 65535)
    assert Address.parse("[2001:DB8:0::7]:1", "x") == Address("2001:db8::7", 1)
    assert str(Address("2001:db8::7", 1)) == "[2001:db8::7]:1"
    assert str(Address("node-1", 65535)) == "node-1:65535"
    assert ClusterSpec({"worker": ["[::1]:2222", "10.0.0.1:2222"]}).task_address("worker", 0) == "[::1]:2222"


def _clusters() -> st.SearchStrategy[dict[str, dict[int, str]]]:
    indices = st.dictionaries(
        st.sampled_from([job for job in JOBS if job != "chief"]), st.sets(st.integers(0, 12), max_size=6)
    )
    with_chief = st.tuples(indices, st.booleans()).map(lambda pair: {**pair[0], **({"chief": {0}} if pair[1] else {})})
    return with_chief.map(
        lambda jobs: {job: {i: f"{job}-{i}:{2222 + i}" for i in indices} for job, indices in jobs.items()}
    )


@given(_clusters())
def test_every_cluster_comes_back_from_its_dict_and_from_json(cluster: dict[str, dict[int, str]]) -> None:
    spec = ClusterSpec(cluster)
    assert ClusterSpec(spec.as_dict()) == spec
    assert ClusterSpec(json.loads(json.dumps(spec.as_dict()))) == spec
    assert {(task.job, task.index) for task in spec.tasks()} == {(job, i) for job in cluster for i in cluster[job]}
    for task in spec.tasks():
        assert Task.parse(str(task)) == task
        assert spec.address(task) == cluster[task.job][task.index] == spec.job_tasks(task.job)[task.index]


@pytest.mark.parametrize(
    "text", ["worker", "worker:", ":1", "worker:-1", "worker:x", "boss:0", "worker:²", "worker:1:2"]
)
def test_what_is_no_task_is_refused(text: str) -> None:
    with pytest.raises(ClusterError, match=r"task|job"):
        Task.parse(text)


@pytest.mark.parametrize("index", [-1, True, 1.0, None])
def test_a_task_needs_a_natural_index(index: object) -> None:
    with pytest.raises(ClusterError, match=r"Task\.index"):
        Task("worker", index)  # type: ignore[arg-type]


def _cluster(spec: ClusterSpec, task: str) -> Cluster:
    return Cluster(spec=spec, task=Task.parse(task))


def test_a_cluster_knows_who_this_task_is() -> None:
    assert _cluster(DENSE, "worker:0").is_chief
    assert not _cluster(DENSE, "worker:1").is_chief
    assert not _cluster(WITH_CHIEF, "worker:0").is_chief
    assert _cluster(WITH_CHIEF, "chief:0").is_chief
    assert not _cluster(SPARSE, "worker:1").is_chief  # the first that is known, but not the first
    assert _cluster(DENSE, "ps:1").is_ps
    assert _cluster(DENSE, "ps:1").address == "b:1"
    assert not _cluster(DENSE, "ps:0").is_chief


def test_a_task_must_be_in_the_cluster() -> None:
    with pytest.raises(ClusterError, match=r"no task worker:2; its worker indices are 1, 3\."):
        _cluster(SPARSE, "worker:2")
    with pytest.raises(ClusterError, match=r"no task chief:0; it has no chief tasks, only the jobs worker, ps\."):
        _cluster(DENSE, "chief:0")
    with pytest.raises(ClusterError, match=r"no task evaluator:1; its evaluator index is 0\."):
        _cluster(WITH_CHIEF, "evaluator:1")


def test_an_evaluator_may_stand_outside() -> None:
    """TensorFlow's launchers do not list it: https://www.tensorflow.org/guide/migrate/evaluator."""
    outside = _cluster(DENSE, "evaluator:0")
    assert not outside.is_chief
    assert not outside.is_ps
    assert outside.device_index == 0
    with pytest.raises(ClusterError, match="no job 'evaluator'"):
        _ = outside.address


def test_the_tasks_that_train_are_numbered_with_the_chief() -> None:
    rows = {"chief:0": 0, "worker:0": 1, "ps:0": 0}
    assert {task: _cluster(WITH_CHIEF, task).training_index for task in rows} == rows
    assert _cluster(SPARSE, "worker:3").training_index == 1


def test_workers_of_a_host_count_up_to_share_its_devices() -> None:
    spec = ClusterSpec(
        {
            "chief": ["node1:1"],
            "worker": ["NODE1:2", "node2:1", "node1:3", "localhost:4", "127.0.0.1:5"],
            "ps": ["node1:9"],
        }
    )
    rows = {
        "chief:0": 0,
        "worker:0": 1,  # the chief trains, too, and came first
        "worker:1": 0,  # alone on node2
        "worker:2": 2,
        "worker:3": 0,
        "worker:4": 1,  # loopback by another name
        "ps:0": 0,  # does not train
    }
    assert {task: _cluster(spec, task).device_index for task in rows} == rows
    alone = [task for task in rows if not _cluster(spec, task).shares_its_host]
    assert alone == ["worker:1"]


def _elastic(spec: ClusterSpec, task: str) -> Cluster:
    return Cluster(spec=spec, task=Task.parse(task), elastic=True)


def test_an_elastic_worker_stands_in_no_spec() -> None:
    elastic = _elastic(DENSE, "worker:7")
    assert not elastic.is_chief
    assert not elastic.is_ps
    assert elastic != _cluster(DENSE, "worker:0")
    with pytest.raises(ClusterError, match=r"worker:7 has no address: it is an elastic worker and listens on no port"):
        _ = elastic.address


@pytest.mark.parametrize("spec", [DENSE, WITH_CHIEF, SPARSE, ClusterSpec({"ps": ["a:1"], "chief": ["b:1"]})])
def test_each_elastic_worker_has_a_number_of_its_own(spec: ClusterSpec) -> None:
    planned = [_cluster(spec, str(task)).training_index for task in spec.workers]
    first = 1 + max(task.index for task in spec.workers)
    elastic = [_elastic(spec, f"worker:{index}") for index in range(first, first + 3)]
    numbers = [one.training_index for one in elastic]
    assert len({*planned, *numbers}) == len(planned) + 3
    assert min(numbers) >= len(planned)
    # Two that were started together take different devices of a host with two.
    assert len({one.device_index % 2 for one in elastic[:2]}) == 2
    assert all(one.shares_its_host for one in elastic)


NOT_ELASTIC: list[tuple[ClusterSpec, str, str]] = [
    (
        DENSE,
        "worker:0",
        r"Cluster\.elastic: worker:0 is not the name of an elastic worker: the cluster plans workers up to index \d",
    ),
    # its name could be that of a planned worker that this task does not know
    (SPARSE, "worker:2", r"up to index 3, and an elastic one has a larger index"),
    (DENSE, "ps:9", r"only a worker can be elastic, and this task is ps:9"),
    (ClusterSpec({"ps": ["a:1"]}), "worker:1", r"worker:1 cannot be elastic: the cluster has no workers"),
]


@pytest.mark.parametrize(("spec", "task", "message"), NOT_ELASTIC)
def test_who_cannot_be_elastic(spec: ClusterSpec, task: str, message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        _elastic(spec, task)


def test_loopback_has_many_names() -> None:
    for text, expected in {
        "localhost:1": True,
        "127.0.0.1:1": True,
        "127.9.9.9:1": True,
        "[::1]:1": True,
        "10.0.0.1:1": False,
        "localhost.example.org:1": False,
    }.items():
        assert Address.parse(text, "x").is_loopback is expected
