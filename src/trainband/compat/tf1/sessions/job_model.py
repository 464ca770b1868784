"""JobModel: a graph as what trainband trains: first values, loss, optimizer, update rule and placement."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from trainband.cluster import ClusterSpec
from trainband.compat.tf1.graphs.device_spec import DeviceSpec
from trainband.compat.tf1.graphs.graph import Graph
from trainband.compat.tf1.graphs.graph_keys import GraphKeys
from trainband.compat.tf1.graphs.keys import Keys
from trainband.compat.tf1.graphs.lowering import FAILED, Computation, Frame
from trainband.compat.tf1.graphs.variable import Variable
from trainband.compat.tf1.sessions.job_rules import (
    Addition,
    applications,
    counted_step,
    is_shared,
    only_added_to,
    rules_of,
)
from trainband.compat.tf1.sessions.ps_optimizer import JobOptimizer, on_ps
from trainband.compat.tf1.sessions.slots import is_slot
from trainband.compat.tf1.sessions.step_batch import StepBatch, attached
from trainband.model.model import Given, Outputs
from trainband.ps.rules import Async, Sync, UpdateRule
from trainband.runtime.overrides import override

ANCHOR = "trainband/nothing"
"""The only param of a job whose graph trains nothing: a job must have one."""

FirstValues = Callable[[Sequence[Variable]], Mapping[str, Any]]
"""Of variables: the values that they begin with, by name."""


class SessionValues(Given):
    """The values that a session's variables begin with; of a key that is traced, only their shapes."""

    __slots__ = ()

    @override
    def __call__(self, key: Any) -> Any:
        return self.values(key)


