"""Finding out the cluster: TF_CONFIG and the classic flags."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

from trainband.cluster import Cluster, ClusterSpec, Task, resolve
from trainband.cluster.resolvers import arguments, tf_config
from trainband.cluster.resolvers.checkpoint_dirs import checkpoint_dirs
from trainband.errors import ClusterError

CLUSTER = {"ps": ["a:1"], "worker": ["b:1", "c:1"]}
EXPECTED = Cluster(spec=ClusterSpec(CLUSTER), task=Task("worker", 1))


def _environ(**config: object) -> dict[str, str]:
    return {"TF_CONFIG": json.dumps(config)}


FOUND: list[tuple[dict[str, object], str]] = [
    ({"cluster": CLUSTER, "task": {"type": "worker", "index": 1}}, "worker:1"),
    # some launchers fill in a template by text
    ({"cluster": CLUSTER, "task": {"type": "worker", "index": "1"}}, "worker:1"),
    # what Kubeflow and Vertex AI add
    ({"cluster": CLUSTER, "task": {"type": "ps", "index": 0, "trial": "1"}, "environment": "cloud"}, "ps:0"),
    ({"cluster": CLUSTER, "task": {"type": "ps", "index": 0}, "rpc_layer": "grpc", "job": {}}, "ps:0"),
    # sparse: JSON writes integer keys as strings
    ({"cluster": {"ps": ["a:1"], "worker": {"1": "c:1"}}, "task": {"type": "worker", "index": 1}}, "worker:1"),
    # the evaluator is no part of the cluster
    ({"cluster": CLUSTER, "task": {"type": "evaluator", "index": 0}}, "evaluator:0"),
]


@pytest.mark.parametrize(("config", "task"), FOUND)
def test_tf_config_gives_the_cluster(config: dict[str, Any], task: str) -> None:
    found = tf_config.resolve(_environ(**config))
    assert found == Cluster(spec=ClusterSpec(config["cluster"]), task=Task.parse(task))


ALONE: list[dict[str, str]] = [
    {},
    {"TF_CONFIG": ""},
    {"TF_CONFIG": "  \n"},
    {"TF_CONFIG": "{}"},
    {"TF_CONFIG": '{"cluster": {}}'},
    {"TF_CONFIG": '{"cluster": {}, "task": {"type": "worker", "index": 0}}'},  # as TensorFlow: no cluster, no tasks
    {"TF_CONFIG": '{"environment": "cloud"}'},  # what a platform writes for a program that runs alone
]


@pytest.mark.parametrize("environ", ALONE)
def test_without_a_cluster_the_program_stands_alone(environ: dict[str, str]) -> None:
    assert tf_config.resolve(environ) is None


BAD_CONFIGS: list[tuple[str, str]] = [
    ("{", r"^TF_CONFIG is not JSON: .*it reads '\{'"),
    ("worker:0", r"^TF_CONFIG is not JSON"),
    ("[]", r"^TF_CONFIG must be a JSON object"),
    ("null", r"^TF_CONFIG must be a JSON object"),
    ('{"task": {"type": "worker", "index": 0}}', r"^TF_CONFIG\.cluster is missing, though TF_CONFIG\.task is set"),
    ('{"Cluster": {"worker": ["a:1"]}}', r"^TF_CONFIG\.cluster is missing; the keys are Cluster"),
    ('{"cluster": ["a:1"]}', r"^TF_CONFIG\.cluster must be an object"),
    ('{"cluster": {"worker": "a:1"}}', r"^TF_CONFIG\.cluster\.worker must be a list"),
    ('{"cluster": {"worker": ["a:1", "b"]}}', r"^TF_CONFIG\.cluster\.worker\[1\] = 'b': the port is missing"),
    ('{"cluster": {"boss": ["a:1"]}}', r"^TF_CONFIG\.cluster\.boss: 'boss' is not a job"),
    ('{"cluster": {"worker": ["a:1"]}}', r"^TF_CONFIG\.task is missing"),
    ('{"cluster": {"worker": ["a:1"]}, "task": "worker:0"}', r"^TF_CONFIG\.task must be an object"),
    ('{"cluster": {"worker": ["a:1"]}, "task": {"index": 0}}', r"^TF_CONFIG\.task\.type is missing"),
    ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker"}}', r"^TF_CONFIG\.task\.index is missing"),
    ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "boss", "index": 0}}', r"^TF_CONFIG\.task\.type: 'boss'"),
    ('{"cluster": {"worker": ["a:1"]}, "task": {"type": ["worker"], "index": 0}}', r"^TF_CONFIG\.task\.type"),
    ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": "x"}}', r"^TF_CONFIG\.task\.index .*'x'"),
    ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": -1}}', r"^TF_CONFIG\.task\.index .*-1"),
    ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": true}}', r"^TF_CONFIG\.task\.index"),
    ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": null}}', r"^TF_CONFIG\.task\.index"),
    (
        '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1}}',
        r"^TF_CONFIG\.task\.index = 1: the cluster has no worker:1; its worker index is 0\.$",
    ),
    (
        '{"cluster": {"worker": ["a:1"]}, "task": {"type": "ps", "index": 0}}',
        r"^TF_CONFIG\.task\.type = 'ps': TF_CONFIG\.cluster has no such job, only worker\.$",
    ),
    ("[" * 100_000, r"^TF_CONFIG is not JSON"),
    ('{"cluster": {"worker": ["\\ud800:1"]}}', r"^TF_CONFIG is not JSON"),
    ('{"cluster": {"worker": ["a\\u001b[2J:1"]}}', r"'a\\x1b\[2J' is not a host name"),
    (
        '{"cluster": {"worker": {"0": "a:1"}}, "task": {"type": "worker", "index": 1' + "0" * 400 + "}}",
        "at most 9 digits",
    ),
    ('{"cluster": {"worker": ["a:1"]}, "task": ' + "9" * 5000 + "}", r"^TF_CONFIG is not JSON"),
]


@pytest.mark.parametrize(("text", "message"), BAD_CONFIGS)
def test_a_half_set_tf_config_is_an_error_that_names_the_field(text: str, message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        tf_config.resolve({"TF_CONFIG": text})


def test_tf_config_written_is_tf_config_read() -> None:
    elastic = Cluster(spec=EXPECTED.spec, task=Task("worker", 7), elastic=True)
    for cluster in (EXPECTED, elastic):
        assert tf_config.resolve({"TF_CONFIG": tf_config.write(cluster)}) == cluster
    assert "elastic" not in tf_config.write(EXPECTED)


NOT_ELASTIC: list[tuple[dict[str, object], str]] = [
    ({"type": "worker", "index": 1, "elastic": True}, r"^TF_CONFIG\.task: Cluster\.elastic: worker:1 is not the name"),
    ({"type": "ps", "index": 1, "elastic": True}, r"^TF_CONFIG\.task: Cluster\.elastic: only a worker"),
    ({"type": "worker", "index": 7, "elastic": "yes"}, r"^TF_CONFIG\.task\.elastic must be true or false, got 'yes'"),
    # who does not say that it is one is judged as ever
    ({"type": "worker", "index": 7, "elastic": False}, r"^TF_CONFIG\.task\.index = 7: the cluster has no worker:7"),
]


@pytest.mark.parametrize(("task", "message"), NOT_ELASTIC)
def test_who_is_not_elastic(task: dict[str, object], message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        tf_config.resolve(_environ(cluster=CLUSTER, task=task))


FLAGS: list[tuple[dict[str, Any], str]] = [
    ({"ps_hosts": "a:1", "worker_hosts": "b:1,c:1", "job_name": "worker", "task_index": 1}, "worker:1"),
    ({"ps_hosts": ["a:1"], "worker_hosts": ("b:1", "c:1"), "job_name": "ps", "task_index": "0"}, "ps:0"),
    ({"ps_hosts": " a:1 ", "worker_hosts": "b:1, c:1", "job_name": "worker", "task_index": 0}, "worker:0"),
]


@pytest.mark.parametrize(("flags", "task"), FLAGS)
def test_the_flags_give_the_cluster(flags: dict[str, Any], task: str) -> None:
    assert arguments.resolve(**flags) == Cluster(spec=ClusterSpec(CLUSTER), task=Task.parse(task))


def test_the_flags_know_a_chief_and_need_no_ps() -> None:
    found = arguments.resolve(chief_hosts="a:1", worker_hosts="b:1", job_name="chief", task_index=0)
    assert found == Cluster(spec=ClusterSpec({"chief": ["a:1"], "worker": ["b:1"]}), task=Task("chief", 0))


NO_FLAGS: list[dict[str, Any]] = [
    {},
    {"ps_hosts": "", "worker_hosts": "", "job_name": "", "task_index": None},
    {"ps_hosts": [], "worker_hosts": (), "job_name": None, "task_index": 0},  # 0 is many programs' default
]


@pytest.mark.parametrize("flags", NO_FLAGS)
def test_no_flags_no_cluster(flags: dict[str, Any]) -> None:
    assert arguments.resolve(**flags) is None


BAD_FLAGS: list[tuple[dict[str, Any], str]] = [
    ({"task_index": 2}, r"^worker_hosts is missing"),
    ({"job_name": "worker"}, r"^worker_hosts is missing"),
    ({"ps_hosts": "a:1", "job_name": "ps", "task_index": 0}, r"^worker_hosts is missing"),
    ({"worker_hosts": "a:1"}, r"^job_name is missing"),
    ({"worker_hosts": "a:1", "job_name": "boss", "task_index": 0}, r"^job_name = 'boss' is not a job"),
    ({"worker_hosts": "a:1", "job_name": "ps", "task_index": 0}, r"^ps_hosts is missing, but job_name is 'ps'"),
    ({"worker_hosts": "a:1", "job_name": "worker"}, r"^task_index is missing"),
    ({"worker_hosts": "a:1", "job_name": "worker", "task_index": "x"}, r"^task_index must be"),
    ({"worker_hosts": "a:1", "job_name": "worker", "task_index": 1}, r"^task_index = 1: the cluster has no worker:1"),
    ({"worker_hosts": "a:1,b", "job_name": "worker", "task_index": 0}, r"^worker_hosts\[1\] = 'b': the port"),
    ({"worker_hosts": "a:1,", "job_name": "worker", "task_index": 0}, r"^worker_hosts\[1\] = ''"),
    ({"worker_hosts": 3, "job_name": "worker", "task_index": 0}, r"^worker_hosts must be"),
    (
        {"worker_hosts": "a:1", "ps_hosts": "a:1", "job_name": "worker", "task_index": 0},
        r"^ps_hosts\[0\] = 'a:1': worker_hosts\[0\] already has that address",
    ),
    (
        {"worker_hosts": "a:1", "chief_hosts": "b:1,c:1", "job_name": "worker", "task_index": 0},
        r"^chief_hosts: a cluster has one chief",
    ),
]


@pytest.mark.parametrize(("flags", "message"), BAD_FLAGS)
def test_half_set_flags_are_an_error_that_names_the_flag(flags: dict[str, Any], message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        arguments.resolve(**flags)


def test_arguments_beat_tf_config_which_beats_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    environ = _environ(cluster={"worker": ["x:1"]}, task={"type": "worker", "index": 0})
    flags: dict[str, Any] = FLAGS[0][0]
    in_environ = tf_config.resolve(environ)
    assert resolve(environ, **flags) == EXPECTED
    assert resolve(environ) == in_environ
    assert resolve({}) is None
    monkeypatch.setenv("TF_CONFIG", environ["TF_CONFIG"])
    assert resolve() == in_environ
    # Half-set arguments are not quietly passed over for TF_CONFIG.
    with pytest.raises(ClusterError, match="worker_hosts is missing"):
        resolve(environ, job_name="ps")


def test_checkpoint_dirs_are_those_named_else_here_and_the_temporary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    temporary = Path(tempfile.gettempdir()).absolute()
    assert checkpoint_dirs({}) == checkpoint_dirs({"TRAINBAND_CHECKPOINT_DIR": ""}) == (tmp_path, temporary)
    assert checkpoint_dirs({"TRAINBAND_CHECKPOINT_DIR": "/a::b"}) == (Path("/a"), tmp_path / "b")
    monkeypatch.chdir("/")
    assert checkpoint_dirs({}) == (temporary,)
