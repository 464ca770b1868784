"""Objects that a checkpoint follows: what is in each, by the names of attributes, as TensorFlow names them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trainband.compat.tf2.eager.module import Module

_KEPT_BY_KERAS = ("_layers", "_operations", "_functional", "_tracker", "_metrics", "_compile_metrics", "_loss_tracker")
"""Attributes in which Keras lists what is there under other names."""


class PythonState:
    """State that is no variable: `serialize` gives it as a string, and `deserialize` takes it back."""

    def serialize(self) -> str:
        """The state, as a string."""
        raise NotImplementedError

    def deserialize(self, string_value: str) -> None:
        """Take the state from a string."""
        raise NotImplementedError


def is_variable(value: Any) -> bool:
    """Whether it has a value of its own: a variable of TensorFlow's or of Keras's, on however many devices."""
    return hasattr(value, "assign") and hasattr(value, "numpy") and not isinstance(value, Module)


def is_optimizer(value: Any) -> bool:
    """Whether it is one of Keras's optimizers."""
    return hasattr(value, "apply_gradients") and hasattr(value, "variables") and not is_layer(value)


def is_layer(value: Any) -> bool:
    """Whether it is a layer or a model of Keras's."""
    return hasattr(value, "stateless_call") and hasattr(value, "variables")


def _is_metric(value: Any) -> bool:
    return hasattr(value, "update_state") and hasattr(value, "variables")


def is_iterator(value: Any) -> bool:
    """Whether it is a dataset, or an iterator of one."""
    return hasattr(value, "element_spec") or (hasattr(value, "__next__") and not is_trackable(value))


def is_trackable(value: Any) -> bool:
    """Whether a checkpoint can follow it; lists and dictionaries are followed to what is in them."""
    if isinstance(value, type):
        return False
    return (
        isinstance(value, Module | PythonState | Tracked | list | tuple | Mapping)
        or is_variable(value)
        or is_layer(value)
        or is_optimizer(value)
        or _is_metric(value)
    )


class Tracked:
    """The base of objects that say themselves what is in them."""

    def tracked(self) -> Iterator[tuple[str, Any]]:
        """What is in it, by name."""
        raise NotImplementedError


def children(value: Any) -> list[tuple[str, Any]]:
    """What is in an object, by name. The same may come by several names; the first is the one for files."""
    return [(name, one) for name, one in _children(value) if is_trackable(one) and not _is_hollow(one)]


def _children(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Tracked):
        yield from value.tracked()
    elif isinstance(value, Mapping):
        yield from ((str(name), one) for name, one in value.items())
    elif isinstance(value, list | tuple):
        yield from ((str(number), one) for number, one in enumerate(value))
    elif is_variable(value) or isinstance(value, PythonState):
        return
    elif is_optimizer(value):
        yield from _of_optimizer(value)
    elif is_layer(value):
        yield from _of_layer(value)
    elif _is_metric(value):
        yield from ((one.name, one) for one in value.variables)
    elif isinstance(value, Module):
        yield from list(vars(value).items())


def _of_optimizer(optimizer: Any) -> Iterator[tuple[str, Any]]:
    for name, attribute in (("_iterations", "iterations"), ("_learning_rate", "_learning_rate")):
        one = getattr(optimizer, attribute, None)
        if is_variable(one):
            yield name, one
    yield from ((f"_variables/{number}", one) for number, one in enumerate(optimizer.variables))
    inner = getattr(optimizer, "inner_optimizer", None)
    if is_optimizer(inner):
        yield "inner_optimizer", inner


def _of_layer(layer: Any) -> Iterator[tuple[str, Any]]:
    inner = list(getattr(layer, "layers", []) or [])
    attributes = {name: one for name, one in vars(layer).items() if name not in _KEPT_BY_KERAS and is_trackable(one)}
    below = {id(one) for part in (*attributes.values(), *inner) if is_layer(part) for one in part.variables}
    own = {one.name: one for one in reversed(layer.variables) if id(one) not in below}
    named = [(name, one) for name, one in attributes.items() if name not in own and not name.endswith("_variables")]
    weighted = [one for one in inner if one.variables]
    numbered = [(f"layer_with_weights-{number}", one) for number, one in enumerate(weighted)]
    is_of_script = not type(layer).__module__.startswith("keras.")
    yield from reversed(own.items())
    yield from (*named, *numbered) if is_of_script else (*numbered, *named)
    yield from ((f"layer-{number}", one) for number, one in enumerate(inner))
    hidden = 0 if inner and type(inner[0]).__name__ == "InputLayer" else 1  # which a Sequential has, but does not show
    for number, one in enumerate(inner):  # as TensorFlow names them with Keras 3
        yield f"_operations/{number + hidden}", one
        yield f"_functional/_operations/{number + hidden}", one


def _is_hollow(value: Any) -> bool:
    """Whether it is a list or a dictionary of nothing that could be followed."""
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else None
    return parts is not None and not any(is_trackable(one) and not _is_hollow(one) for one in parts)


def walk(root: Any) -> Iterator[tuple[str, Any]]:
    """Yield all objects with a path, each once, those that are nearer first."""
    waiting: list[tuple[str, Any]] = [("", root)]
    seen = {id(root)}
    while waiting:
        path, value = waiting.pop(0)
        yield path, value
        for name, one in children(value):
            if id(one) not in seen:
                seen.add(id(one))
                waiting.append((f"{path}/{name}" if path else name, one))
