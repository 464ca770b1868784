"""Layers on tensors: a call of a layer is one computation of its variables and inputs, which tapes see."""

from __future__ import annotations

import functools
import inspect
import itertools
import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from trainband.compat.tf2.eager.execute import convert
from trainband.compat.tf2.eager.parts import parts_of, wholes_of
from trainband.compat.tf2.eager.seeds import Draws, drawing
from trainband.compat.tf2.eager.tensor import Tensor
from trainband.compat.tf2.eager.variable import Variable
from trainband.compat.tf2.keras.inside import in_symbolic_scope, keras, own_losses
from trainband.compat.tf2.keras.lifting import (
    is_array,
    is_keras_own,
    is_leaf,
    is_untraceable,
    leaves_of,
    lifted,
    of_tensors,
    on_subclass,
    plain,
    tensors,
    token,
)
from trainband.compat.tf2.keras.variables import Shape, inside, put

_numbers = itertools.count(1)
_with_losses: dict[int, Any] = {}
"""The layers whose last call has added losses, by identity."""


def is_of_keras(kind: type) -> bool:
    """Whether a class is Keras's own."""
    return kind.__module__.split(".")[0] == "keras"


def _call(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        leaves = leaves_of((args, kwargs))
        if is_keras_own(leaves) or in_symbolic_scope():
            return original(self, *plain(args), **plain(kwargs))
        if not any(map(is_array, leaves)):
            if not (args and isinstance(args[0], list | tuple) and leaves and isinstance(leaves[0], int | float)):
                return original(self, *args, **kwargs)
            args = (convert(args[0]), *args[1:])
        if any(isinstance(one, Tensor) and one.aval[1].hasobject for one in leaves):
            return _of_strings(self, args, kwargs)
        own = not is_of_keras(type(self))
        try:
            if not self.built:
                _build(self, original, args, kwargs)
            load_deferred(self)
            if not self.__dict__.get("_runs_as_it_stands"):
                return _as_one(self, original, args, kwargs)
        except Exception as exc:
            if not own or not is_untraceable(exc):
                raise
            object.__setattr__(self, "_runs_as_it_stands", True)
        return _as_it_stands(self, args, kwargs)

    return call


def _as_one(layer: Any, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    trained, others = layer.trainable_variables, layer.non_trainable_variables
    every = [*trained, *others]

    def run(values: list[Any], given: Any) -> Any:
        mapping = list(zip(every, values, strict=True))
        with keras.StatelessScope(state_mapping=mapping, collect_losses=True) as scope:
            outputs = original(layer, *given[0], **given[1])
            losses = layer.losses
        own = _count_of_regularizers(layer)
        changed = [scope.get_current_value(variable) for variable in others]
        return outputs, changed, losses[: len(losses) - own]

    outputs, changed, losses = lifted(
        ("layer", token(layer), layer.trainable, len(trained)), run, every, (args, kwargs)
    )
    put(others, changed)
    _keep_losses(layer, losses)
    return outputs


def _of_strings(layer: Any, args: Any, kwargs: Any) -> Any:
    """What a layer gives for text, which only Python can compute with: a model runs layer by layer."""
    if isinstance(layer, keras.Function) and is_of_keras(type(layer)):
        return keras.Function.call(layer, *_by_order(layer, args))
    return layer.call(*args, **kwargs)


def _by_order(model: Any, args: Any) -> Any:
    """The inputs of a functional model in its own order; it may have been given them by name."""
    if isinstance(args[0], dict) and not isinstance(model._inputs_struct, dict):  # noqa: SLF001 - as Keras does
        return ([args[0][one.name] for one in model.inputs],)
    return args


def _as_it_stands(layer: Any, args: Any, kwargs: Any) -> Any:
    """What a script's own layer gives, which decides by the values of tensors: its lines run each time."""
    _keep_losses(layer, [])
    return layer.call(*tensors(args), **tensors(kwargs))


def _build(layer: Any, original: Callable[..., Any], args: Any, kwargs: Any) -> None:
    """Gives a layer its variables, by a call of shapes."""

    def symbol(value: Any) -> Any:
        if not is_array(value):
            return value
        tensor = convert(value)
        return keras.KerasTensor(tensor.aval[0], str(tensor.aval[1]))

    given, named = (jax.tree.map(symbol, one, is_leaf=is_leaf) for one in (args, kwargs))
    try:
        original(layer, *given, **named)
    except Exception as exc:
        if is_of_keras(type(layer)) or not is_untraceable(exc):
            raise
        object.__setattr__(layer, "_runs_as_it_stands", True)
        if not layer.built:
            layer.build(given[0].shape)
            layer.built = True


def load_deferred(model: Any) -> None:
    """Loads the weights that were asked for before the model had any."""
    path = model.__dict__.get("_weights_to_load")
    if path is not None and model.built:
        object.__setattr__(model, "_weights_to_load", None)
        model.load_weights(path)


# --- the losses that layers add


def _keep_losses(layer: Any, losses: list[Any]) -> None:
    if _with_losses:
        for one in layer._flatten_layers():  # noqa: SLF001 - as Keras clears them
            if id(one) in _with_losses:
                del _with_losses[id(one)]
                object.__setattr__(one, "_added_losses", [])
    if losses:
        object.__setattr__(layer, "_added_losses", list(losses))
        _with_losses[id(layer)] = layer


def _regularized(layer: Any) -> list[Any]:
    return [one for one in layer.trainable_weights if one.regularizer is not None]


def _count_of_regularizers(layer: Any) -> int:
    return len(_regularized(layer))


def _losses(original: Any) -> property:
    def losses(self: Any) -> Any:
        if inside() or in_symbolic_scope():
            return original.fget(self)
        found: list[Any] = []
        for one in self._flatten_layers():
            found += one.__dict__.get("_added_losses", ()) or own_losses(one)
        variables = _regularized(self)
        if variables:
            rules = [one.regularizer for one in variables]
            found += lifted(
                ("regularizers", tuple(map(id, rules))),
                lambda values, _: [rule(value) for rule, value in zip(rules, values, strict=True)],
                variables,
                (),
            )
        return found

    return property(losses)


def _add_loss(original: Callable[..., Any]) -> Callable[..., Any]:
    def add_loss(self: Any, loss: Any, **_: Any) -> Any:
        found = [one() if callable(one) and not is_array(one) else one for one in leaves_of(loss)]
        if inside():
            return original(self, plain(found))
        object.__setattr__(self, "_added_losses", [*self.__dict__.get("_added_losses", ()), *found])
        _with_losses[id(self)] = self
        return None

    return add_loss


# --- layers of a script's own


def adapt(kind: type) -> None:
    """Has the methods of a script's own layer work on tensors."""
    if is_of_keras(kind):
        return
    for name in ("call", "compute_loss", "compute_metrics"):
        own = kind.__dict__.get(name)
        if inspect.isfunction(own):
            setattr(kind, name, _drawing(of_tensors(own)) if name == "call" else of_tensors(own))
    build = kind.__dict__.get("build")
    if inspect.isfunction(build) and not hasattr(build, "takes_shapes"):

        @functools.wraps(build)
        def of_shapes(self: Any, *args: Any, **kwargs: Any) -> Any:
            return build(self, *map(_shaped, args), **{name: _shaped(one) for name, one in kwargs.items()})

        of_shapes.takes_shapes = True  # type: ignore[attr-defined]
        kind.build = of_shapes  # type: ignore[attr-defined]


class _LayerDraws(Draws):
    """The random numbers of a layer, in Keras's computations: other ones in each of its calls."""

    def __init__(self, layer: Any) -> None:
        super().__init__(None)
        self._layer = layer

    def next(self) -> Any:
        if self._base is None:
            state = self._layer._draws_from.next()  # noqa: SLF001 - we have given it to the layer
            self._base = state[0] ^ (state[1] * np.uint32(0x9E3779B1))
        return super().next()


def _drawing(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not inside() or "_draws_from" not in self.__dict__:
            return original(self, *args, **kwargs)
        with drawing(_LayerDraws(self)):
            return original(self, *args, **kwargs)

    return call


def _init(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def init(self: Any, **kwargs: Any) -> None:  # Keras reads the forms of both, and they must agree
        whole = kwargs.pop("batch_input_shape", None)
        if whole is not None:
            kwargs["input_shape"] = tuple(whole[1:])
        for name in ("input_length", "weights") if is_of_keras(type(self)) else ():
            kwargs.pop(name, None)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Do not pass an `input_shape`")
            original(self, **kwargs)
        if whole is not None:
            self._batch_input_shape = tuple(whole)
        kind = type(self)
        is_of_script = kind is keras.layers.Lambda or not is_of_keras(_where(kind, "call"))
        if is_of_script and "_draws_from" not in self.__dict__:
            self._draws_from = keras.random.SeedGenerator(next(_numbers))  # the global seed is added where it draws

    return init


def _add(original: Callable[..., Any]) -> Callable[..., Any]:
    """`Sequential.add`, for a first layer that says the size of its batches."""

    @functools.wraps(original)
    def add(self: Any, layer: Any, **kwargs: Any) -> Any:
        whole = getattr(layer, "_batch_input_shape", None)
        if whole is not None and not self._layers:  # `layers` leaves out the input
            layer._input_shape_arg = None  # noqa: SLF001 - else Keras would add another input
            original(self, keras.Input(batch_shape=whole), rebuild=False)
        return original(self, layer, **kwargs)

    return add


def _reset_states(self: Any) -> None:
    for layer in self._flatten_layers(include_self=False):
        if hasattr(layer, "reset_state"):
            layer.reset_state()


def _where(kind: type, name: str) -> type:
    """The class that defines a method."""
    return next(one for one in kind.__mro__ if name in one.__dict__)


def _shaped(value: Any) -> Any:
    is_shape = isinstance(value, tuple) and all(one is None or isinstance(one, int) for one in value)
    return Shape(value) if is_shape else value


def _add_weight(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def add_weight(self: Any, *args: Any, **kwargs: Any) -> Any:
        for name in ("use_resource", "partitioner", "experimental_autocast", "collections", "getter", "caching_device"):
            kwargs.pop(name, None)
        if args and isinstance(args[0], str):
            kwargs["name"], args = args[0], args[1:]
        for name in ("aggregation", "synchronization"):
            if name in kwargs and not isinstance(kwargs[name], str):
                kwargs.pop(name)
        kwargs.pop("synchronization", None)
        if args:
            kwargs["shape"], args = args[0], args[1:]
        if kwargs.get("shape") is not None:
            shape = kwargs["shape"]
            kwargs["shape"] = tuple(shape) if isinstance(shape, list | tuple) else _sizes(shape)
        if "dtype" in kwargs and kwargs["dtype"] is not None:
            kwargs["dtype"] = getattr(kwargs["dtype"], "name", kwargs["dtype"])
        return original(self, *args, **kwargs)

    return add_weight


def _sizes(shape: Any) -> tuple[Any, ...]:
    return (shape,) if isinstance(shape, int) else tuple(shape.as_list())


def _kept_variables(value: Any) -> Any:
    """What a layer keeps of a script's variables: variables of Keras, which it trains and saves."""
    if isinstance(value, Variable):
        return keras.Variable(
            value.numpy(),
            trainable=value.trainable,
            name=value.name.partition(":")[0].replace("/", "_"),
            autocast=False,
        )
    if type(value) is list and any(isinstance(one, Variable) for one in value):
        return [_kept_variables(one) for one in value]
    if type(value) is dict and any(isinstance(one, Variable) for one in value.values()):
        return {name: _kept_variables(one) for name, one in value.items()}
    return value


def _set_attribute(original: Callable[..., Any]) -> Callable[..., Any]:
    def set_attribute(self: Any, name: str, value: Any) -> None:
        if isinstance(value, Variable | list | dict):
            value = _kept_variables(value)
        original(self, name, value)

    return set_attribute


def _of_wholes(variables: Callable[[Any], Any]) -> property:
    return property(lambda self: wholes_of(variables(self)))


def _show_parts(kind: Any) -> None:
    """Has `weights` give the parts of a divided variable. What computes with weights gets whole variables."""
    every = kind.weights.fget
    kind.weights = property(lambda self: [part for one in every(self) for part in parts_of(one)])
    for name in ("trainable_weights", "non_trainable_weights"):
        setattr(kind, name, _of_wholes(getattr(kind, name).fget))
    kind.get_weights = lambda self: [one.numpy() for one in wholes_of(self.weights)]
    set_weights = kind.set_weights

    @functools.wraps(set_weights)
    def set_whole_weights(self: Any, weights: Any) -> None:
        shown = self.weights
        wholes = wholes_of(shown)
        if len(shown) == len(wholes) or len(weights) != len(wholes):
            set_weights(self, weights)
            return
        for variable, value in zip(wholes, weights, strict=True):
            variable.assign(value)

    kind.set_weights = set_whole_weights


def install() -> None:
    """Has Keras's layers take and give tensors."""
    kind = keras.Layer
    _show_parts(kind)
    kind.__call__ = _call(kind.__call__)
    kind.losses = _losses(kind.losses)
    kind.add_loss = _add_loss(kind.add_loss)
    kind.add_weight = _add_weight(kind.add_weight)
    kind.add_variable = lambda self, name, *args, **kwargs: self.add_weight(*args, name=name, **kwargs)
    kind.__setattr__ = _set_attribute(kind.__setattr__)
    kind.__init__ = _init(kind.__init__)
    on_subclass(kind, adapt)
    keras.Sequential.add = _add(keras.Sequential.add)
    keras.layers.RNN.reset_states = keras.layers.RNN.reset_state
    keras.Model.reset_states = _reset_states
    keras.layers.Lambda.call = _drawing(of_tensors(keras.layers.Lambda.call))
