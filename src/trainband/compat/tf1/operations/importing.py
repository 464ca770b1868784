"""Import a GraphDef: record its operations again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, NoReturn

from trainband.compat.ops import array
from trainband.compat.ops.binding import Late, put_back
from trainband.compat.ops.dtypes import DType, as_dtype, float32, string
from trainband.compat.ops.shapes import TensorShape
from trainband.compat.ops.table import op_of, op_with_key
from trainband.compat.tf1.graphs.errors import UnimplementedError
from trainband.compat.tf1.graphs.graph import Graph, Operation, Region, Tensor, get_default_graph
from trainband.compat.tf1.graphs.node_settings import REGION, SETTINGS, Named, unpacked
from trainband.compat.tf1.graphs.record import constant, convert, record
from trainband.compat.tf1.graphs.region import loop_variable
from trainband.compat.tf1.graphs.variable import Variable
from trainband.compat.tf1.networks.recurrence import record_steps
from trainband.compat.tf1.operations.array import placeholder, placeholder_with_default
from trainband.compat.tf1.operations.control_flow import no_op, record_branches
from trainband.compat.tf1.operations.foreign import foreign_arguments
from trainband.compat.tf1.operations.functional import record_rows
from trainband.compat.tf1.operations.loops import record_loop
from trainband.compat.tf1.operations.recorder import record_converted, record_op
from trainband.compat.tf1.protos.graph import GraphDef
from trainband.compat.tf1.protos.tensor import array_of_proto

MOST_OUTPUTS = 100_000
"""Of an operation: how many it has is told by those that take them."""


def import_graph_def(
    graph_def: Any,
    input_map: Mapping[str, Any] | None = None,
    return_elements: Sequence[str] | None = None,
    name: str | None = None,
    op_dict: Any = None,
    producer_op_list: Any = None,
) -> list[Any] | None:
    """Record the operations of a `GraphDef`, below the name scope `import` unless `name` says otherwise.

    An operation that a GraphDef can only name, such as a derivative, is there as well; a run that needs it raises
    `UnimplementedError`.

    Args:
      input_map: what takes the place of outputs of the stored operations.
      return_elements: names of operations and tensors to return.

    Raises:
      TypeError: an argument is of another type.
      ValueError: an input or a returned element does not exist.
    """
    del op_dict, producer_op_list
    if not hasattr(graph_def, "SerializeToString") or not hasattr(graph_def, "node"):
        raise TypeError("graph_def must be a GraphDef proto.")
    if not isinstance(graph_def, GraphDef):
        graph_def = GraphDef.FromString(graph_def.SerializeToString())  # the same message of an installed TensorFlow
    if input_map is not None and not (
        isinstance(input_map, Mapping) and all(isinstance(one, str) for one in input_map)
    ):
        raise TypeError("input_map must be a dictionary mapping strings to Tensor objects.")
    if return_elements is not None and not all(isinstance(one, str) for one in return_elements):
        raise TypeError("return_elements must be a list of strings.")
    graph = get_default_graph()
    mapped = {
        _full(key): value if isinstance(value, Operation) else convert(value)
        for key, value in (input_map or {}).items()
    }
    with graph.name_scope("import" if name is None else name or None) as prefix:
        importing = Importing(graph, prefix, {node.name: node for node in graph_def.node}, mapped)
        with graph.outside_scopes():
            importing.run()
    if unused := [key for key in input_map or {} if _full(key) not in importing.used]:
        raise ValueError(f"Attempted to map inputs that were not found in graph_def: {unused}")
    return None if return_elements is None else [importing.element(one) for one in return_elements]


def _full(name: str) -> str:
    """The name of a tensor with its index, `^name` as it is."""
    return name if ":" in name or name.startswith("^") else f"{name}:0"


@dataclass(slots=True)
class Importing:
    """One import: what is to be recorded, and what has been."""

    graph: Graph
    prefix: str
    nodes: Mapping[str, Any]
    mapped: Mapping[str, Any]
    made: dict[str, Operation] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    names: dict[str, str] = field(default_factory=dict)
    regions: dict[str, Region] = field(default_factory=dict)

    def run(self) -> None:
        """Records everything, inputs first, and what is in regions before what runs them."""
        self.names.update({one: self.graph.exact_name(f"{self.prefix}{one}") for one in self.nodes})
        for node in self._ordered():
            for one in node.input:
                name = one.removeprefix("^").partition(":")[0]
                if name not in self.nodes and _full(one) not in self.mapped:
                    raise ValueError(f"Node '{node.name}': Unknown input node '{one}'")
            with self.graph.device(node.device or (lambda op: op.device)):
                self.made[node.name] = self._record(node)
        for op in self.made.values():
            variable = op.attributes.get("variable")
            if variable is not None and variable.op is op and not hasattr(variable, "_read"):
                variable.read_by()

    def element(self, name: str) -> Any:
        """An operation or a tensor by its stored name."""
        operation, colon, index = name.partition(":")
        if operation not in self.made or (colon and not 0 <= int(index) < len(self.made[operation].outputs)):
            raise ValueError(f"Requested return_element '{name}' not found in graph_def.")
        op = self.made[operation]
        return op.outputs[int(index)] if colon else op

    def _ordered(self) -> Iterable[Any]:
        done: set[str] = set()
        inside: dict[str, list[str]] = {}
        for node in self.nodes.values():
            if REGION in node.attr:
                inside.setdefault(_owner(node.attr[REGION].s.decode()), []).append(node.name)
        for first in self.nodes:
            waiting = [(first, False)]
            while waiting:
                name, inputs_done = waiting.pop()
                if inputs_done:
                    yield self.nodes[name]
                elif name not in done and name in self.nodes:
                    done.add(name)
                    waiting.append((name, True))
                    waiting += [(one.removeprefix("^").partition(":")[0], False) for one in self.nodes[name].input]
                    waiting += [(one, False) for one in inside.get(name, ())]

    def _record(self, node: Any) -> Operation:
        inputs = [found for one in node.input if not one.startswith("^") and (found := self._tensor(one)) is not None]
        control = [op for one in node.input if one.startswith("^") and (op := self._operation(one)) is not None]
        name = self.names[node.name] + "/"
        region: AbstractContextManager[None] = nullcontext()
        if REGION in node.attr:
            region = self.graph.recording(self._region(node.attr[REGION].s.decode()))
        why = ""
        with region, self.graph.control_dependencies(None), self.graph.control_dependencies(control):
            if len(inputs) == sum(not one.startswith("^") for one in node.input):
                try:
                    made = _again(node, inputs, name, self._named)
                    if made is not None:
                        return made
                except (KeyError, TypeError) as exc:
                    why = str(exc)
            return _refusing(node, inputs, name, self._count(node), why)

    def _region(self, label: str) -> Region:
        if label not in self.regions:
            owner = self.nodes[_owner(label)]
            outer = self._region(owner.attr[REGION].s.decode()) if REGION in owner.attr else self.graph.region
            self.regions[label] = Region(outer)
        return self.regions[label]

    def _named(self, kind: str, name: str) -> Any:
        """A tensor or a region that settings name."""
        if kind == "region":
            return self._region(name)
        found = self._tensor(name)
        if found is None:
            raise KeyError(name)
        return found

    def _tensor(self, name: str) -> Tensor | None:
        full = _full(name)
        if full in self.mapped:
            self.used.add(full)
            found: Tensor = self.mapped[full]
            return found
        operation, _, index = full.partition(":")
        if operation not in self.made:
            return None  # around a loop
        outputs = self.made[operation].outputs
        if int(index) >= len(outputs):
            raise ValueError(
                f"Connecting to invalid output {index} of source node {operation} which has {len(outputs)} outputs."
            )
        return outputs[int(index)]

    def _operation(self, name: str) -> Operation | None:
        if name in self.mapped:
            self.used.add(name)
            return self.mapped[name].op  # type: ignore[no-any-return]
        return self.made.get(name[1:])

    def _count(self, node: Any) -> int:
        if "_output_types" in node.attr:
            return len(node.attr["_output_types"].list.type)
        used = [
            int(one.partition(":")[2] or 0)
            for other in self.nodes.values()
            for one in other.input
            if one.partition(":")[0] == node.name
        ]
        count = 1 + max(used, default=0)
        if count > MOST_OUTPUTS:
            raise ValueError(f"{node.name} would have {count:,} outputs, and {MOST_OUTPUTS:,} are the most.")
        return count


_WITH_REGIONS: Mapping[str, Callable[..., Operation]] = {
    "If": record_branches,
    "While": record_loop,
    "Steps": record_steps,
    "Rows": record_rows,
}


def _owner(label: str) -> str:
    """The name of the operation that runs a region."""
    return label.rpartition(":")[0]


Again = Callable[[Any, Sequence[Tensor], str], Operation]
"""Records a node, with its inputs and its name with a `/` at the end."""


def _constant(node: Any, _: Sequence[Tensor], name: str) -> Operation:
    return constant(array_of_proto(node.attr["value"].tensor), name).op


def _placeholder(node: Any, _: Sequence[Tensor], name: str) -> Operation:
    return placeholder(as_dtype(node.attr["dtype"].type), shape_of(node), name).op


def _placeholder_with_default(node: Any, inputs: Sequence[Tensor], name: str) -> Operation:
    return placeholder_with_default(inputs[0], shape_of(node), name).op


def _loop_variable(node: Any, _: Sequence[Tensor], name: str) -> Operation:
    shape = TensorShape(node.attr["_output_shapes"].list.shape[0])
    return loop_variable(as_dtype(node.attr["_output_types"].list.type[0]), shape, name).op


def _variable(node: Any, _: Sequence[Tensor], name: str) -> Operation:
    dtype = as_dtype(node.attr["dtype"].type)
    return Variable.declared(get_default_graph(), name.rstrip("/"), dtype, shape_of(node)).op


def _identity(_: Any, inputs: Sequence[Tensor], name: str) -> Operation:
    variable = _variable_of(inputs[0])
    if variable is None:
        return record_converted(op_of(array.identity), {"input": inputs[0]}, 1, name, None)
    return variable.read_by(variable.fresh_read(name)).op


def _assignment(method: str) -> Again:
    def assign(node: Any, inputs: Sequence[Tensor], name: str) -> Operation:
        variable = _variable_of(inputs[0])
        if variable is None:
            raise TypeError(f"{inputs[0]} is not a variable.")
        result = getattr(variable, method)(inputs[1], name=name)
        if SETTINGS in node.attr:
            variable.initialize_by(result)
        return result.op  # type: ignore[no-any-return]

    return assign


def _variable_of(tensor: Tensor) -> Variable | None:
    variable = tensor.op.attributes.get("variable")
    return variable if variable is not None and variable.op is tensor.op else None


_TYPES: Mapping[str, Again] = {
    "Const": _constant,
    "Placeholder": _placeholder,
    "PlaceholderV2": _placeholder,
    "PlaceholderWithDefault": _placeholder_with_default,
    "LoopVariable": _loop_variable,
    "NoOp": lambda _, __, name: no_op(name),
    "VariableV2": _variable,
    "Variable": _variable,
    "Identity": _identity,
    "Assign": _assignment("assign"),
    "AssignAdd": _assignment("assign_add"),
    "AssignSub": _assignment("assign_sub"),
}


def _again(node: Any, inputs: Sequence[Tensor], name: str, named: Named) -> Operation | None:
    settings = unpacked(node.attr[SETTINGS].s, named) if SETTINGS in node.attr else {}
    if "again" in settings:
        kind, arguments = settings["again"]
        return _WITH_REGIONS[kind](**arguments, name=name)
    if "op" not in settings and node.op in _TYPES:
        return _TYPES[node.op](node, inputs, name)
    if "op" in settings:
        op, count = op_with_key(settings["op"]), len(node.attr["_output_types"].list.type)
        arguments = put_back(settings["arguments"], settings["layout"], inputs)
        late = [one for one in settings["layout"] if one not in (*op.tensors, *op.lists)]
        arguments |= {one: Late(arguments[one]) for one in late}
    else:
        found = foreign_arguments(node, inputs)
        result = None if found is None else record_op(*found, name)
        return None if result is None else convert(result[0] if isinstance(result, list | tuple) else result).op
    made = record_converted(op, arguments, count, name, None)
    if "seed" in settings:
        made.attributes["seed"] = settings["seed"]
    shapes = node.attr["_output_shapes"].list.shape if "_output_shapes" in node.attr else ()
    for output, shape in zip(made.outputs, shapes, strict=False):
        if output.shape.sizes is None:
            output.set_shape(TensorShape(shape))
    return made


def _refusing(node: Any, inputs: Sequence[Tensor], name: str, count: int, why: str) -> Operation:
    """Record an operation that cannot be made again: a run that needs it raises an error."""

    def compute(*_: Any) -> NoReturn:
        raise UnimplementedError(
            None,
            op,
            f"{node.op} {op.name} is from a GraphDef, which cannot say how to compute it{why and f' ({why})'}. "
            "Run the code that built the graph, and restore the variables from a checkpoint.",
        )

    stored = [as_dtype(one) for one in node.attr["_output_types"].list.type] if "_output_types" in node.attr else []
    dtypes = stored or [_some_type(node)] * count
    shapes: list[Any] = (
        [TensorShape(one) for one in node.attr["_output_shapes"].list.shape] if "_output_shapes" in node.attr else []
    )
    op = record(
        node.op,
        compute,
        inputs,
        name=name,
        count=len(dtypes),
        dtypes=dtypes,
        shapes=shapes or [None] * len(dtypes),
        stateful=True,
        attributes={"host": compute} if string in dtypes else {},
    )
    return op


def _some_type(node: Any) -> DType:
    for key in ("dtype", "DstT", "Tparams", "T"):
        with suppress(TypeError):
            if key in node.attr:
                return as_dtype(node.attr[key].type)
    return float32


def shape_of(node: Any) -> TensorShape:
    """The attribute `shape` of a node; that of a placeholder of old files, of no dimensions, means nothing."""
    return TensorShape(node.attr["shape"].shape) if "shape" in node.attr else TensorShape(None)
