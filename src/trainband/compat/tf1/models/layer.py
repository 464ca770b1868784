# ruff: noqa: SLF001 - layers and models are of one package
"""Layer: the base of `tf.keras.layers`, which records where its outputs come from."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainband.compat.ops import array, math
from trainband.compat.ops.dtypes import as_dtype, float32
from trainband.compat.tf1.graphs.graph import Operation, Tensor, get_default_graph
from trainband.compat.tf1.graphs.nest import flatten
from trainband.compat.tf1.graphs.record import convert
from trainband.compat.tf1.graphs.variable import Variable
from trainband.compat.tf1.models import phase
from trainband.compat.tf1.models.named import OF_ARGUMENT, constraint_of, initializer_of, regularizer_of
from trainband.compat.tf1.networks import layer as networks
from trainband.compat.tf1.operations.initializers import GlorotUniform, Zeros
from trainband.compat.tf1.operations.recorder import recorded

_OF_INPUTS = ("input_shape", "batch_input_shape", "input_dim", "input_length", "batch_size")


@dataclass(frozen=True, eq=False, slots=True)
class Node:
    """A call of a layer.

    Attributes:
      inputs: what it was called with, as it was.
      more: its other arguments.
      outputs: what came out.
    """

    layer: Layer
    inputs: Any
    more: dict[str, Any]
    outputs: Any


class Layer(networks.Layer):
    """A part of a model. Subclasses create variables in `build` by `add_weight`, and compute in `call`.

    Args:
      trainable: whether its variables are trained.
      name: of the layer, and the scope of its variables; by default, its class's name, made unique.
      dtype: of its variables; by default, that of the first inputs.
      more: `input_shape`, `batch_input_shape` or `input_dim` for the first layer of a `Sequential`; `weights`.
    """

    _made_with: tuple[tuple[Any, ...], dict[str, Any]]

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Notes what it is made with, so that it can be made again."""
        made = super().__new__(cls)
        made.__dict__["_made_with"] = (args, kwargs)
        return made

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        sizes = {name: kwargs.pop(name) for name in _OF_INPUTS if name in kwargs}
        first_weights = kwargs.pop("weights", None)
        kwargs.pop("dynamic", None)
        super().__init__(*args, **kwargs)
        name = kwargs.get("name")
        self._name = name or phase.unique_name(networks._snake_case(type(self).__name__))
        self._first_weights = first_weights
        self._batch_shape = _batch_shape(sizes)
        self._inbound: list[Node] = []
        self.supports_masking = getattr(self, "supports_masking", False)
        for key, value in list(self.__dict__.items()):
            kind = key.rpartition("_")[2]
            if kind in OF_ARGUMENT and not key.startswith("_"):
                setattr(self, key, OF_ARGUMENT[kind](value))

    # --- for subclasses

    def _in_one_form(self, values: dict[str, Any]) -> dict[str, Any]:
        """The arguments, with what Keras takes for those that are left out."""
        found = dict(values)
        if found.get("data_format", "") is None:
            found["data_format"] = phase.image_data_format()
        if "pool_size" in found and found["strides"] is None:
            found["strides"] = found["pool_size"]
        inherited = getattr(super(), "_in_one_form", None)
        return found if inherited is None else inherited(found)

    def add_weight(  # type: ignore[override]
        self,
        name: Any = None,
        shape: Any = None,
        dtype: Any = None,
        initializer: Any = None,
        regularizer: Any = None,
        trainable: bool | None = None,
        constraint: Any = None,
        **more: Any,
    ) -> Any:
        """Create a variable."""
        del more
        if isinstance(name, list | tuple):  # Keras's old order: the shape came first
            name, shape = (shape if isinstance(shape, str) else None), name
        kind = as_dtype(dtype) if dtype is not None else self.dtype
        if kind is None or (dtype is None and not kind.is_floating):
            kind = float32
        sizes = [int(size) for size in (() if shape is None else shape)]
        first = initializer_of(initializer) or (GlorotUniform() if kind.is_floating else Zeros(kind))

        def value() -> Any:
            if not callable(first):
                return first
            try:
                return first(sizes, dtype=kind)
            except TypeError:
                return first(sizes)

        made = Variable(
            value,
            trainable=trainable is not False and self.trainable,
            name=name or "Variable",
            dtype=kind,
            constraint=constraint_of(constraint),
        )
        self._weights.append((made, trainable is not False))
        regularize = regularizer_of(regularizer)
        if regularize is not None:
            graph = get_default_graph()
            with graph.control_dependencies(None), graph.name_scope(f"{made.op_name}/Regularizer/"):
                self._losses.append(regularize(made))
        return made

    def add_loss(self, losses: Any, inputs: Any = None) -> None:
        """Adds something to the model's losses."""
        del inputs
        found = losses if isinstance(losses, list | tuple) else [losses]
        self._losses += [one() if callable(one) and not isinstance(one, Tensor) else one for one in found]

    def add_update(self, updates: Any, inputs: Any = None) -> None:
        """Adds operations that update variables while training."""
        del inputs
        self._updates += updates if isinstance(updates, list | tuple) else [updates]

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """Which steps of the outputs count."""
        del inputs
        return mask if self.supports_masking else None

    # --- calling

    def __call__(self, inputs: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Return the outputs; the first call creates the variables."""
        kwargs.pop("scope", None)
        tensors = networks._as_tensors(inputs)
        parameters = self._parameters
        more = {**dict(zip(parameters[1:], args, strict=False)), **kwargs}
        training = more.get("training")
        training = phase.told() if training is None else training
        given = dict(more)
        if "training" in parameters:
            given["training"] = phase.learning_phase() if training is None else training
        mask = getattr(tensors, "_keras_mask", None)
        if "mask" in parameters and given.get("mask") is None and mask is not None:
            given["mask"] = mask
        graph = get_default_graph()
        with graph.name_scope(self.name), phase.calling(training):
            self._prepared(tensors)
            outputs = self.call(tensors, **given)
            outputs = _fresh(outputs, flatten(tensors))
            if self.activity_regularizer is not None:
                for output in flatten(outputs):
                    examples = recorded(math.cast)(recorded(array.shape)(output)[0], output.dtype)
                    self.add_loss(self.activity_regularizer(output) / examples)
        self._noted(tensors, more, outputs, given.get("mask", mask))
        return outputs

    def _noted(self, tensors: Any, more: dict[str, Any], outputs: Any, mask: Any) -> None:
        node = Node(self, tensors, more, outputs)
        self._inbound.append(node)
        new_mask = self.compute_mask(tensors, mask)
        for output in flatten(outputs):
            if isinstance(output, Tensor):
                output._keras_history = node  # type: ignore[attr-defined]
                if new_mask is not None:
                    output._keras_mask = new_mask  # type: ignore[attr-defined]

    def _prepared(self, tensors: Any) -> None:
        was_built = self.built
        super()._prepared(tensors)
        if not was_built and self._first_weights is not None:
            self.set_weights(self._first_weights)

    @property
    def _parameters(self) -> list[str]:
        """The names of what `call` takes."""
        return [name for name in inspect.signature(self.call).parameters if name != "self"]

    # --- what it holds

    def _parts(self) -> list[Any]:
        """The layers in its attributes."""
        return list(dict.fromkeys(_layers_in([v for k, v in self.__dict__.items() if k not in _NOT_PARTS])))

    @property
    def trainable(self) -> bool:
        """Whether its variables are trained."""
        return bool(self.__dict__.get("_trainable", True))

    @trainable.setter
    def trainable(self, value: bool) -> None:
        self.__dict__["_trainable"] = bool(value)
        for part in self._parts():
            part.trainable = value

    @property
    def losses(self) -> list[Any]:
        """What its regularizers and those of its parts add to the loss."""
        return [*self._losses, *(one for part in self._parts() for one in part.losses)]

    @losses.setter
    def losses(self, value: list[Any]) -> None:
        self._losses = value

    @property
    def updates(self) -> list[Any]:
        """The operations that update variables while training."""
        return [*self._updates, *(one for part in self._parts() for one in part.updates)] if self.trainable else []

    @updates.setter
    def updates(self, value: list[Any]) -> None:
        self._updates = value

    @property
    def trainable_weights(self) -> list[Any]:
        """The variables that are trained."""
        if not self.trainable:
            return []
        own = [one for one, trained in self._weights if trained]
        return list(dict.fromkeys([*own, *(one for part in self._parts() for one in part.trainable_weights)]))

    @property
    def non_trainable_weights(self) -> list[Any]:
        """The variables that are not trained."""
        trained = set(self.trainable_weights)
        return [one for one in self.weights if one not in trained]

    @property
    def weights(self) -> list[Any]:
        """All variables; of each part, those that can be trained first."""
        own = [one for one, trained in self._weights if trained] + [one for one, t in self._weights if not t]
        return list(dict.fromkeys([*own, *(one for part in self._parts() for one in part.weights)]))

    trainable_variables = trainable_weights
    non_trainable_variables = non_trainable_weights
    variables = weights

    def get_losses_for(self, inputs: Any = None) -> list[Any]:
        """What is added to the loss because of inputs; for `None`, whatever they are."""
        return because_of(self.losses, inputs)

    def get_updates_for(self, inputs: Any = None) -> list[Any]:
        """The updates because of inputs; for `None`, whatever they are."""
        return because_of(self.updates, inputs)

    def get_weights(self) -> list[Any]:
        """The values of its variables, as arrays."""
        return list(phase.get_session().run([one.handle for one in self.weights]))

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Gives its variables values.

        Raises:
          ValueError: there are more or fewer, or of another shape.
        """
        variables = self.weights
        if len(weights) != len(variables):
            raise ValueError(
                f'You called `set_weights(weights)` on layer "{self.name}" with a weight list of length '
                f"{len(weights)}, but the layer was expecting {len(variables)} weights."
            )
        given = [np.asarray(value) for value in weights]
        for variable, value in zip(variables, given, strict=True):
            if tuple(variable.shape.as_list()) != value.shape:
                raise ValueError(
                    f"Layer weight shape {tuple(variable.shape.as_list())} not compatible with provided weight shape "
                    f"{value.shape}"
                )
        feeds = {one.initializer.inputs[0]: value for one, value in zip(variables, given, strict=True)}
        if feeds:
            phase.current_session().run([one.initializer for one in variables], feeds)

    def get_config(self) -> dict[str, Any]:
        """What it can be made from again: `from_config(layer.get_config())`."""
        args, kwargs = self._made_with
        names = list(self._own_parameters())
        found: dict[str, Any] = {**dict(zip(names, args, strict=False)), **kwargs, "name": self.name}
        if self._batch_shape is not None and "batch_input_shape" not in found:
            found = {key: value for key, value in found.items() if key not in _OF_INPUTS}
            found["batch_input_shape"] = self._batch_shape
        return found

    @classmethod
    def _own_parameters(cls) -> list[str]:
        settings = getattr(cls, "settings", None)
        found = settings or inspect.signature(cls.__init__)
        return [name for name in found.parameters if name != "self"]

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Any:
        """Makes one from what `get_config` gave."""
        return cls(**config)

    @property
    def input(self) -> Any:
        """What it was called with first.

        Raises:
          AttributeError: it has not been called.
        """
        return self._first_node().inputs

    @property
    def output(self) -> Any:
        """What came out of the first call.

        Raises:
          AttributeError: it has not been called.
        """
        return self._first_node().outputs

    @property
    def input_shape(self) -> Any:
        """The shape of its inputs, as a tuple."""
        return _shapes(self.input)

    @property
    def output_shape(self) -> Any:
        """The shape of its outputs, as a tuple."""
        return _shapes(self.output)

    def _first_node(self) -> Node:
        if not self._inbound:
            raise AttributeError(f"Layer {self.name} has no inbound nodes.")
        return self._inbound[0]

    def get_input_at(self, node_index: int) -> Any:
        """What it was called with in a call."""
        return self._inbound[node_index].inputs

    def get_output_at(self, node_index: int) -> Any:
        """What came out of a call."""
        return self._inbound[node_index].outputs


_NOT_PARTS = ("_made_with", "_inbound", "_layers", "_network")


def _layers_in(value: Any) -> Iterator[Any]:
    if isinstance(value, networks.Layer):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _layers_in(one)
    elif isinstance(value, dict):
        yield from _layers_in(list(value.values()))


def _batch_shape(given: Mapping[str, Any]) -> tuple[Any, ...] | None:
    if given.get("batch_input_shape") is not None:
        return tuple(given["batch_input_shape"])
    batch = given.get("batch_size")
    if given.get("input_shape") is not None:
        shape = given["input_shape"]
        return (batch, *(shape if isinstance(shape, list | tuple) or hasattr(shape, "__iter__") else (shape,)))
    if given.get("input_dim") is not None:
        length = (given["input_length"],) if given.get("input_length") is not None else ()
        return (batch, *length, given["input_dim"])
    return (batch, given["input_length"]) if given.get("input_length") is not None else None


def _fresh(outputs: Any, inputs: Sequence[Any]) -> Any:
    """Outputs that are not inputs, so that each tensor comes from one layer."""
    if isinstance(outputs, list | tuple) and not hasattr(outputs, "_fields"):
        return type(outputs)(_fresh(one, inputs) for one in outputs)
    if hasattr(outputs, "as_tensor"):
        outputs = outputs.as_tensor()
    if isinstance(outputs, Tensor) and any(outputs is one for one in inputs):
        return recorded(array.identity)(outputs)
    return outputs


def _shapes(tensors: Any) -> Any:
    if isinstance(tensors, list | tuple):
        return [_shapes(one) for one in tensors]
    sizes = convert(tensors).shape.sizes
    return None if sizes is None else tuple(sizes)


def sources_of(results: Sequence[Any]) -> set[Tensor]:
    """All tensors that some are computed from, and they themselves."""
    found: set[Tensor] = set()
    todo: list[Operation] = [one if isinstance(one, Operation) else convert(one).op for one in results]
    found.update(one for one in results if isinstance(one, Tensor))
    seen = set(todo)
    while todo:
        for tensor in todo.pop().inputs:
            found.add(tensor)
            if tensor.op not in seen:
                seen.add(tensor.op)
                todo.append(tensor.op)
    return found


def because_of(results: Sequence[Any], inputs: Any) -> list[Any]:
    """Those that are computed from inputs; for `None`, those that no layer's inputs go into."""
    if inputs is None:
        return [one for one in results if not _is_conditional(one)]
    wanted = {convert(one) for one in flatten(inputs)}
    return [one for one in results if wanted & sources_of([one])]


def _is_conditional(result: Any) -> bool:
    kinds = {tensor.op.type for tensor in sources_of([result])}
    return bool(kinds & {"Placeholder", "IteratorGetNext"}) or any(
        "source" in tensor.op.attributes for tensor in sources_of([result])
    )
