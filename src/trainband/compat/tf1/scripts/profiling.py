"""`tf.profiler` and `Timeline`: the number of parameters, and whole runs. JAX has a profiler for operations."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

from trainband.compat.tf1.graphs.graph import get_default_graph
from trainband.compat.tf1.graphs.graph_keys import GraphKeys
from trainband.runtime.waiting import say_on_stderr

_NO_TIMES = (
    "TensorFlow's profiler and Timeline have no times here but those of whole runs: a step is one compiled program. "
    "Use jax.profiler."
)


class ProfileOptionBuilder:
    """What to profile."""

    def __init__(self, options: dict[str, Any] | None = None) -> None:
        self._options = dict(options or {})

    @staticmethod
    def trainable_variables_parameter() -> dict[str, Any]:
        """The number of parameters."""
        return {"select": ["params"]}

    @staticmethod
    def float_operation() -> dict[str, Any]:
        """The number of floating-point operations, which is not known."""
        return {"select": ["float_ops"]}

    @staticmethod
    def time_and_memory(**_: Any) -> dict[str, Any]:
        """Times and sizes, which are not known."""
        return {"select": ["micros", "bytes"]}

    def build(self) -> dict[str, Any]:
        """The options."""
        return dict(self._options)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith(("with_", "select", "order_by", "account_")):
            raise AttributeError(name)
        return lambda *_, **__: self


@dataclass(frozen=True, slots=True)
class Profile:
    """What is known about a graph."""

    total_parameters: int
    total_float_ops: int = 0
    total_exec_micros: int = 0
    total_requested_bytes: int = 0


def profile(
    graph: Any = None, run_meta: Any = None, op_log: Any = None, cmd: str = "scope", options: Any = None
) -> Profile:
    """Counts a graph's parameters. Times and operations are 0, and a line says so where they are asked for."""
    del run_meta, op_log, cmd
    wanted = options.get("select", []) if isinstance(options, dict) else []
    if wanted != ["params"]:
        say_on_stderr(_NO_TIMES)
    variables = (graph or get_default_graph()).get_collection(GraphKeys.TRAINABLE_VARIABLES)
    return Profile(sum(math.prod(one.shape.as_list()) for one in variables))


class Profiler:
    """A profile over several steps, without times."""

    def __init__(self, graph: Any = None, op_log: Any = None) -> None:
        del op_log
        self._graph = graph

    def add_step(self, step: int, run_meta: Any) -> None:
        """Change nothing: there are no times."""

    def profile_name_scope(self, options: Any) -> Profile:
        """A profile."""
        return profile(self._graph, options=options)

    profile_operations = profile_python = profile_graph = profile_name_scope

    def advise(self, options: Any) -> None:
        """Say that there are no times."""
        del options
        say_on_stderr(_NO_TIMES)


def advise(graph: Any = None, run_meta: Any = None, options: Any = None) -> None:
    """Say that there are no times."""
    del graph, run_meta, options
    say_on_stderr(_NO_TIMES)


class Timeline:
    """A trace of runs, each of which is one event: it is one compiled program."""

    def __init__(self, step_stats: Any, graph: Any = None) -> None:
        del graph
        self._stats = step_stats

    def generate_chrome_trace_format(
        self, show_dataflow: bool = True, show_memory: bool = False, op_time: str = "schedule"
    ) -> str:
        """The trace as JSON; a line says why there are no operations in it."""
        del show_dataflow, show_memory, op_time
        say_on_stderr(_NO_TIMES)
        events: list[dict[str, Any]] = []
        for process, device in enumerate(self._stats.dev_stats):
            events.append({"ph": "M", "name": "process_name", "pid": process, "args": {"name": device.device}})
            events += [
                {
                    "ph": "X", "cat": "Op", "name": node.node_name, "pid": process, "tid": node.thread_id,
                    "ts": node.all_start_micros, "dur": node.all_end_rel_micros,
                }
                for node in device.node_stats
            ]  # fmt: skip
        return json.dumps({"traceEvents": events})
