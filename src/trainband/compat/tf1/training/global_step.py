"""The global step: how many updates have been made."""

from __future__ import annotations

from typing import Any

from trainband.compat.ops.dtypes import int64
from trainband.compat.tf1.graphs.graph import Graph, get_default_graph
from trainband.compat.tf1.graphs.graph_keys import GraphKeys
from trainband.compat.tf1.graphs.variable import Variable
from trainband.compat.tf1.operations.initializers import Zeros
from trainband.compat.tf1.operations.variable_scope import get_variable
from trainband.compat.tf1.scripts import logging


def get_global_step(graph: Graph | None = None) -> Variable | None:
    """The graph's global step; `None` where it has none.

    Raises:
      RuntimeError: it has several.
    """
    graph = graph or get_default_graph()
    found = graph.get_collection(GraphKeys.GLOBAL_STEP)
    if not found:
        return graph.variables.get("global_step")
    if len(found) > 1:
        raise RuntimeError(f"Multiple items found in collection {GraphKeys.GLOBAL_STEP}: {found}")
    step: Variable = found[0]
    return step


def create_global_step(graph: Graph | None = None) -> Variable:
    """Makes the graph's global step.

    Raises:
      ValueError: it has one.
    """
    graph = graph or get_default_graph()
    if get_global_step(graph) is not None:
        raise ValueError('"global_step" already exists.')
    with graph.as_default(), graph.name_scope(None):
        made: Variable = get_variable(
            GraphKeys.GLOBAL_STEP,
            shape=[],
            dtype=int64,
            initializer=Zeros(int64),
            trainable=False,
            collections=[GraphKeys.GLOBAL_VARIABLES, GraphKeys.GLOBAL_STEP],
        )
    return made


def get_or_create_global_step(graph: Graph | None = None) -> Variable:
    """The graph's global step, made if need be."""
    found = get_global_step(graph)
    return create_global_step(graph) if found is None else found


def global_step(sess: Any, global_step_tensor: Any) -> int:
    """The value of a global step in a session."""
    return int(sess.run(global_step_tensor))


def assert_global_step(global_step_tensor: Any) -> None:
    """Raises `TypeError` where it is no whole number."""
    if not global_step_tensor.dtype.is_integer:
        raise TypeError(f'Existing "global_step" does not have integer type: {global_step_tensor.dtype}')
    if global_step_tensor.shape.ndims not in (0, None):
        raise TypeError(f'Existing "global_step" is not scalar: {global_step_tensor.shape}')


def increment_global_step(increment: int, graph: Graph | None = None) -> Any:
    """Adds to the graph's global step; a tensor of the new value.

    Raises:
      ValueError: it has none.
    """
    step = get_global_step(graph)
    if step is None:
        raise ValueError(
            "Global step tensor should be created by tf.train.get_or_create_global_step before calling it."
        )
    return step.assign_add(increment)


def used_step(graph: Graph) -> Variable | None:
    """The graph's global step: the one that was made as such, or else the variable in which `minimize` counts steps.

    TensorFlow knows only the former. Tutorials count in `tf.Variable(0)`, though; such a variable becomes the graph's
    global step here, and a line says so.
    """
    found = get_global_step(graph)
    counters = _counters(graph) if found is None else []
    if len(counters) != 1:
        return found
    (step,) = counters
    graph.get_collection_ref(GraphKeys.GLOBAL_STEP).append(step)
    logging.warning(
        "%s, in which minimize() counts its steps, is taken for the global step. TensorFlow expects it to come from "
        "tf.train.get_or_create_global_step().",
        step.name,
    )
    return step


def needed_step(what: str) -> Any:
    """The graph's global step.

    Raises:
      RuntimeError: it has none, or several may be meant.
    """
    graph = get_default_graph()
    step = used_step(graph)
    if step is None:
        counters = _counters(graph)
        several = f" minimize() counts steps in several variables: {', '.join(v.name for v in counters)}; make one of "
        several += "them with tf.train.get_or_create_global_step()."
        raise RuntimeError(f"Global step should be created to use {what}.{several if counters else ''}")
    return step


def _counters(graph: Graph) -> list[Variable]:
    """The variables, of whole numbers, in which optimizers count their steps."""
    counted = dict.fromkeys(op.attributes["variable"] for op in graph.operations if op.attributes.get("counts"))
    return [variable for variable in counted if variable.dtype.is_integer]
