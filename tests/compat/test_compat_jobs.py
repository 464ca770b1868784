"""The seam to trainband's parameter servers, without any: devices, placement, and the optimizer that a ps runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.compat.operations_table import OPTIMIZERS

import trainband.compat.tf1 as tf
from trainband.cluster import ClusterSpec
from trainband.compat.tf1.graphs.device_spec import DeviceSpec
from trainband.compat.tf1.graphs.lowering import Computation
from trainband.compat.tf1.sessions.examined import examine
from trainband.compat.tf1.sessions.job_model import JobModel
from trainband.compat.tf1.sessions.job_rules import is_shared
from trainband.compat.tf1.sessions.placement import ByDevice
from trainband.compat.tf1.sessions.ps_optimizer import JobOptimizer, updates_of
from trainband.compat.tf1.sessions.server import roles
from trainband.model.placement import GreedyBytes
from trainband.model.variables import Variable, Variables
from trainband.ps.rules import Async
from trainband.ps.worker.plan import Plan

MERGED = [
    # outer, inner, both
    ("/job:ps", "/gpu:1", "/job:ps/device:GPU:1"),
    ("/job:ps/task:1/cpu:0", "/job:worker", "/job:worker/task:1/device:CPU:0"),
    ("/gpu:1", "/cpu:0", "/device:CPU:0"),
    ("/device:GPU:2", "/device:GPU:*", "/device:GPU:2"),
    ("", "/replica:0/task:3", "/replica:0/task:3"),
]


@pytest.mark.parametrize(("outer", "inner", "both"), MERGED)
def test_device_scopes_merge(outer: str, inner: str, both: str) -> None:
    assert DeviceSpec.from_string(inner).under(DeviceSpec.from_string(outer)).to_string() == both
    with tf.device(outer), tf.device(inner):
        x = tf.constant(1.0)
        with tf.device(None):
            y = tf.constant(1.0)
    assert x.device == both
    assert y.device == ""


def test_variables_go_to_the_ps_in_turn_and_the_rest_to_the_worker() -> None:
    with tf.device(tf.train.replica_device_setter(ps_tasks=2, worker_device="/job:worker/task:3/gpu:0")):
        variables = [tf.Variable(tf.zeros([2]), name=f"v{i}") for i in range(3)]
        with tf.device("/cpu:0"):
            total = variables[0] + variables[1]
    assert [v.device for v in variables] == ["/job:ps/task:0", "/job:ps/task:1", "/job:ps/task:0"]
    assert total.device == "/job:worker/task:3/device:CPU:0"
    assert tf.train.replica_device_setter(ps_tasks=0) is None
    cluster = tf.train.ClusterSpec({"ps": ["a:1", "b:1", "c:1"], "worker": ["d:1"]})
    with tf.device(tf.train.replica_device_setter(cluster=cluster)):
        assert [tf.Variable(0.0).device[-1] for _ in range(4)] == list("0120")


def test_slots_live_beside_their_variables() -> None:
    with tf.device(tf.train.replica_device_setter(ps_tasks=2)):
        a, b = tf.get_variable("a", [2]), tf.get_variable("b", [2])
        optimizer = tf.train.MomentumOptimizer(0.1, 0.9)
        optimizer.minimize(tf.reduce_sum(a * b))
    assert [optimizer.get_slot(v, "momentum").device for v in (a, b)] == ["/job:ps/task:0", "/job:ps/task:1"]
    assert optimizer.get_slot(a, "momentum").name == "a/Momentum:0"


def test_greedy_load_balancing() -> None:
    contrib = tf.contrib.training
    strategy = contrib.GreedyLoadBalancingStrategy(2, contrib.byte_size_load_fn)
    with tf.device(tf.train.replica_device_setter(ps_tasks=2, ps_strategy=strategy)):
        devices = [tf.Variable(tf.zeros([n])).device[-1] for n in (10, 4, 4, 4)]
    assert devices == ["0", "1", "1", "1"]


def test_a_plan_follows_the_devices() -> None:
    variables = [Variable(name, (4,), "float32") for name in ("a", "b", "c", "d")]
    plan = ByDevice({"a": 1, "b": 1}).place(variables, 2)
    assert [piece.ps for piece in plan.slices] == [1, 1, 0, 0]
    assert all(piece.whole for piece in plan.slices)


def trained(make: Callable[[Any], Any], pushes: list[dict[str, Any]]) -> dict[str, Any]:
    """The params after these pushes, as a ps updates them."""
    step = tf.train.get_or_create_global_step()
    first = {"w": np.linspace(-1, 1, 6, dtype=np.float32).reshape(3, 2), "b": np.ones(2, np.float32)}
    w, b = (tf.get_variable(name, initializer=tf.constant(value)) for name, value in first.items())
    make(tf).minimize(tf.reduce_sum(tf.matmul(tf.ones([1, 3]), w) * b), step)
    optimizer = JobOptimizer(updates_of(tf.get_default_graph().get_operations(), step))
    params: Any = first
    with jax.enable_x64(True):  # as the tasks of such a job have it
        state = optimizer.init(params)
        for push in pushes:
            change, state = jax.jit(optimizer.update)(push, state, params)
            params = optax.apply_updates(params, change)
    return {name: np.asarray(value) for name, value in params.items()}


def by_session(make: Callable[[Any], Any], pushes: list[dict[str, Any]]) -> dict[str, Any]:
    """The same in a session."""
    tf.reset_default_graph()
    step = tf.train.get_or_create_global_step()
    first = {"w": np.linspace(-1, 1, 6, dtype=np.float32).reshape(3, 2), "b": np.ones(2, np.float32)}
    variables = {name: tf.get_variable(name, initializer=tf.constant(value)) for name, value in first.items()}
    given = {name: tf.placeholder(tf.float32, value.shape) for name, value in first.items()}
    train = make(tf).apply_gradients([(given[name], variables[name]) for name in first], step)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for push in pushes:
            session.run(train, {given[name]: value for name, value in push.items()})
        found: dict[str, Any] = session.run(variables)
    return found


def test_a_job_takes_an_unnamed_step_of_minimize_for_its_own() -> None:
    step = tf.Variable(0)
    w = tf.get_variable("w", [])
    tf.train.GradientDescentOptimizer(0.1).minimize(tf.square(w), global_step=step)
    model = JobModel(tf.get_default_graph(), ClusterSpec({"ps": ["a:1"], "worker": ["b:1"]}), lambda _: {})
    assert model.step is step
    assert set(model.shared) == {"w"}


PUSHES = [
    {"w": np.full((3, 2), 0.5 - i, np.float32), "b": np.array([0.1, -0.3], np.float32) * (i + 1)} for i in range(4)
]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_ps_updates_as_a_session_does(name: str) -> None:
    on_ps, here = trained(OPTIMIZERS[name], PUSHES), by_session(OPTIMIZERS[name], PUSHES)
    for key, value in here.items():
        np.testing.assert_allclose(on_ps[key], value, rtol=2e-6, atol=2e-6)


def test_a_learning_rate_that_follows_the_global_step_is_computed_on_the_ps() -> None:
    def make(front_end: Any) -> Any:
        step = front_end.train.get_or_create_global_step()
        rate = front_end.train.exponential_decay(1.0, step, 2, 0.5, staircase=True)
        return front_end.train.GradientDescentOptimizer(rate)

    np.testing.assert_allclose(trained(make, PUSHES)["b"], by_session(make, PUSHES)["b"], rtol=1e-6)


def test_where_all_variables_are_updated_alike_a_ps_does_it_by_blocks() -> None:
    w, b = tf.get_variable("w", [3, 2]), tf.get_variable("b", [2])
    tf.train.AdamOptimizer(0.1).minimize(tf.reduce_sum(w * b))
    optimizer = JobOptimizer(updates_of(tf.get_default_graph().get_operations(), None))
    params = {"w": jnp.zeros((3, 2)), "b": jnp.zeros(2)}
    plan = Plan.of(Variables.of(params, {}), optimizer, GreedyBytes(), Async(), 1)
    assert plan.shard_optimizer(0).by_block
    names = {piece.tensor for pieces in plan.shard_optimizer(0).state_contents for piece in pieces}
    assert {"optimizer/slots/m/w", "optimizer/slots/v/b", "optimizer/shared/beta1_power", "optimizer/count"} == (
        names - {"optimizer/shared/beta2_power", "optimizer/slots/m/b", "optimizer/slots/v/w"}
    )


def test_rows_that_are_not_looked_up_stay_as_they_are_on_a_ps() -> None:
    table = tf.get_variable("table", [4, 2], initializer=tf.ones_initializer())
    rows = tf.nn.embedding_lookup(table, [1, 2])
    tf.train.MomentumOptimizer(0.5, 0.9).minimize(tf.reduce_sum(rows))
    optimizer = JobOptimizer(updates_of(tf.get_default_graph().get_operations(), None))
    params: Any = {"table": jnp.ones((4, 2))}
    state = optimizer.init(params)
    for row in (1, 2):
        push = {"table": jnp.zeros((4, 2)).at[row].set(1.0)}
        change, state = optimizer.update(push, state, params)
        params = optax.apply_updates(params, change)
    assert params["table"][:, 0].tolist() == [1.0, 0.5, 0.5, 1.0]


def test_a_workers_own_variables_stay_with_it() -> None:
    server = tf.train.Server({"ps": ["127.0.0.1:1"], "worker": ["127.0.0.1:2", "127.0.0.1:3"]}, "worker", 1)
    step = tf.train.get_or_create_global_step()
    shared = tf.get_variable("shared", [])
    local = tf.get_variable("local", [], collections=[tf.GraphKeys.LOCAL_VARIABLES])
    with tf.device("/job:worker/task:1"):
        placed = tf.get_variable("placed", [])
    with tf.device("/job:worker/task:0"):
        elsewhere = tf.get_variable("elsewhere", [])
    own = tf.train.AdamOptimizer(0.1).minimize(tf.square(local + placed), var_list=[local, placed])
    with tf.control_dependencies([own]):
        push = tf.train.AdamOptimizer(0.1).minimize(tf.square(shared), step, var_list=[shared])
    with tf.control_dependencies([push]):
        copy = local.assign(shared * 2.0)
    plain = Computation([push], [])
    whole = Computation([copy, tf.square(local)], [])
    with tf.Session(server.target):
        graph = tf.get_default_graph()
        names = {v.op_name for v in graph.variables.values() if is_shared(v)}
        assert {shared.op_name, elsewhere.op_name, "shared/Adam", "global_step"} < names
        assert not {"local", "placed", "local/Adam", "placed/Adam_1", "beta1_power"} & names
        spec = ClusterSpec({"ps": ["a:1"], "worker": ["b:1", "c:1"]})
        assert set(JobModel(graph, spec, lambda _: {}).shared) == {"shared", "elsewhere"}
        assert examine(plain, graph, step).follow_up is None
        split = examine(whole, graph, step).follow_up
    assert split is not None
    assert set(split.second.writes) == {"local"}
    assert {op.type for op in split.second.schedule.needed} & {"Adam", "ApplyAdam"} == set()
    assert [one.op.type for one in split.links] == ["Const"]
    assert split.feeds(([4.0, 2.0], []), []) == [2.0]
    assert split.joined(([4.0, 2.0], []), ([6.0], [])) == ([6.0, 4.0], [])


def test_a_push_of_one_of_two_training_operations_leaves_the_others_state_alone() -> None:
    w = tf.get_variable("w", [2])
    for beta in (0.5, 0.25):
        tf.train.AdamOptimizer(0.1, beta1=beta).minimize(tf.reduce_sum(w))
    optimizer = JobOptimizer(updates_of(tf.get_default_graph().get_operations(), None))
    params = {"w": np.ones(2, np.float32)}
    state = optimizer.init(params)
    # Of two workers in lockstep, one has run the second operation: what arrives is the mean.
    gradient = {"w": np.full(2, 0.5, np.float32), "Adam/runs/0": np.float32(0.0), "Adam_1/runs/0": np.float32(0.5)}
    change, after = optimizer.update(gradient, state, params)
    np.testing.assert_allclose(change["w"], [-0.1, -0.1], rtol=1e-5)
    found = {name: float(value) for name, value in after["shared"].items()}
    assert found == pytest.approx(
        {"beta1_power": 0.5, "beta2_power": 0.999, "beta1_power_1": 0.0625, "beta2_power_1": 0.999**2}
    )
    np.testing.assert_array_equal(after["slots"]["m"]["w"], [0.0, 0.0])
    np.testing.assert_allclose(after["slots"]["m_1"]["w"], [0.75, 0.75])


def test_an_assignment_that_the_script_does_not_order_comes_after_the_update() -> None:
    w = tf.get_variable("w", [2])
    train = tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(w))
    clip = w.assign(tf.clip_by_value(w, -1.0, 1.0))
    split = examine(Computation([train, clip], []), tf.get_default_graph(), None).follow_up
    assert split is not None
    assert set(split.first.writes) == {"w"}
    assert [op.type for op in split.first.schedule.needed if op.writes] == ["ApplyGradientDescent"]
    assert [op.type for op in split.second.schedule.needed if op.writes] == ["Assign"]
    assert not split.links  # it reads the variable again


def test_cluster_specs_and_servers() -> None:
    spec = tf.train.ClusterSpec({"ps": ["a:1"], "worker": {0: "b:1", 2: "c:1"}})
    assert spec.as_dict() == {"ps": ["a:1"], "worker": {0: "b:1", 2: "c:1"}}
    assert spec.task_address("worker", 2) == "c:1"
    assert (spec.jobs, spec.num_tasks("worker"), spec.job_tasks("ps")) == (["ps", "worker"], 2, ["a:1"])
    with pytest.raises(ValueError, match="No such job"):
        spec.num_tasks("nobody")
    with pytest.raises(TypeError, match="must be a dictionary"):
        tf.train.ClusterSpec("a:1")
    with pytest.raises(tf.errors.InvalidArgumentError, match='Job "worker" task 1 was not defined'):
        tf.train.Server(spec, "worker", 1)
    with pytest.raises(ValueError, match="explicit `job_name`"):
        tf.train.Server(spec)
    server = tf.train.Server.create_local_server()
    with tf.Session(server.target) as session:
        assert session.run(tf.constant(3)) == 3


def test_jobs_may_have_other_names() -> None:
    assert roles(["trainer", "pserver", "master"]) == {"trainer": "worker", "pserver": "ps", "master": "chief"}
    assert roles(["steps", "ps"])["ps"] == "ps"
    with pytest.raises(ValueError, match="'learner' and 'actor' of the cluster are both taken for 'worker'"):
        roles(["learner", "actor", "ps"])
    server = tf.train.Server({"pserver": ["127.0.0.1:1"], "trainer": {3: "127.0.0.1:2"}}, "trainer", 3)
    with tf.device("/job:pserver/task:0"):
        w = tf.get_variable("w", [2])
    with tf.device("/job:trainer/task:3"):
        mine = tf.get_variable("mine", [2])
        other = tf.Variable(tf.zeros([2]), collections=["local_variables"], trainable=False)
    with tf.Session(server.target) as session:
        session.run([w.initializer, mine.initializer, other.initializer])
        spec = ClusterSpec({"ps": ["a:1"], "worker": {3: "b:1"}})
        model = JobModel(tf.get_default_graph(), spec, lambda _: {}, "pserver")
    assert (set(model.shared), model.homes()) == ({"w"}, {"w": 0})


def test_a_synchronous_optimizer_in_one_process_is_the_optimizer() -> None:
    w = tf.get_variable("w", [], initializer=tf.ones_initializer())
    step = tf.train.get_or_create_global_step()
    optimizer = tf.train.SyncReplicasOptimizer(tf.train.GradientDescentOptimizer(0.5), 1)
    with pytest.raises(ValueError, match="Global step is required"):
        optimizer.minimize(w)
    train = optimizer.minimize(tf.square(w), global_step=step)
    hook = optimizer.make_session_run_hook(is_chief=True)
    with tf.train.MonitoredTrainingSession(hooks=[hook]) as session:
        session.run(train)
        assert session.run([w, step]) == [0.0, 1]


def test_the_regularizers_and_initializers_of_contrib() -> None:
    layers = tf.contrib.layers
    with tf.variable_scope("s", regularizer=layers.l2_regularizer(0.5), initializer=layers.xavier_initializer()):
        w = tf.get_variable("w", [40, 60])
    assert layers.l1_regularizer(0.0)(w) is None
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        value, l2, l1 = session.run([w, tf.losses.get_regularization_loss(), layers.l1_regularizer(2.0)(w)])
    assert abs(value).max() <= (6 / 100) ** 0.5
    assert l2 == pytest.approx(0.25 * (value**2).sum(), rel=1e-5)
    assert l1 == pytest.approx(2 * abs(value).sum(), rel=1e-5)


def test_what_cannot_be_done_on_ps_is_refused_before_the_job_is_joined() -> None:
    server = tf.train.Server({"ps": ["127.0.0.1:1"], "worker": ["127.0.0.1:2"]}, "worker", 0)
    first, second = (tf.get_variable(name, [2]) for name in ("first", "second"))
    sgd = tf.train.GradientDescentOptimizer(0.1)
    trains = [sgd.minimize(tf.reduce_sum(first) * rate) for rate in (1.0, 2.0)]
    with tf.control_dependencies([first.assign(tf.ones([2]))]):
        started = sgd.minimize(tf.reduce_sum(first + second))
    session = tf.Session(server.target)
    with pytest.raises(tf.errors.UnimplementedError, match="first is trained by two training operations of one run"):
        session.run(trains)
    with pytest.raises(tf.errors.UnimplementedError, match="first is assigned and then trained in one run"):
        session.run(started)
    with tf.device("/job:ps/task:3"):
        lost = tf.constant(1.0, name="lost")
    with pytest.raises(tf.errors.InvalidArgumentError, match="Cannot assign a device for operation lost"):
        session.run(lost)
    # What touches no variable of the job needs no job.
    assert session.run(tf.constant(2) * 3) == 6
    session.close()


def test_a_worker_runs_a_session_of_another_task_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    tf.train.Server({"ps": ["127.0.0.1:1"], "worker": ["127.0.0.1:7", "127.0.0.1:8"]}, "worker", 1)
    with tf.Session("grpc://127.0.0.1:7") as session:
        assert session.run(tf.constant(2) * 3) == 6
    assert "this worker runs the session itself" in capsys.readouterr().err


def test_a_cluster_without_ps_is_refused() -> None:
    server = tf.train.Server({"worker": ["127.0.0.1:1", "127.0.0.1:2"]}, "worker", 0)
    with pytest.raises(tf.errors.UnimplementedError, match="add a job ps"):
        tf.Session(server.target)
