"""Variable: a value that persists between runs; and PartitionedVariable, which is split into parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from trainband.compat.ops.array import concat
from trainband.compat.ops.arrays import numpy_or_jax
from trainband.compat.ops.checks import check_range
from trainband.compat.ops.dtypes import DType, as_dtype
from trainband.compat.ops.indexing import checked_places, rows_added, rows_replaced, rows_subtracted
from trainband.compat.ops.shapes import TensorShape
from trainband.compat.tf1.graphs.default_session import needed_session
from trainband.compat.tf1.graphs.effects import guarded
from trainband.compat.tf1.graphs.errors import OutOfRangeError
from trainband.compat.tf1.graphs.graph import Graph, Operation, Tensor, get_default_graph
from trainband.compat.tf1.graphs.graph_keys import GraphKeys
from trainband.compat.tf1.graphs.record import convert, name_scope, record, record_tensor
from trainband.compat.tf1.graphs.save_slice import SaveSliceInfo
from trainband.compat.tf1.graphs.where import user_line


class Variable:
    """A variable of a graph. Its operation is named `scope/name`, as in TensorFlow.

    Args:
      initial_value: anything that can become a tensor, or a function that returns it.
      trainable: whether optimizers train it by default.
      collections: where it is listed; `GLOBAL_VARIABLES` when left out.
      validate_shape: whether its shape must be known.

    Raises:
      ValueError: no initial value, or none with a known shape.
    """

    def __init__(
        self,
        initial_value: Any = None,
        trainable: bool | None = True,
        collections: Sequence[str] | None = None,
        validate_shape: bool = True,
        caching_device: Any = None,  # noqa: ARG002 - there are no copies to place
        name: str | None = None,
        variable_def: Any = None,  # noqa: ARG002
        dtype: Any = None,
        expected_shape: Any = None,
        import_scope: Any = None,  # noqa: ARG002
        constraint: Callable[[Any], Any] | None = None,
        use_resource: Any = None,  # noqa: ARG002 - there is one kind only
        synchronization: Any = None,  # noqa: ARG002
        aggregation: Any = None,  # noqa: ARG002
        shape: Any = None,
        exact_name: str | None = None,
    ) -> None:
        if initial_value is None:
            raise ValueError("initial_value must be specified.")
        if constraint is not None and not callable(constraint):
            raise ValueError("The `constraint` argument must be a callable.")
        graph = get_default_graph()
        before, graph.region = graph.region, None  # a variable belongs to no branch and no loop's body
        wanted = None if dtype is None else as_dtype(dtype)
        try:
            with graph.control_dependencies(None), _scope_for(graph, name, exact_name) as scope:
                with name_scope(f"{scope}Initializer/" if exact_name is None else f"{exact_name}/Initializer/"):
                    value = initial_value() if callable(initial_value) else initial_value
                    initial = convert(value, wanted, name="initial_value")
                sizes = (
                    initial.shape
                    if shape is None and expected_shape is None
                    else TensorShape(expected_shape if shape is None else shape)
                )
                if validate_shape and not sizes.is_fully_defined():
                    raise ValueError(f"initial_value must have a shape specified: {initial} (at {user_line()})")
                self._make(graph, scope.rstrip("/"), initial, sizes)
        finally:
            graph.region = before
        self.constraint = constraint
        """Applied by an optimizer to its value after each update."""
        self.trainable = bool(trainable)
        """Whether optimizers train it by default."""
        self.save_slice: SaveSliceInfo | None = None
        """Of a part of a partitioned variable: which slice of the whole it is."""
        lists = [GraphKeys.GLOBAL_VARIABLES] if collections is None else list(collections)
        if self.trainable and GraphKeys.TRAINABLE_VARIABLES not in lists:
            lists.append(GraphKeys.TRAINABLE_VARIABLES)
        for one in lists:
            graph.add_to_collection(one, self)
        graph.variables[self.op_name] = self

    @classmethod
    def declared(cls, graph: Graph, name: str, dtype: DType, shape: TensorShape) -> Variable:
        """Record a variable of a stored graph, before its initializer (`initialize_by`) and reads (`read_by`)."""
        made = cls.__new__(cls)
        made.declare(graph, name, dtype, shape)
        made.constraint, made.trainable, made.save_slice = None, False, None
        graph.variables[name] = made
        return made

    @staticmethod
    def from_proto(variable_def: Any, import_scope: str | None = None) -> Variable:
        """The variable of the default graph that a `VariableDef` describes."""
        prefix = f"{import_scope.rstrip('/')}/" if import_scope else ""
        op = get_default_graph().get_tensor_by_name(f"{prefix}{variable_def.variable_name}").op
        variable: Variable = op.attributes["variable"]
        variable.trainable = variable_def.trainable
        if variable_def.HasField("save_slice_info_def"):
            variable.save_slice = SaveSliceInfo.of(variable_def.save_slice_info_def)
        return variable

    def to_proto(self, export_scope: str | None = None) -> Any:
        """Describe it in a `VariableDef`; `None` if it is not in the scope."""
        from trainband.compat.tf1.protos.graph import VariableDef

        prefix = f"{export_scope}/" if export_scope else ""
        if not self.name.startswith(prefix):
            return None
        made = VariableDef(
            variable_name=self.name.removeprefix(prefix),
            initializer_name=self.initializer.name.removeprefix(prefix),
            snapshot_name=self._read.name.removeprefix(prefix),
            initial_value_name=self.initial_value.name.removeprefix(prefix),
            trainable=self.trainable,
        )
        if self.save_slice is not None:
            self.save_slice.fill(made.save_slice_info_def)
        return made

    @property
    def _save_slice_info(self) -> SaveSliceInfo | None:  # a name that scripts use
        return self.save_slice

    def _set_save_slice_info(self, info: SaveSliceInfo | None) -> None:  # a name that scripts use
        self.save_slice = info

    def initialize_by(self, assignment: Tensor) -> None:
        """Makes an assignment its initializer."""
        self.initial_value, self.initializer = assignment.op.inputs[0], assignment.op
        self.initializer.attributes["initializes"] = self

    def read_by(self, read: Tensor | None = None) -> Tensor:
        """Record a read; unless one is passed, one of another name. The first is its value by default."""
        read = self.fresh_read(self.graph.unique_name(f"{self.op_name}/read")) if read is None else read
        self._read: Tensor = getattr(self, "_read", read)
        return read

    def declare(self, graph: Graph, name: str, dtype: DType, sizes: TensorShape) -> None:
        """Records what stands for it."""
        self.op_name = name
        """Its name without `:0`, which sessions, checkpoints and ps use."""
        self.graph = graph
        """Where it was recorded."""
        self.dtype = dtype
        """Of its elements."""

        def read(frame: Any) -> tuple[Any, ...]:
            return (frame.state[self.op_name],)

        self.op: Operation = record(
            "VariableV2",
            read,
            name=f"{name}/",
            dtypes=[self.dtype],
            shapes=[sizes],
            stateful=True,
            reads=(self,),
            attributes={"variable": self},
        )
        self.handle = self.op.outputs[0]
        """The tensor that stands for the variable; fetching it gives the value after everything else has run."""

    def _make(self, graph: Graph, name: str, initial: Tensor, sizes: TensorShape) -> None:
        self.declare(graph, name, initial.dtype, sizes)
        self.initial_value = initial
        """Its value from the initializer."""
        self.initializer = self._assign(initial, "Assign", lambda _, new: new, reads=False, name=f"{name}/Assign").op
        """The operation that gives it its first value."""
        self.initializer.attributes["initializes"] = self
        self.initializer.device = self.op.device
        self._read = self.fresh_read(f"{name}/read")

    def begin_with(self, value: Any) -> None:
        """Makes something else its first value."""
        self.initial_value = convert(value, self.dtype)
        self.initializer = self._assign(
            self.initial_value, "Assign", lambda _, new: new, reads=False, name=f"{self.op_name}/Assign"
        ).op
        self.initializer.attributes["initializes"] = self

    def fresh_read(self, name: str) -> Tensor:
        def read(frame: Any) -> tuple[Any, ...]:
            return (frame.state[self.op_name],)

        return record(
            "Identity",
            read,
            name=name if name.endswith("/") else name + "/",
            dtypes=[self.dtype],
            shapes=[self.handle.shape],
            stateful=True,
            reads=(self,),
            graph=self.graph,
            attributes={"variable": self},
        ).outputs[0]

    def _assign(
        self,
        value: Any,
        type_: str,
        change: Callable[[Any, Any], Any],
        *,
        reads: bool = True,
        name: str | None = None,
        check_shape: bool = True,
    ) -> Tensor:
        tensor = convert(value, self.dtype)
        if check_shape and not tensor.shape.is_compatible_with(self.handle.shape if self.op else None):
            raise ValueError(
                f"Dimensions must be equal: {type_} to {self.op_name} of shape {self.handle.shape} with a value of "
                f"shape {tensor.shape} (at {user_line()})"
            )

        def write(frame: Any, new: Any) -> tuple[Any, ...]:
            old = frame.state[self.op_name] if reads else None
            frame.state[self.op_name] = numpy_or_jax(old, new).asarray(change(old, new), self.dtype.numpy)
            return (frame.state[self.op_name],)

        return record(
            type_,
            write,
            [tensor],
            name=f"{name}/" if name is not None and name.startswith(self.op_name) else name,
            dtypes=[self.dtype],
            shapes=[tensor.shape if self.handle.shape.sizes is None else self.handle.shape],
            stateful=True,
            reads=(self,) if reads else (),
            writes=(self,),
            attributes={"variable": self},
        ).outputs[0]

    # --- what a script asks it

    @property
    def name(self) -> str:
        """`scope/name:0`."""
        return f"{self.op_name}:0"

    _shared_name = property(lambda self: self.op_name)
    _initializer_op = property(lambda self: self.initializer)

    @property
    def shape(self) -> TensorShape:
        """Its shape."""
        return self.handle.shape

    def get_shape(self) -> TensorShape:
        """Its shape."""
        return self.handle.shape

    @property
    def device(self) -> str:
        """Where it lives."""
        return self.op.device

    def fetched(self) -> Tensor:
        """What a session fetches for it."""
        return self.handle

    def as_tensor(self) -> Tensor:
        """Return its value, read after the open control dependencies, and in every round of an open loop."""
        ordered = self.graph.control_inputs() or self.graph.region is not None
        return self.fresh_read(self.graph.unique_name("read")) if ordered else self._read

    def value(self) -> Tensor:
        """Its value."""
        return self.as_tensor()

    def read_value(self) -> Tensor:
        """Its value when this is run."""
        return self.fresh_read(self.graph.unique_name("read"))

    def initialized_value(self) -> Tensor:
        """Its first value."""
        return self.initial_value

    def eval(self, session: Any = None) -> Any:
        """Its value in a session."""
        return self.handle.eval(session=session)

    def load(self, value: Any, session: Any = None) -> None:
        """Gives it a value in a session."""
        needed_session(session, "Variable.load").run(self.initializer, {self.initializer.inputs[0]: value})

    def set_shape(self, shape: Any) -> None:
        """Adds information about its shape."""
        self.handle.set_shape(shape)

    def assign(self, value: Any, use_locking: bool = False, name: str | None = None, read_value: bool = True) -> Any:  # noqa: ARG002
        """Record an assignment; the result is the new value."""
        return self._assign(value, "Assign", lambda _, new: new, reads=False, name=name)

    def assign_add(
        self,
        delta: Any,
        use_locking: bool = False,  # noqa: ARG002
        name: str | None = None,
        read_value: bool = True,  # noqa: ARG002
    ) -> Any:
        """Record an addition; the result is the sum."""
        return self._assign(delta, "AssignAdd", lambda old, new: old + new, name=name)

    def assign_sub(
        self,
        delta: Any,
        use_locking: bool = False,  # noqa: ARG002
        name: str | None = None,
        read_value: bool = True,  # noqa: ARG002
    ) -> Any:
        """Record a subtraction; the result is the difference."""
        return self._assign(delta, "AssignSub", lambda old, new: old - new, name=name)

    def scatter_update(self, slices: Any, name: str | None = None) -> Tensor:
        """Replaces the rows that an `IndexedSlices` names."""
        return scatter("ScatterUpdate", self, slices.indices, slices.values, rows_replaced, name)

    def scatter_sub(self, slices: Any, name: str | None = None) -> Tensor:
        """Subtract from the rows that an `IndexedSlices` names."""
        return scatter("ScatterSub", self, slices.indices, slices.values, rows_subtracted, name)

    def scatter_add(self, slices: Any, name: str | None = None) -> Tensor:
        """Adds to the rows that an `IndexedSlices` names."""
        return scatter("ScatterAdd", self, slices.indices, slices.values, rows_added, name)

    def count_up_to(self, limit: int, name: str | None = None) -> Tensor:
        """Add one; the result is what it was before. At the limit, a run raises `OutOfRangeError`."""

        def look(old: Any) -> None:
            if int(old) >= limit:
                raise OutOfRangeError(None, op, f"Reached limit of {limit}")

        def count(frame: Any) -> tuple[Any]:
            old = frame.state[self.op_name]
            jax.debug.callback(guarded(look), old)
            frame.state[self.op_name] = (old + 1).astype(self.dtype.numpy)
            return (old,)

        op = record(
            "CountUpTo",
            count,
            name=name,
            dtypes=[self.dtype],
            shapes=[self.shape],
            stateful=True,
            reads=(self,),
            writes=(self,),
            attributes={"variable": self, "effect": True},
        )
        return op.outputs[0]

    def __repr__(self) -> str:
        return f"<tf.Variable '{self.name}' shape={self.shape} dtype={self.dtype.name}_ref>"

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __iter__(self) -> Iterator[Any]:
        raise TypeError("'Variable' object is not iterable.")


def _overloaded(symbol: str) -> None:
    def method(self: Variable, *others: Any) -> Any:
        return getattr(Tensor, symbol)(self.as_tensor(), *others)

    setattr(Variable, symbol, method)


for _symbol in """add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow matmul rmatmul
        lt le gt ge neg abs invert and or xor getitem""".split():
    _overloaded(f"__{_symbol}__")


def _scope_for(graph: Graph, name: str | None, exact: str | None) -> Any:
    """A scope of the variable's own: `get_variable`'s names are exact, others are made unique."""
    return graph.name_scope(f"{exact}/" if exact is not None else name or "Variable")


def scatter(
    type_: str, variable: Any, indices: Any, updates: Any, change: Callable[[Any, Any, Any], Any], name: str | None
) -> Tensor:
    """Changes rows of a variable; the result is its new value."""

    def write(frame: Any, rows: Any, new: Any) -> tuple[Any, ...]:
        size = frame.state[variable.op_name].shape[0]
        check_range(rows, size)
        rows = frame.rows_if_unfailed(rows, size, [variable.op_name])
        frame.state[variable.op_name] = change(frame.state[variable.op_name], rows, new)
        return (frame.state[variable.op_name],)

    return _record_scatter(type_, variable, write, indices, updates, name)


def scatter_nd(
    type_: str, variable: Any, indices: Any, updates: Any, change: Callable[[Any, Any, Any], Any], name: str | None
) -> Tensor:
    """Changes elements or slices of a variable, at places that the last axis of the indices gives."""

    def write(frame: Any, places: Any, new: Any) -> tuple[Any, ...]:
        whole = frame.state[variable.op_name]
        frame.state[variable.op_name] = change(whole, checked_places(places, whole.shape), new)
        return (frame.state[variable.op_name],)

    return _record_scatter(type_, variable, write, indices, updates, name)


def _record_scatter(
    type_: str, variable: Any, write: Callable[..., tuple[Any, ...]], indices: Any, updates: Any, name: str | None
) -> Tensor:
    return record(
        type_,
        write,
        [convert(indices), convert(updates, variable.dtype)],
        name=name,
        dtypes=[variable.dtype],
        shapes=[variable.shape],
        stateful=True,
        reads=(variable,),
        writes=(variable,),
        attributes={"variable": variable},
    ).outputs[0]


class PartitionedVariable:
    """A variable that is split along one axis into parts, each a variable: `name/part_0` and so on."""

    def __init__(self, name: str, shape: TensorShape, dtype: DType, parts: Sequence[Variable], axis: int) -> None:
        self.op_name = name
        """The name of the whole."""
        self.shape = shape
        """Of the whole."""
        self.dtype = dtype
        """Of its elements."""
        self.parts = tuple(parts)
        """The parts, in order."""
        self.axis = axis
        """The axis along which it is split."""

    @property
    def name(self) -> str:
        """The name of the whole."""
        return self.op_name

    def get_shape(self) -> TensorShape:
        """The shape of the whole."""
        return self.shape

    def as_tensor(self) -> Tensor:
        """The whole."""
        if len(self.parts) == 1:
            return self.parts[0].as_tensor()
        tensors = [part.as_tensor() for part in self.parts]
        name = f"{self.op_name.rpartition('/')[2]}/ConcatPartitions"
        return record_tensor("ConcatV2", lambda *values: concat(values, self.axis), tensors, name=name)

    def fetched(self) -> Tensor:
        """What a session fetches for it."""
        return self.as_tensor()

    def _get_variable_list(self) -> list[Variable]:  # a name that scripts use
        return list(self.parts)

    def _get_partitions(self) -> list[int]:
        return [len(self.parts) if i == self.axis else 1 for i in range(self.shape.ndims or 0)]

    _concat = as_tensor

    def control_operations(self) -> list[Operation]:
        """The operations that make its parts."""
        return [part.op for part in self.parts]

    @property
    def initializer(self) -> list[Operation]:
        """What gives its parts their first values."""
        return [part.initializer for part in self.parts]

    def __iter__(self) -> Iterator[Variable]:
        return iter(self.parts)

    def __len__(self) -> int:
        return len(self.parts)


for _symbol in ("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "matmul", "rmatmul", "neg", "getitem"):

    def _of_whole(self: PartitionedVariable, *others: Any, _method: str = f"__{_symbol}__") -> Any:
        return getattr(Tensor, _method)(self.as_tensor(), *others)

    setattr(PartitionedVariable, f"__{_symbol}__", _of_whole)
