"""Operation and Tensor: a step of a computation as it is recorded, and what comes out of it.

The `Graph` that they belong to is in `graph`, which imports this file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from trainband.compat.ops.dtypes import DType
from trainband.compat.ops.shapes import TensorShape
from trainband.compat.tf1.graphs.default_session import needed_session
from trainband.compat.tf1.graphs.infer import Probe, probes_of_shape
from trainband.compat.tf1.graphs.where import user_line


class Stored(Protocol):
    """A variable, as operations and what runs them see it."""

    op_name: str
    """Its name without `:0`."""
    graph: Any
    dtype: DType
    op: Operation
    handle: Tensor
    initializer: Operation

    @property
    def shape(self) -> TensorShape:
        """Its shape."""
        ...

    @property
    def device(self) -> str:
        """Where it lives."""
        ...


class Tensor:
    """One output of an operation. The module `operators` adds Python's operators, which record operations."""

    __array_priority__ = 100

    def __init__(self, op: Operation, index: int, dtype: DType, shape: TensorShape, probes: Any = None) -> None:
        self.op = op
        self.value_index = index
        self.dtype = dtype
        self._shape = shape
        self.probes: tuple[Probe, Probe] | None = probes
        """What is known about it under two assumptions about the unknown sizes; see `infer`."""

    @property
    def name(self) -> str:
        """`scope/operation:0`."""
        return f"{self.op.name}:{self.value_index}"

    @property
    def graph(self) -> Any:
        """Where it was recorded."""
        return self.op.graph

    @property
    def device(self) -> str:
        """Where it is computed."""
        return self.op.device

    @property
    def shape(self) -> TensorShape:
        """What is known of its shape."""
        return self._shape

    def get_shape(self) -> TensorShape:
        """What is known of its shape."""
        return self._shape

    def _shape_as_list(self) -> list[int | None] | None:
        return None if self._shape.sizes is None else list(self._shape.sizes)

    def set_shape(self, shape: Any) -> None:
        """Adds information about its shape.

        Raises:
          ValueError: the shape contradicts what is known.
        """
        merged = self._shape.merge_with(shape)
        if merged != self._shape or self.probes is None:
            self._shape = merged
            self.probes = probes_of_shape(merged, self.dtype)

    def consumers(self) -> list[Operation]:
        """The operations that take it as an input."""
        return [op for op in self.graph.operations if self in op.inputs]

    def eval(self, feed_dict: Any = None, session: Any = None) -> Any:
        """Return its value in a session, by default in the default one."""
        return needed_session(session, "Tensor.eval").run(self, feed_dict)

    def __repr__(self) -> str:
        return f"<tf.Tensor '{self.name}' shape={self._shape} dtype={self.dtype.name}>"

    def __str__(self) -> str:
        return f'Tensor("{self.name}", shape={self._shape}, dtype={self.dtype.name})'

    def __iter__(self) -> Iterator[Tensor]:
        sizes = self._shape.sizes
        if not sizes or sizes[0] is None:
            raise TypeError(f"Tensor objects are only iterable when their first dimension is known: {self}.")
        return iter([self[i] for i in range(sizes[0])])  # type: ignore[index]

    def __bool__(self) -> bool:
        raise TypeError(
            "Using a `tf.Tensor` as a Python `bool` is not allowed. Use `if t is not None:` instead of `if t:` to test "
            "if a tensor is defined, and use TensorFlow ops such as tf.cond to execute subgraphs conditioned on the "
            "value of a tensor."
        )

    def __len__(self) -> int:
        raise TypeError(f"object of type 'Tensor' has no len(); its shape is {self._shape}.")

    __hash__ = object.__hash__
    __eq__ = object.__eq__


class Operation:
    """A step of a computation.

    Attributes:
      compute: maps the values of its inputs to those of its outputs, while a run is traced. One that is `stateful`
        gets the frame it runs in first.
      reads, writes: the variables that it reads and changes.
      folds: whether `compute` gives NumPy arrays for NumPy arrays, so that it can be done while recording.
      early: whether it should run before others where it can: a gradient, which has the forward pass at hand.
      region: the branch or loop body that it belongs to, `None` for the graph itself.
      attributes: further information for code that handles this type of operation.
    """

    def __init__(
        self,
        graph: Any,
        type_: str,
        name: str,
        inputs: Sequence[Tensor],
        compute: Callable[..., Any],
        *,
        control_inputs: Sequence[Operation] = (),
        stateful: bool = False,
        reads: Sequence[Stored] = (),
        writes: Sequence[Stored] = (),
        folds: bool = False,
        early: bool = False,
        attributes: dict[str, Any] | None = None,
    ) -> None:
        self.graph = graph
        self.type = type_
        self.name = name
        self.inputs = tuple(inputs)
        self.compute = compute
        self.control_inputs = list(control_inputs)
        self.stateful = stateful
        self.reads = tuple(reads)
        self.writes = tuple(writes)
        self.folds = folds
        self.early = early
        self.attributes = attributes or {}
        self.region: Region | None = None
        self.device = ""
        self.outputs: list[Tensor] = []
        self.number = -1
        self.where = user_line()

    @property
    def values(self) -> Callable[[], list[Tensor]]:
        """`values()` are the outputs."""
        return lambda: self.outputs

    @property
    def op(self) -> Operation:
        """Itself."""
        return self

    @property
    def node_def(self) -> Any:
        """Its name, type, inputs, device and attributes, as a `NodeDef`."""
        from trainband.compat.tf1.graphs.graph_def import node_def

        return node_def(self)

    def run(self, feed_dict: Any = None, session: Any = None) -> None:
        """Runs it in a session, the default one if none is given."""
        needed_session(session, "Operation.run").run(self, feed_dict)

    def __repr__(self) -> str:
        return f"<tf.Operation '{self.name}' type={self.type}>"


class Region:
    """The operations of one branch of a `cond`, or of a loop's body: they run inside it and nowhere else.

    Attributes:
      dynamic: whether shapes may depend on values inside it: a function that a dataset applies to its elements.
      label: the first operation that runs it, and which of its regions it is, `cond/Merge:0`; `None` before it is
        recorded.
    """

    def __init__(self, outer: Region | None, dynamic: bool = False) -> None:
        self.outer = outer
        self.dynamic: bool = dynamic or (outer is not None and outer.dynamic)
        self.operations: list[Operation] = []
        self.label: str | None = None

    def contains(self, op: Operation) -> bool:
        """Whether an operation belongs to it, or to a region within it."""
        region = op.region
        while region is not None and region is not self:
            region = region.outer
        return region is self
