"""Network: the layers between inputs and outputs that are given, to be called on other inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from trainband.compat.ops.dtypes import as_dtype, float32
from trainband.compat.tf1.graphs.graph import Operation, Tensor
from trainband.compat.tf1.graphs.nest import flatten, pack_like
from trainband.compat.tf1.graphs.record import convert, record
from trainband.compat.tf1.models import phase
from trainband.compat.tf1.models.layer import Layer, Node
from trainband.compat.tf1.operations.array import placeholder


class InputLayer(Layer):
    """Where a model's inputs come in: a placeholder, or a tensor that is given."""

    def __init__(
        self,
        input_shape: Any = None,
        batch_size: int | None = None,
        dtype: Any = None,
        input_tensor: Any = None,
        sparse: bool = False,
        name: str | None = None,
        batch_input_shape: Any = None,
    ) -> None:
        if sparse:
            raise NotImplementedError("tf.keras.layers.Input(sparse=True) is not supported.")
        super().__init__(name=name or phase.unique_name("input", 1))
        if batch_input_shape is None:
            batch_input_shape = (batch_size, *(input_shape or ()))
        if input_tensor is None:
            input_tensor = placeholder(dtype or float32, list(batch_input_shape), name=self.name)
        self.built = True
        self.dtype = as_dtype(input_tensor.dtype)
        self._noted([], {}, convert(input_tensor), None)


def Input(  # noqa: N802 - Keras's name
    shape: Any = None,
    batch_size: int | None = None,
    name: str | None = None,
    dtype: Any = None,
    sparse: bool = False,
    tensor: Any = None,
    batch_shape: Any = None,
    **more: Any,
) -> Any:
    """A model's input: a placeholder for batches of examples of a shape."""
    batch = more.get("batch_input_shape", batch_shape)
    sizes = shape if shape is None or isinstance(shape, list | tuple) or hasattr(shape, "__iter__") else (shape,)
    layer = InputLayer(sizes, batch_size, dtype, tensor, sparse, name, batch)
    return layer.output


class OperationLayer(Layer):
    """An operation that is not a layer's, between layers: it is recorded again for other inputs."""

    def __init__(self, op: Operation) -> None:
        super().__init__(name=f"tf_op_layer_{op.name}")
        self.built = True
        self._op = op

    def call(self, inputs: Any) -> Any:
        """Return the outputs."""
        op, tensors = self._op, flatten(inputs)
        count = len(op.outputs)
        made = record(
            op.type,
            op.compute if count != 1 else lambda *values: op.compute(*values)[0],
            tensors,
            name=op.type,
            count=count,
            folds=op.folds,
            attributes=dict(op.attributes),
        )
        return made.outputs[0] if count == 1 else made.outputs


class Network:
    """The layers between inputs and outputs.

    Args:
      inputs, outputs: tensors, or nested structures of them.

    Raises:
      ValueError: the outputs do not come from the inputs by layers.
    """

    def __init__(self, inputs: Any, outputs: Any) -> None:
        self.inputs, self.outputs = inputs, outputs
        self._known = {id(one): one for one in map(convert, flatten(inputs))}
        self._made: dict[int, Node] = {}
        order: list[Node] = []
        for output in flatten(outputs):
            self._visit(convert(output), order)
        self.nodes = order
        self.layers = _in_keras_order(order, [_node_of(one) for one in flatten(inputs)])

    def _visit(self, tensor: Tensor, order: list[Node]) -> None:
        """Adds what a tensor is made by to `order`, after what that needs."""
        todo: list[tuple[Tensor, bool]] = [(tensor, False)]
        while todo:
            one, is_ready = todo.pop()
            if id(one) in self._known:
                continue
            node = _node_of(one) or self._of_operation(one)
            if node is None:
                continue
            if is_ready:
                if node not in order:
                    order.append(node)
                for output in flatten(node.outputs):
                    self._known.setdefault(id(output), output)
                continue
            if not flatten(node.inputs):
                raise ValueError(
                    f"Graph disconnected: cannot obtain value for tensor {one} at layer {node.layer.name!r}."
                )
            todo.append((one, True))
            todo += [(convert(before), False) for before in reversed(_tensors_of(node))]

    def _of_operation(self, tensor: Tensor) -> Node | None:
        """What stands for an operation outside layers; `None` if no layer's outputs go into it."""
        op = tensor.op
        if not op.inputs or op.stateful or not _comes_from_layers(op, set(self._known)):
            return None
        if id(tensor) not in self._made:
            node = Node(OperationLayer(op), list(op.inputs), {}, list(op.outputs))
            for output in op.outputs:
                self._made[id(output)] = node
        return self._made[id(tensor)]

    def run(self, inputs: Any, training: Any, layer_of: Callable[[Any], Any] = lambda layer: layer) -> Any:
        """The outputs for other inputs, computed by other layers if `layer_of` says so."""
        values: dict[int, Any] = {}
        own = flatten(self.inputs)
        given = flatten(inputs)
        if len(own) != len(given):
            raise ValueError(f"The model takes {len(own)} inputs, but was called with {len(given)}.")
        values |= {id(convert(one)): value for one, value in zip(own, given, strict=True)}

        def put(structure: Any) -> Any:
            return pack_like(structure, [values.get(id(one), one) for one in flatten(structure)])

        for node in self.nodes:
            more = {name: put(value) if _has_tensor(value) else value for name, value in node.more.items()}
            if training is not None and "training" in node.layer._parameters:  # noqa: SLF001 - the same package
                more["training"] = training
            found = layer_of(node.layer)(put(node.inputs), **more)
            values |= {id(a): b for a, b in zip(flatten(node.outputs), flatten(found), strict=True)}
        return put(self.outputs)


def _node_of(tensor: Any) -> Node | None:
    found: Node | None = getattr(convert(tensor), "_keras_history", None)
    return found


def _tensors_of(node: Node) -> list[Tensor]:
    more = [leaf for value in node.more.values() if _has_tensor(value) for leaf in flatten(value)]
    return [one for one in [*flatten(node.inputs), *more] if isinstance(one, Tensor)]


def _has_tensor(value: Any) -> bool:
    return any(isinstance(one, Tensor) for one in flatten(value))


def _comes_from_layers(op: Operation, known: set[int]) -> bool:
    todo, seen = [op], {op}
    while todo:
        for tensor in todo.pop().inputs:
            if id(tensor) in known or getattr(tensor, "_keras_history", None) is not None:
                return True
            if tensor.op not in seen:
                seen.add(tensor.op)
                todo.append(tensor.op)
    return False


def _in_keras_order(nodes: Sequence[Node], inputs: Sequence[Node | None]) -> list[Any]:
    """The layers as Keras lists them: those farthest from the outputs first, then as they were found."""
    everything = [*(one for one in inputs if one is not None), *nodes]
    makes = {id(output): node for node in everything for output in flatten(node.outputs)}
    depth: dict[int, int] = {}
    by_layer: dict[Any, int] = {}
    for node in reversed(everything):
        own = max(depth.get(id(node), 0), by_layer.get(node.layer, 0))
        by_layer[node.layer] = own
        for tensor in _tensors_of(node):
            before = makes.get(id(tensor))
            if before is not None:
                depth[id(before)] = max(depth.get(id(before), 0), own + 1)
    for one in inputs:
        if one is not None:
            by_layer[one.layer] = max(by_layer.get(one.layer, 0), depth.get(id(one), 0))
    found = list(dict.fromkeys(node.layer for node in everything))
    return sorted(found, key=lambda layer: -by_layer[layer])
