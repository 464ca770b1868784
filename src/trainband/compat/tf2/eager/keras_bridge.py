"""The bridge to Keras 3 on JAX: its layers, losses, metrics and optimizers compute on tensors that are deferred.

A call of a layer becomes one computation of its variables and inputs, so that tapes see it; the new values of what it
updates, such as moving averages, are deferred too. Inside that computation, and wherever JAX traces, Keras does what it
always does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from trainband.compat.tf2.eager.captured import is_kept, is_tracing, value_of
from trainband.compat.tf2.eager.deferred import DEFERRED
from trainband.compat.tf2.eager.execute import compute, convert, frozen
from trainband.compat.tf2.eager.recording import variable_was_read
from trainband.compat.tf2.eager.tensor import Tensor


def tensor_of(variable: Any) -> Tensor:
    """The tensor that a variable of Keras's holds now."""
    value = variable._value  # noqa: SLF001 - what `value` is made of, before autocasting
    if not isinstance(value, Tensor):
        value = variable._value = Tensor(value)  # noqa: SLF001
    return value_of(variable, value)


def read(variable: Any) -> Tensor:
    """The tensor of a variable, which tapes note; inside Keras's own computations, the value that it has there."""
    if _inside():
        return Tensor(variable.value)
    found = tensor_of(variable)
    variable_was_read(variable, found)
    return found


def put(variables: Sequence[Any], tensors: Sequence[Tensor]) -> None:
    """Gives variables new values, known or not."""
    for variable, tensor in zip(variables, tensors, strict=True):
        if not is_kept(variable, tensor):
            variable._value = tensor  # noqa: SLF001


def _is_leaf(value: Any) -> bool:
    return isinstance(value, Tensor) or hasattr(value, "__trainband_tensor__")


def _leaves(value: Any) -> tuple[list[Any], Any]:
    found, structure = jax.tree.flatten(value, is_leaf=_is_leaf)
    return found, structure


def _is_array(value: Any) -> bool:
    return isinstance(value, Tensor | np.ndarray | jax.Array) or hasattr(value, "__trainband_tensor__")


def _is_traced(value: Any) -> bool:
    import keras

    return isinstance(value, jax.core.Tracer | keras.KerasTensor)


def plain(value: Any) -> Any:
    """A structure with arrays in place of tensors."""
    return jax.tree.map(lambda one: convert(one).array if _is_leaf(one) else one, value, is_leaf=_is_leaf)


def lifted(
    key: Any, function: Callable[..., Any], variables: Sequence[Any], arguments: Any, settings: Any = None
) -> Any:
    """What a function of (values of variables, arguments) gives, deferred.

    Args:
      function: of arrays, to a structure of arrays.
      arguments: a structure; its arrays are inputs, all else is part of the key.
    """
    leaves, structure = _leaves(arguments)
    places = [index for index, leaf in enumerate(leaves) if _is_array(leaf)]
    fixed = [None if index in set(places) else leaf for index, leaf in enumerate(leaves)]
    inputs = [convert(leaves[index]) for index in places]
    held = [read(variable) for variable in variables]
    shapes: list[Any] = []

    def call(*arrays: Any) -> Sequence[Any]:
        values = list(fixed)
        for index, array in zip(places, arrays[len(held) :], strict=True):
            values[index] = array
        found = plain(function(list(arrays[: len(held)]), jax.tree.unflatten(structure, values)))
        flat, tree = jax.tree.flatten(found)
        shapes.append(tree)
        return flat

    whole = (key, len(held), str(structure), frozen(fixed), frozen(settings))
    results = compute(whole, call, [*held, *inputs])
    tree = _trees.setdefault(whole, shapes[-1] if shapes else None)
    return jax.tree.unflatten(tree, results)


_trees: dict[Any, Any] = {}
"""The structures of what has come out, by key."""


