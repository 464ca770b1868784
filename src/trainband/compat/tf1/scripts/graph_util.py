"""Parts of a GraphDef, and GraphDefs with constants in place of variables: `tf.graph_util`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainband.compat.ops.shapes import TensorShape
from trainband.compat.tf1.graphs.graph import get_default_graph
from trainband.compat.tf1.graphs.node_settings import REGION, SETTINGS, names_in
from trainband.compat.tf1.protos.graph import GraphDef
from trainband.compat.tf1.protos.tensor import tensor_proto

_VARIABLES = ("VariableV2", "Variable", "VarHandleOp")
_ON_CPU = (*_VARIABLES, "Assign", "AssignAdd", "AssignSub", "ScatterUpdate", "ScatterAdd", "ScatterSub")


def extract_sub_graph(graph_def: Any, dest_nodes: Sequence[str]) -> Any:
    """Return a GraphDef with only those nodes that some nodes need, in their order.

    Raises:
      TypeError: the nodes are not a list, or the graph is no GraphDef.
      AssertionError: there is no such node.
    """
    if not hasattr(graph_def, "node"):
        raise TypeError("graph_def must be a graph_pb2.GraphDef proto.")
    if isinstance(dest_nodes, str):
        raise TypeError("dest_nodes must be a list.")
    nodes = {node.name: node for node in graph_def.node}
    for one in dest_nodes:
        if one not in nodes:
            raise AssertionError(f"{one} is not in graph")
    inside: dict[str, list[str]] = {}
    for node in graph_def.node:
        if REGION in node.attr:
            inside.setdefault(node.attr[REGION].s.decode().rpartition(":")[0], []).append(node.name)
    needed: set[str] = set()
    waiting = list(dest_nodes)
    while waiting:
        name = waiting.pop()
        if name not in needed:
            needed.add(name)
            waiting += [*map(_operation, nodes[name].input), *inside.get(name, ())]
    made = type(graph_def)()
    made.node.extend(node for node in graph_def.node if node.name in needed)
    _copy_header(graph_def, made)
    return made


def convert_variables_to_constants(
    sess: Any,
    input_graph_def: Any,
    output_node_names: Sequence[str],
    variable_names_whitelist: Sequence[str] | None = None,
    variable_names_blacklist: Sequence[str] | None = None,
) -> Any:
    """Return the GraphDef of some nodes and what they need, with constants of a session's values for variables."""
    made = extract_sub_graph(input_graph_def, output_node_names)
    chosen = [
        node.name
        for node in made.node
        if node.op in _VARIABLES
        and (variable_names_whitelist is None or node.name in variable_names_whitelist)
        and node.name not in (variable_names_blacklist or ())
    ]
    values = dict(zip(chosen, sess.run([f"{name}:0" for name in chosen]) if chosen else [], strict=True))
    for node in made.node:
        if node.name in values:
            name, dtype = node.name, node.attr["dtype"].type
            node.Clear()
            node.name, node.op = name, "Const"
            node.attr["dtype"].type = dtype
            node.attr["value"].tensor.CopyFrom(tensor_proto(values[name]))
    return made


def remove_training_nodes(input_graph: Any, protected_nodes: Sequence[str] | None = None) -> Any:
    """Return a GraphDef without nodes that only matter for training: checks of numbers, and identities."""
    kept_anyway = set(protected_nodes or ())
    for node in input_graph.node:
        if SETTINGS in node.attr:
            kept_anyway |= names_in(node.attr[SETTINGS].s)
    checks = {node.name for node in input_graph.node if node.op == "CheckNumerics" and node.name not in kept_anyway}
    passed: dict[str, str] = {}
    for node in input_graph.node:
        data = [one for one in node.input if not one.startswith("^")]
        control = [one for one in node.input if one.startswith("^") and one[1:] not in checks]
        if node.op == "Identity" and node.name not in kept_anyway and len(data) == 1 and not control:
            passed[node.name] = data[0]
    made = GraphDef()
    _copy_header(input_graph, made)
    for node in input_graph.node:
        if node.name in checks or node.name in passed:
            continue
        copy = made.node.add()
        copy.CopyFrom(node)
        del copy.input[:]
        copy.input.extend(_through(one, passed) for one in node.input if _operation(one) not in checks)
    return made


def must_run_on_cpu(node: Any, pin_variables_on_cpu: bool = False) -> bool:
    """Whether a node is of strings, or of a variable where these are to stay on the CPU."""
    definition = getattr(node, "node_def", node)
    if pin_variables_on_cpu and definition.op in _ON_CPU:
        return True
    return any(definition.attr[key].type == 7 for key in ("dtype", "T", "DstT") if key in definition.attr)


def tensor_shape_from_node_def_name(graph: Any, input_name: str) -> TensorShape:
    """The shape of a tensor by its name, with or without its index."""
    name = input_name if ":" in input_name else f"{input_name}:0"
    shape: TensorShape = (graph or get_default_graph()).get_tensor_by_name(name).get_shape()
    return shape


def _copy_header(source: Any, made: Any) -> None:
    for name in ("versions", "library"):
        if source.HasField(name):
            getattr(made, name).CopyFrom(getattr(source, name))


def _operation(name: str) -> str:
    return name.removeprefix("^").partition(":")[0]


def _through(name: str, passed: dict[str, str]) -> str:
    while not name.startswith("^") and _operation(name) in passed:
        name = passed[_operation(name)]
    return name