class JobModel:
    """A graph as a job sees it.

    Args:
      first_values: called on the chief, once the job needs values.
      ps_job: what the script's devices call the ps.

    Attributes:
      step: the graph's global step, if the job counts it; see `counted_step`.
      shared: the variables that all tasks share, by name, without the global step and the optimizers' slots.
      rules: how they change.
    """

    def __init__(self, graph: Graph, spec: ClusterSpec, first_values: FirstValues, ps_job: str = "ps") -> None:
        self._graph = graph
        self._spec = spec
        self._first = first_values
        self._ps_job = ps_job
        self.step = counted_step(graph)
        self.shared: dict[str, Variable] = {
            variable.op_name: variable
            for variable in graph.get_collection(GraphKeys.GLOBAL_VARIABLES)
            if variable is not self.step and not is_slot(variable) and is_shared(variable)
        }
        self.rules = rules_of(graph, self.step, self.shared, len(spec.ps))

    def optimizer(self) -> JobOptimizer:
        """What the ps run."""
        return JobOptimizer(self.rules.updates, len(self._spec.ps), self.rules.held, self.rules.added)

    def rule(self) -> UpdateRule:
        """`Sync` where an optimizer of the graph says so, else `Async`."""
        settings = {op.attributes["synchronous"] for op in self._graph.operations if "synchronous" in op.attributes}
        if not settings:
            return Async()
        aggregate = settings.pop()
        workers = len(self._spec.workers)
        if aggregate == workers:
            return Sync()
        return Sync(backups=workers - aggregate) if aggregate < workers else Sync(aggregate=aggregate)

    def homes(self) -> dict[str, int]:
        """Return the ps on which variables have their place, by name."""
        ways = [update for some in self.rules.updates.values() for update in some]
        found = {on_ps(place, ps): ps for one in ways for place in one.places for ps in range(len(self._spec.ps))}
        for name, variable in self.shared.items():
            spec = DeviceSpec.from_string(variable.device)
            if spec.job == self._ps_job and spec.task is not None:
                found[name] = self._spec.task_indices("ps").index(spec.task)
        return found

    def first_params(self, key: Any) -> dict[str, Any]:
        """See `Trainer`'s `init`: the params' first values, or at tracing time their shapes."""
        values = self._first_values(key, [name for name in self.shared if name in self.rules.updates])
        values |= {name: jnp.zeros((), jnp.float32) for name in self.rules.updates if name not in self.shared}
        return values or {ANCHOR: jnp.zeros((), jnp.float32)}

    def first_state(self, key: Any) -> dict[str, Any]:
        """See `Trainer`'s `init_state`: the same of what no optimizer trains."""
        return self._first_values(key, [name for name in self.shared if name not in self.rules.updates])

    def _first_values(self, key: Any, names: Sequence[str]) -> dict[str, Any]:
        variables = [self.shared[name] for name in names]
        if isinstance(jax.random.key_data(key), jax.core.Tracer):  # only their shapes are asked for
            return {
                v.op_name: jnp.zeros(tuple(size or 0 for size in v.shape.sizes or ()), v.dtype.numpy) for v in variables
            }
        return {name: jnp.asarray(value) for name, value in self._first(variables).items()}

    def loss(self, params: dict[str, Any], state: dict[str, Any], batch: StepBatch, key: Any) -> Any:
        """Run a batch as the loss of a trainband model; see `Model.loss`."""
        computation = batch.computation
        # The graph computes its own gradients, so JAX must not differentiate what follows.
        still = jax.lax.stop_gradient(params)
        values = {**still, **state, **batch.own, **self.step_value(batch.step)}
        before = dict(values)
        frame = Frame({**values, FAILED: 0}, Keys.of_step(key), computation.given(batch.feeds))
        frame.pushes = dict.fromkeys(self.rules.updates)
        frame.run(computation.schedule)
        gradient = {name: jnp.zeros_like(value) for name, value in still.items()}
        for name, push in frame.pushes.items():
            if push is not None:
                gradient[name] = push.astype(still[name].dtype)
        runs = {op.attributes["application"].call for op in applications(computation.schedule.needed)}
        for name, ways in self.rules.updates.items():
            if isinstance(ways[0].rule, Addition):
                gradient[name] = frame.state[name] - still[name]
            for update in ways:
                if update.flag:
                    self._send(gradient, update.flag, float(update.call in runs))
                for number, place in update.pushed.items():
                    if name in frame.hyper and update.call in runs:
                        self._send(gradient, place, frame.hyper[name][number])
        failed = jnp.asarray(frame.state[FAILED], jnp.int32)
        # A ps refuses a gradient that is not finite, so that nothing changes.
        gradient = {
            name: jnp.where(failed == 0, one, jnp.nan) if jnp.issubdtype(one.dtype, jnp.floating) else one
            for name, one in gradient.items()
        }
        own = {
            name: frame.state[name]
            for name, variable in computation.writes.items()
            if not is_shared(variable) and name in frame.state
        }
        held = self.rules.held & computation.writes.keys()
        grown = only_added_to(computation.schedule.needed, held)
        metrics = Outputs(
            values=[frame.value(tensor) for tensor in computation.fetches],
            late=[frame.state[name] for name in computation.late],
            own=own,
            written={name: frame.state[name] for name in held - grown},
            grown={name: frame.state[name] - before[name] for name in grown},
            failed=failed,
        )
        loss = jnp.asarray(_loss_value(computation, frame), jnp.float32)
        after = {
            name: frame.state[name] - before[name] if name in self.rules.added else frame.state[name] for name in state
        }
        return attached(params, loss, gradient), (after, metrics)

    def step_value(self, step: Any) -> dict[str, Any]:
        """The global step as the value of its variable, by name; nothing, if the graph has none."""
        if self.step is None:
            return {}
        return {self.step.op_name: jnp.asarray(step, self.step.dtype.numpy)}

    def _send(self, gradient: dict[str, Any], place: str, number: Any) -> None:
        """Put a number in its place, on every ps."""
        for ps in range(len(self._spec.ps)):
            gradient[on_ps(place, ps)] = jnp.asarray(number, jnp.float32)

    def on_ps(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Values of shared variables, by what the ps call these."""
        return {name if name in self.rules.updates else f"state/{name}": value for name, value in values.items()}


def _loss_value(computation: Computation, frame: Frame) -> Any:
    """Return what the run minimises, to be shown: the sum of the tensor whose gradient it takes."""
    for op in computation.schedule.ordered:
        if op.early:
            return jnp.sum(frame.value(op.inputs[0]))
    return jnp.zeros(())
