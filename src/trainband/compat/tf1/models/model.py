# ruff: noqa: SLF001 - layers and models are of one package
"""Model and Sequential: layers that are put together, and can be trained."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from trainband.compat.tf1.graphs.nest import flatten, pack_like
from trainband.compat.tf1.models import architecture, phase
from trainband.compat.tf1.models.layer import Layer, Node, _layers_in
from trainband.compat.tf1.models.network import Input, InputLayer, Network
from trainband.compat.tf1.models.trained import Trained


class Model(Trained, Layer):
    """Layers between inputs and outputs, or a subclass that calls them in `call`.

    Args:
      inputs, outputs: of a model that is put together from layers that were called on `Input`s.
      name: of the model, and the scope of its variables when it is called on other tensors.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        ends = {name: kwargs.pop(name) for name in ("inputs", "outputs", "input", "output") if name in kwargs}
        inputs = ends.get("inputs", ends.get("input", args[0] if args else None))
        outputs = ends.get("outputs", ends.get("output", args[1] if len(args) > 1 else None))
        if len(args) > 2:
            kwargs["name"] = args[2]
        super().__init__(**kwargs)
        self._network: Network | None = None
        if outputs is not None:
            self._between(inputs, outputs)

    def _between(self, inputs: Any, outputs: Any) -> None:
        self._network = Network(inputs, outputs)
        self.inputs, self.outputs = flatten(inputs), flatten(outputs)
        self.built = True
        self._inbound = [Node(self, inputs, {}, outputs)]  # the outputs still come from their layers

    @property
    def layers(self) -> list[Any]:
        """Its layers."""
        if self._network is not None:
            return self._network.layers
        return list(dict.fromkeys(_layers_in([v for k, v in self.__dict__.items() if not k.startswith("_")])))

    def _parts(self) -> list[Any]:
        own = super()._parts()
        network: Network | None = self.__dict__.get("_network")
        return list(dict.fromkeys([*(network.layers if network is not None else ()), *own]))

    @property
    def input_names(self) -> list[str]:
        """The names of its inputs."""
        return [one._keras_history.layer.name for one in self.inputs]

    @property
    def output_names(self) -> list[str]:
        """The names of the layers that its outputs come from."""
        if self._network is None:
            return [f"output_{i + 1}" for i in range(len(self.outputs))]
        return [one._keras_history.layer.name for one in self.outputs]

    def call(self, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        """Return the outputs.

        Raises:
          NotImplementedError: a subclass does not say.
        """
        del mask
        if self._network is None:
            raise NotImplementedError("When subclassing the `Model` class, you should implement a `call` method.")
        return self._network.run(inputs, phase.told() if phase.told() is not None else _known(training))

    def get_layer(self, name: str | None = None, index: int | None = None) -> Any:
        """A layer by its name, or by its place.

        Raises:
          ValueError: there is none.
        """
        if index is not None:
            return self.layers[index]
        for layer in self.layers:
            if layer.name == name:
                return layer
        raise ValueError(f"No such layer: {name}")

    @property
    def input(self) -> Any:
        """Its inputs."""
        return self._network.inputs if self._network is not None else super().input

    @property
    def output(self) -> Any:
        """Its outputs."""
        return self._network.outputs if self._network is not None else super().output

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Return the outputs' shape."""
        del input_shape
        return self.output_shape

    def summary(
        self, line_length: int | None = None, positions: Any = None, print_fn: Callable[[str], Any] | None = None
    ) -> None:
        """Prints its layers with the shapes of their outputs and how many numbers their variables have."""
        del positions
        say, width = print_fn or print, line_length or 65
        say(f'Model: "{self.name}"')
        say("_" * width)
        columns = [int(width * part) for part in (0.45, 0.85, 1.0)]

        def row(*texts: str) -> None:
            line = ""
            for text, end in zip(texts, columns, strict=True):
                line = (line + text)[: end - 1].ljust(end)
            say(line.rstrip())

        row("Layer (type)", "Output Shape", "Param #")
        say("=" * width)
        for layer in self.layers:
            shape = str(layer.output_shape) if layer._inbound else "multiple"
            row(f"{layer.name} ({type(layer).__name__})", shape, str(layer.count_params()))
        say("=" * width)
        every = self.count_params()
        trained = sum(one.shape.num_elements() or 0 for one in self.trainable_weights)
        say(f"Total params: {every:,}")
        say(f"Trainable params: {trained:,}")
        say(f"Non-trainable params: {every - trained:,}")
        say("_" * width)

    # --- made again

    def get_config(self) -> dict[str, Any]:
        """What it can be made from again, by `clone_model`.

        Raises:
          NotImplementedError: it is a subclass.
        """
        if self._network is None:
            raise NotImplementedError("A model that is a subclass has no configuration.")
        return {"name": self.name, "layers": [layer.get_config() for layer in self.layers]}

    def to_json(self, **more: Any) -> str:
        """Its layers as JSON, for `model_from_json`."""
        return architecture.to_json(self, **more)


def _known(training: Any) -> Any:
    return training if isinstance(training, bool | int) else None


class Sequential(Model):
    """Layers, one after the other.

    Args:
      layers: the first may say the `input_shape`; without one, the first inputs do.
    """

    def __init__(self, layers: Sequence[Any] | None = None, name: str | None = None) -> None:
        super().__init__(name=name)
        self._layers: list[Any] = []
        self._waiting = False
        for layer in layers or ():
            self.add(layer)

    def add(self, layer: Any) -> None:
        """Puts a layer at the end.

        Raises:
          TypeError: it is not a layer.
        """
        history = getattr(layer, "_keras_history", None)
        if history is not None:
            layer = history.layer
        if not callable(getattr(layer, "call", None)):
            raise TypeError(f"The added layer must be an instance of class Layer. Found: {layer}")
        if not self._layers and not isinstance(layer, InputLayer):
            shape, dtype = _first_shape(layer)
            if shape is not None:
                first = Input(batch_shape=shape, dtype=dtype, name=f"{layer.name}_input")
                self._layers.append(first._keras_history.layer)
        self._layers.append(layer)
        if not isinstance(self._layers[0], InputLayer):
            return
        start = self._layers[0].output
        end = self.outputs[0] if self.__dict__.get("outputs") else start
        if layer is not self._layers[0]:
            end = layer(end)
        self._between(start, end)

    def pop(self) -> None:
        """Removes the last layer.

        Raises:
          TypeError: there is none.
        """
        if not self._layers:
            raise TypeError("There are no layers in the model.")
        kept = list(self._layers[:-1])
        self._layers.pop()
        if self._network is not None and kept:
            self._between(kept[0].output, kept[-1]._inbound[0].outputs)

    def build(self, input_shape: Any = None) -> None:
        """Creates the variables, for inputs of a shape."""
        if self._network is None and input_shape is not None and not self._waiting and self._layers:
            sizes = list(input_shape.as_list() if hasattr(input_shape, "as_list") else input_shape)
            layers, self._layers = self._layers, []
            self._layers.append(Input(batch_shape=sizes)._keras_history.layer)
            for layer in layers:
                self.add(layer)
        self.built = True

    def __call__(self, inputs: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Return the outputs; the first call creates the variables."""
        self._waiting = True  # the layers are built by this call, not by `build`
        try:
            return super().__call__(inputs, *args, **kwargs)
        finally:
            self._waiting = False

    def call(self, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        """Return the outputs."""
        del training, mask
        for layer in self._layers:
            if not isinstance(layer, InputLayer):
                inputs = layer(inputs)
        return inputs

    @property
    def layers(self) -> list[Any]:
        """Its layers, without the one for the inputs."""
        return [one for one in self._layers if not isinstance(one, InputLayer)]

    def _parts(self) -> list[Any]:
        return list(self.__dict__.get("_layers", ()))

    def predict_classes(self, x: Any, batch_size: int = 32, verbose: int = 0) -> Any:
        """The number of the most probable class of each example."""
        found = self.predict(x, batch_size=batch_size, verbose=verbose)
        return found.argmax(-1) if found.shape[-1] > 1 else (found > 0.5).astype("int32")

    def predict_proba(self, x: Any, batch_size: int = 32, verbose: int = 0) -> Any:
        """The predictions."""
        return self.predict(x, batch_size=batch_size, verbose=verbose)


def _first_shape(layer: Any) -> tuple[Any, Any]:
    """The shape and dtype of the inputs that a first layer asks for; (`None`, `None`) if it does not."""
    if getattr(layer, "_network", None) is not None:
        first = layer.inputs[0]
        return first.shape.as_list(), first.dtype
    wrapped = getattr(layer, "layer", None)
    shape = getattr(layer, "_batch_shape", None) or getattr(wrapped, "_batch_shape", None)
    return shape, layer.dtype if shape is not None else None


# --- copies


def clone_model(model: Any, input_tensors: Any = None, clone_function: Any = None) -> Any:
    """A model with new layers like those of another, in the default graph, with first values of their own."""
    copy = clone_function or _copied
    if isinstance(model, Sequential):
        made = Sequential(name=model.name)
        if input_tensors is not None:
            tensor = flatten(input_tensors)[0]
            made.add(_as_input(tensor, model._layers[0].name if model._network is not None else None))
            for layer in model.layers:
                made.add(copy(layer))
            return made
        for layer in model._layers:
            made.add(_copied_input(layer) if isinstance(layer, InputLayer) else copy(layer))
        return made
    network = getattr(model, "_network", None)
    if network is None:
        args, kwargs = model._made_with
        return type(model)(*args, **kwargs)
    copies: dict[Any, Any] = {}
    given = flatten(input_tensors) if input_tensors is not None else [None] * len(model.inputs)
    starts = []
    for old, new in zip(model.inputs, given, strict=True):
        layer = old._keras_history.layer
        starts.append(_copied_input(layer).output if new is None else _as_input(new, layer.name))

    def copied(layer: Any) -> Any:
        if layer not in copies:
            copies[layer] = copy(layer)
        return copies[layer]

    start = pack_like(network.inputs, starts)
    return Model(start, network.run(start, None, copied), name=model.name)


def _copied(layer: Any) -> Any:
    if isinstance(layer, Model):
        return clone_model(layer)
    args, kwargs = layer._made_with
    known = type(layer).__init__ is Layer.__init__ or "name" in inspect.signature(type(layer).__init__).parameters
    takes = known or any(
        one.kind is one.VAR_KEYWORD for one in inspect.signature(type(layer).__init__).parameters.values()
    )
    made = type(layer)(*args, **{**kwargs, "name": layer.name} if takes else kwargs)
    made._name = layer.name
    return made


def _copied_input(layer: Any) -> Any:
    tensor = layer.output
    return InputLayer(batch_input_shape=tensor.shape.as_list(), dtype=tensor.dtype, name=layer.name)


def _as_input(tensor: Any, name: str | None) -> Any:
    if getattr(tensor, "_keras_history", None) is not None:
        return tensor
    return Input(tensor=tensor, name=name)
