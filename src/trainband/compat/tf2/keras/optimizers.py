"""Optimizers of Keras on tensors, with the methods that Keras 2's have."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from trainband.compat.tf2.eager.captured import Update, is_tracing, note_update
from trainband.compat.tf2.eager.deferred import DEFERRED
from trainband.compat.tf2.eager.execute import cast_to, convert
from trainband.compat.tf2.eager.replica import current
from trainband.compat.tf2.eager.tape import GradientTape
from trainband.compat.tf2.eager.tensor import Tensor
from trainband.compat.tf2.keras.inside import keras
from trainband.compat.tf2.keras.lifting import is_keras_own, is_leaf, lifted, of_tensors, on_subclass, plain, token
from trainband.compat.tf2.keras.variables import inside, of_keras, put


class _CallableList(list[Any]):
    """Variables as a list, which older versions had as a method."""

    def __call__(self) -> list[Any]:
        return self


def _apply(original: Callable[..., Any]) -> Callable[..., Any]:
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        grads = list(grads)
        replica = current()
        if replica is not None and not inside():
            known = [number for number, one in enumerate(grads) if one is not None]

            def apply_sums(sums: Sequence[Any]) -> Any:
                every = dict(zip(known, sums, strict=True))
                return apply(self, [every.get(number) for number in range(len(grads))], trainable_variables)

            return replica.merged(apply_sums, [convert(grads[number]) for number in known])
        if is_keras_own(grads):
            return original(self, plain(grads), trainable_variables)
        variables = self._trainable_variables if trainable_variables is None else list(trainable_variables)
        if not self.built:
            self.build([of_keras(one) for one in variables])
        own_ids = {id(one) for one in self._trainable_variables}
        added = [one for one in variables if id(of_keras(one)) not in own_ids]
        if added:
            raise ValueError(
                f"Unknown variable: {added[0]}. This optimizer can only be called for the variables it was originally "
                "built with. When working with a new set of variables, you should recreate a new optimizer instance."
            )
        if isinstance(self, keras.optimizers.LossScaleOptimizer):
            grads, variables = _of_all(self, grads, variables)
        pairs = [(_dense(g), v) for g, v in zip(grads, variables, strict=True) if g is not None]
        if not pairs:
            raise ValueError("No gradients provided for any variable.")
        used = [variable for _, variable in pairs]
        own, theirs = list(self.variables), [of_keras(one) for one in used]

        def run(values: list[Any], given: Any) -> Any:
            if isinstance(self, keras.optimizers.LossScaleOptimizer):
                return self.stateless_apply(values[: len(own)], list(given), values[len(own) :])
            mapping = list(zip([*own, *theirs], values, strict=True))
            with keras.StatelessScope(state_mapping=mapping) as scope:
                original(self, list(given), theirs)
            return [scope.get_current_value(one) for one in theirs], [scope.get_current_value(one) for one in own]

        key, gradients = ("apply", token(self), tuple(map(id, used))), [gradient for gradient, _ in pairs]
        note_update(Update(key, run, own, used, gradients))
        new, state = lifted(key, run, [*own, *used], gradients)
        put(used, new)
        put(own, state)
        if not is_tracing():
            DEFERRED.run()
        return self.iterations

    return apply


def _of_all(optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The gradients of all variables of an optimizer, in its order: zeros where there is none."""
    by_variable = {id(of_keras(one)): (gradient, one) for gradient, one in zip(gradients, variables, strict=True)}
    pairs = [by_variable.get(id(one), (None, one)) for one in optimizer._trainable_variables]  # noqa: SLF001
    found = [np.zeros(tuple(one.shape), str(one.dtype)) if gradient is None else gradient for gradient, one in pairs]
    return found, [one for _, one in pairs]


def _dense(gradient: Any) -> Any:
    """A gradient as one tensor."""
    return convert(gradient) if not isinstance(gradient, Tensor) else gradient


def _apply_gradients(
    self: Any,
    grads_and_vars: Any,
    name: Any = None,
    skip_gradients_aggregation: bool = False,
    experimental_aggregate_gradients: bool = True,
) -> Any:
    del name
    pairs = list(grads_and_vars)
    if not pairs:
        raise ValueError("No gradients provided for any variable.")
    gradients, variables = [one for one, _ in pairs], [one for _, one in pairs]
    replica = current()
    if replica is not None and (skip_gradients_aggregation or not experimental_aggregate_gradients):
        replica.merged(lambda _: self.apply(gradients, variables), [])  # they are sums already
    else:
        self.apply(gradients, variables)
    return self.iterations


def _minimize(self: Any, loss: Any, var_list: Any, tape: Any = None, name: Any = None, grad_loss: Any = None) -> Any:
    """Computes the gradients of a loss, or of what a function gives, and applies them."""
    return self.apply_gradients(self.compute_gradients(loss, var_list, tape, grad_loss), name=name)


