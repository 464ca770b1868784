"""Tensor: one output of an operation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

from trainband.compat.tf1.graphs.dtypes import DType
from trainband.compat.tf1.graphs.shapes import TensorShape

if TYPE_CHECKING:
    from trainband.compat.tf1.graphs.graph import Graph, Operation
    from trainband.compat.tf1.graphs.infer import Probe


class Tensor:
    """One output of an operation. Arithmetic with it records more operations."""

    __array_priority__ = 100
    overloads: dict[str, Callable[..., Any]] = {}  # noqa: RUF012 - filled once, by `arithmetic`

    def __init__(self, op: Operation, index: int, dtype: DType, shape: TensorShape, probes: Any = None) -> None:
        self.op = op
        self.value_index = index
        self.dtype = dtype
        self._shape = shape
        self.probes: tuple[Probe, Probe] | None = probes
        """What is known of it under two assumptions about the unknown sizes; see `infer`."""

    @property
    def name(self) -> str:
        """`scope/operation:0`."""
        return f"{self.op.name}:{self.value_index}"

    @property
    def graph(self) -> Graph:
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

    def set_shape(self, shape: Any) -> None:
        """Says more of its shape.

        Raises:
          ValueError: it cannot have that one.
        """
        from trainband.compat.tf1.graphs.infer import probes_of_shape

        merged = self._shape.merge_with(shape)
        if merged != self._shape or self.probes is None:
            self._shape = merged
            self.probes = probes_of_shape(merged, self.dtype)

    def consumers(self) -> list[Operation]:
        """The operations that take it as an input."""
        return [op for op in self.graph.operations if self in op.inputs]

    def eval(self, feed_dict: Any = None, session: Any = None) -> Any:
        """Its value, in a session; the default one if none is given."""
        from trainband.compat.tf1.sessions.session import needed_session

        return needed_session(session, "Tensor.eval").run(self, feed_dict)

    def __repr__(self) -> str:
        return f"<tf.Tensor '{self.name}' shape={self._shape} dtype={self.dtype.name}>"

    def __str__(self) -> str:
        return f'Tensor("{self.name}", shape={self._shape}, dtype={self.dtype.name})'

    def __iter__(self) -> Iterator[Tensor]:
        sizes = self._shape.sizes
        if not sizes or sizes[0] is None:
            raise TypeError(f"Tensor objects are only iterable when their first dimension is known: {self}.")
        return iter([Tensor.overloads["slice_item"](self, i) for i in range(sizes[0])])

    def __bool__(self) -> bool:
        raise TypeError(
            "Using a `tf.Tensor` as a Python `bool` is not allowed. Use `if t is not None:` instead of `if t:` to test "
            "if a tensor is defined, and use TensorFlow ops such as tf.cond to execute subgraphs conditioned on the "
            "value of a tensor."
        )

    def __len__(self) -> int:
        raise TypeError(f"object of type 'Tensor' has no len(); its shape is {self._shape}.")

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other


def _overload(symbol: str, name: str) -> None:
    def method(self: Tensor, *others: Any) -> Any:
        if name not in Tensor.overloads:
            for file in ("arithmetic", "indexing"):  # they put themselves there
                import_module(f"trainband.compat.tf1.operations.{file}")
        return Tensor.overloads[name](self, *others)

    setattr(Tensor, symbol, method)


BINARY = {
    "add": "add",
    "sub": "subtract",
    "mul": "multiply",
    "truediv": "divide",
    "floordiv": "floordiv",
    "mod": "floormod",
    "pow": "pow",
    "matmul": "matmul",
    "and": "logical_and",
    "or": "logical_or",
    "xor": "logical_xor",
}
for _symbol, _name in BINARY.items():
    _overload(f"__{_symbol}__", _name)
    _overload(f"__r{_symbol}__", f"reversed_{_name}")
for _symbol, _name in {
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
    "neg": "negative",
    "abs": "abs",
    "invert": "logical_not",
    "getitem": "slice_item",
}.items():
    _overload(f"__{_symbol}__", _name)