def _layer_call(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        _give_arrays(type(self))
        leaves, _ = _leaves((args, kwargs))
        if any(map(_is_traced, leaves)) or not any(map(_is_array, leaves)) or _inside():
            return original(self, *plain(args), **plain(kwargs))
        if not self.built:
            _build(self, original, args, kwargs)
        trained, others = self.trainable_variables, self.non_trainable_variables

        def run(values: list[Any], given: Any) -> Any:
            positional, keywords = given
            return self.stateless_call(
                values[: len(trained)], values[len(trained) :], *positional, return_losses=True, **keywords
            )

        outputs, changed, losses = lifted(("layer", id(self), self.trainable), run, [*trained, *others], (args, kwargs))
        put(others, changed)
        self._deferred_losses = losses
        return outputs

    return call


def _give_arrays(kind: Any) -> None:
    """Makes the `call` of a script's own layer give arrays to Keras, whatever it computes with."""
    own = kind.__dict__.get("call")
    if own is None or kind.__module__.startswith("keras.") or hasattr(own, "gives_arrays"):
        return

    @functools.wraps(own)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return plain(own(self, *args, **kwargs))

    call.gives_arrays = True  # type: ignore[attr-defined]
    kind.call = call


def _inside() -> bool:
    from trainband.keras.inside import in_stateless_scope

    return bool(in_stateless_scope())


def _build(layer: Any, original: Callable[..., Any], args: Any, kwargs: Any) -> None:
    """Gives a layer its variables, by a call of shapes."""
    import keras

    def symbol(value: Any) -> Any:
        if not _is_array(value):
            return value
        tensor = convert(value)
        return keras.KerasTensor(tensor.aval[0], str(tensor.aval[1]))

    args, kwargs = (jax.tree.map(symbol, one, is_leaf=_is_leaf) for one in (args, kwargs))
    original(layer, *args, **kwargs)


def _loss_call(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        leaves, _ = _leaves((args, kwargs))
        if any(map(_is_traced, leaves)) or _inside():
            return original(self, *plain(args), **plain(kwargs))
        return lifted(("loss", id(self)), lambda _, given: original(self, *given[0], **given[1]), [], (args, kwargs))

    return call


def _apply(original: Callable[..., Any]) -> Callable[..., Any]:
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        grads = list(grads)
        if any(map(_is_traced, grads)) or _inside():
            return original(self, plain(grads), trainable_variables)
        variables = self._trainable_variables if trainable_variables is None else list(trainable_variables)
        if not self.built:
            self.build(variables)
        pairs = [(g, v) for g, v in zip(grads, variables, strict=True) if g is not None]
        if not pairs:
            raise ValueError("No gradients provided for any variable.")
        used = [variable for _, variable in pairs]
        own = self.variables

        def run(values: list[Any], given: Any) -> Any:
            every = {id(v): value for v, value in zip(used, values[len(own) :], strict=True)}
            filled = [every.get(id(v)) for v in variables]
            new, state = self.stateless_apply(
                values[: len(own)], list(given), [value for value in filled if value is not None]
            )
            return new, state

        new, state = lifted(
            ("optimizer", id(self), tuple(map(id, used))), run, [*own, *used], [gradient for gradient, _ in pairs]
        )
        put(used, new)
        put(own, state)
        if not is_tracing():
            DEFERRED.run()
        return self.iterations

    return apply


def _metric(method: str, stateless: str, *, updates: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def wrapped(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            leaves, _ = _leaves((args, kwargs))
            if any(map(_is_traced, leaves)) or _inside():
                return original(self, *plain(args), **plain(kwargs))
            variables = self.variables

            def run(values: list[Any], given: Any) -> Any:
                return getattr(self, stateless)(values, *given[0], **given[1])

            found = lifted(("metric", method, id(self)), run, variables, (args, kwargs))
            if not updates:
                return found
            put(variables, found)
            return None

        return call

    return wrapped


def install() -> None:
    """Gives Keras's classes these calls, once."""
    import keras

    if getattr(keras.Layer, "_trainband_bridge", False):
        return
    keras.Layer._trainband_bridge = True  # noqa: SLF001
    keras.Layer.__call__ = _layer_call(keras.Layer.__call__)
    keras.losses.Loss.__call__ = _loss_call(keras.losses.Loss.__call__)
    optimizer = keras.optimizers.Optimizer
    optimizer.apply = _apply(optimizer.apply)
    variable = keras.Variable
    variable.__trainband_tensor__ = read
    variable.read_for = lambda self, _: tensor_of(self)
    variable.give = lambda self, tensor: put([self], [tensor])
    kept = variable.value

    def value(self: Any) -> Any:
        found = kept.fget(self)
        return found.array if isinstance(found, Tensor) else found

    variable.value = property(value)
    variable.numpy = lambda self: np.asarray(tensor_of(self).numpy())


def keras_module() -> Any:
    """`tf.keras`: Keras 3, on JAX, with the bridge.

    Raises:
      ModelError: it is not installed, or computes with something else.
    """
    from trainband.keras.inside import keras

    install()
    return keras
