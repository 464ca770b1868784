# ruff: noqa: SLF001 - layers and models are of one package
"""A model's layers as JSON: with what each was made, and how they follow one another."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from trainband.compat.tf1.graphs.graph import Tensor
from trainband.compat.tf1.graphs.nest import flatten, pack_like
from trainband.compat.tf1.models import named
from trainband.compat.tf1.models.layer import Layer
from trainband.compat.tf1.namespace import find


def to_json(model: Any, **more: Any) -> str:
    """A model as text.

    Raises:
      NotImplementedError: it is a subclass of `Model`, or was made with something that cannot be written as text.
    """
    return json.dumps(_described(model), **more)


def _described(layer: Any) -> dict[str, Any]:
    kind = type(layer).__name__
    found: dict[str, Any] = {"class_name": kind, "name": layer.name}
    if kind == "Sequential":
        return {**found, "layers": [_described(one) for one in layer._layers]}
    network = getattr(layer, "_network", None)
    if network is not None:
        return {**found, **_described_network(network)}
    if kind == "InputLayer":
        shape, dtype = layer.output.shape.as_list(), layer.output.dtype.name
        return {**found, "arguments": [], "keywords": {"batch_input_shape": shape, "dtype": dtype}}
    args, kwargs = layer._made_with
    return {
        **found,
        "arguments": [_value(one, layer) for one in args],
        "keywords": {name: _value(one, layer) for name, one in kwargs.items()},
    }


def _described_network(network: Any) -> dict[str, Any]:
    starts = [one._keras_history for one in flatten(network.inputs)]
    nodes = [*starts, *network.nodes]
    layers = list(dict.fromkeys(node.layer for node in nodes))
    where = {id(out): [i, k] for i, node in enumerate(nodes) for k, out in enumerate(flatten(node.outputs))}

    def placed(structure: Any) -> Any:
        return pack_like(structure, [where[id(one)] for one in flatten(structure)])

    calls = [
        {"layer": layers.index(node.layer), "inputs": placed(node.inputs), "keywords": _plain(node.more)}
        for node in network.nodes
    ]
    return {
        "layers": [_described(one) for one in layers],
        "starts": len(starts),
        "calls": calls,
        "outputs": placed(network.outputs),
    }


def _plain(more: Mapping[str, Any]) -> dict[str, Any]:
    if any(isinstance(one, Tensor) for value in more.values() for one in flatten(value)):
        raise NotImplementedError("A model whose layers are called with tensors by name cannot be written as text.")
    return dict(more)


def _value(value: Any, layer: Any) -> Any:
    if isinstance(value, Layer):
        return {"layer": _described(value)}
    if hasattr(value, "dtype") and hasattr(value, "tolist"):
        return value.tolist()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_value(one, layer) for one in value]
    if isinstance(value, dict):
        return {key: _value(one, layer) for key, one in value.items()}
    if callable(value) and named.name_of(value) is not None:
        return named.name_of(value)
    if hasattr(value, "get_config"):
        return {"class_name": type(value).__name__, "config": value.get_config()}
    if hasattr(value, "as_numpy_dtype"):
        return value.name
    raise NotImplementedError(f"The layer {layer.name!r} was made with {value!r}, which cannot be written as text.")


def from_json(json_string: str, custom_objects: Any = None) -> Any:
    """A model from `to_json`'s text, with new variables."""
    return _made(json.loads(json_string), dict(custom_objects or {}))


def _class_of(name: str, own: Mapping[str, Any]) -> Any:
    return own[name] if name in own else find("tf.keras.layers", name)


def _made(found: Mapping[str, Any], own: Mapping[str, Any]) -> Any:
    if found["class_name"] == "Sequential":
        return find("tf.keras", "Sequential")([_made(one, own) for one in found["layers"]], name=found["name"])
    if "calls" in found:
        layers = [_made(one, own) for one in found["layers"]]
        outputs = [flatten(one.output) for one in layers[: found["starts"]]]

        def there(places: Any) -> Any:
            if isinstance(places, list) and len(places) == 2 and all(isinstance(one, int) for one in places):
                return outputs[places[0]][places[1]]
            return [there(one) for one in places]

        starts = [one[0] for one in outputs]
        for call in found["calls"]:
            outputs.append(flatten(layers[call["layer"]](there(call["inputs"]), **call["keywords"])))
        return find("tf.keras", "Model")(
            starts if len(starts) > 1 else starts[0], there(found["outputs"]), name=found["name"]
        )
    keywords = {name: _back(value, own) for name, value in found["keywords"].items()}
    kind = _class_of(found["class_name"], own)
    made = kind(*(_back(one, own) for one in found["arguments"]), **keywords)
    made._name = found["name"]
    return made


def _back(value: Any, own: Mapping[str, Any]) -> Any:
    if isinstance(value, dict) and set(value) == {"layer"}:
        return _made(value["layer"], own)
    return value