def _compute_gradients(self: Any, loss: Any, var_list: Any, tape: Any = None, grad_loss: Any = None) -> Any:
    del self
    if not callable(loss) and tape is None:
        raise ValueError("`tape` is required when a `Tensor` loss is passed.")
    if callable(loss) and not is_leaf(loss):
        with tape or GradientTape() as tape:
            if not callable(var_list):
                for one in var_list:
                    tape.watch(one)
            loss = loss()
    variables = list(var_list() if callable(var_list) else var_list)
    return list(zip(tape.gradient(loss, variables, grad_loss), variables, strict=True))


def _get_gradients(self: Any, loss: Any, params: Any) -> Any:
    del loss, params
    raise RuntimeError(
        f"{self.name}.get_gradients takes derivatives in a graph, and there is none: use tf.GradientTape, or "
        "optimizer.minimize(loss_function, variables)."
    )


def _decayed_lr(self: Any, var_dtype: Any = "float32") -> Tensor:
    """The rate of the next step."""
    return cast_to(self.learning_rate, getattr(var_dtype, "name", var_dtype))


def _rate(original: Any) -> property:
    def get(self: Any) -> Any:
        found = original.fget(self)
        return found if inside() or not isinstance(found, jax.Array) else Tensor(found)

    def put_rate(self: Any, value: Any) -> None:
        if isinstance(value, Tensor):
            value = value.numpy()
        original.fset(self, value)

    return property(get, put_rate)


def _init(original: Callable[..., Any]) -> Callable[..., Any]:
    """The `__init__` of an optimizer, with the names of arguments that Keras 2 had."""

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if "lr" in kwargs:
            kwargs["learning_rate"] = kwargs.pop("lr")
        for name in ("jit_compile", "is_legacy_optimizer"):
            kwargs.pop(name, None)
        if kwargs.get("epsilon", 1) is None:
            del kwargs["epsilon"]
        decay = kwargs.pop("decay", None)
        args = tuple(float(one) if isinstance(one, Tensor) else one for one in args)
        kwargs = {name: float(one) if isinstance(one, Tensor) else one for name, one in kwargs.items()}
        if decay:
            rate = args[0] if args else kwargs.get("learning_rate", self._first_rate)
            args = args[1:]
            kwargs["learning_rate"] = keras.optimizers.schedules.InverseTimeDecay(rate, 1, decay)
        original(self, *args, **kwargs)

    return init


def _take_old_arguments(kind: Any) -> None:
    first = inspect.signature(kind.__init__).parameters.get("learning_rate")
    kind._first_rate = None if first is None else first.default  # noqa: SLF001 - ours
    kind.__init__ = _init(kind.__init__)


def _adapt_schedule(kind: Any) -> None:
    own = kind.__dict__.get("__call__")
    if own is not None:
        kind.__call__ = of_tensors(own)


def _schedule_call(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, step: Any) -> Any:
        if is_keras_own([step]):
            return original(self, *plain([step]))
        return lifted(("schedule", token(self)), lambda _, given: original(self, *given), [], (convert(step),))

    return call


def install() -> None:
    """Has Keras's optimizers take tensors, and gives them the methods of Keras 2's."""
    kind = keras.optimizers.Optimizer
    for one in (kind, keras.optimizers.LossScaleOptimizer):
        one.apply = _apply(one.apply)
    kind.apply_gradients = _apply_gradients
    kind.minimize = _minimize
    kind.compute_gradients = _compute_gradients
    kind.get_gradients = _get_gradients
    kind._decayed_lr = _decayed_lr  # noqa: SLF001 - scripts call it
    kind.learning_rate = _rate(kind.learning_rate)
    kind.lr = property(lambda self: self.learning_rate, lambda self, value: setattr(self, "learning_rate", value))
    kind.weights = property(lambda self: list(self.variables))
    kind.get_weights = lambda self: [one.numpy() for one in self.variables]
    of_variables = kind.variables
    kind.variables = property(lambda self: _CallableList(of_variables.fget(self)))
    for name in dir(keras.optimizers):
        found: Any = getattr(keras.optimizers, name)
        if isinstance(found, type) and issubclass(found, kind) and found is not kind and "__init__" in found.__dict__:
            _take_old_arguments(found)
    schedule = keras.optimizers.schedules.LearningRateSchedule
    for name in dir(keras.optimizers.schedules):
        kind = getattr(keras.optimizers.schedules, name)
        if isinstance(kind, type) and issubclass(kind, schedule) and "__call__" in kind.__dict__:
            setattr(kind, "__call__", _schedule_call(kind.__dict__["__call__"]))  # noqa: B010 - mypy wants no method there
    on_subclass(schedule, _adapt_schedule)
