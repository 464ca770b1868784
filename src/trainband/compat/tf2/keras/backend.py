"""`tf.keras.backend`: the functions of older programs, most of them those of `keras.ops` under other names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from trainband.compat.ops.table import TABLE
from trainband.compat.tf2.eager.execute import cast_to, convert, function_of
from trainband.compat.tf2.eager.making import constant as _constant
from trainband.compat.tf2.keras.inside import keras
from trainband.compat.tf2.keras.lifting import lifted_function

_SAME = """
    abs all any argmax argmin arange cast clip concatenate cos cumprod cumsum dot elu equal exp expand_dims eye greater
    greater_equal hard_sigmoid less less_equal log logsumexp max maximum mean min minimum not_equal one_hot ones_like
    prod reshape round sigmoid sign sin softmax softplus softsign sqrt square squeeze stack std stop_gradient sum tanh
    tile transpose var zeros_like binary_crossentropy categorical_crossentropy sparse_categorical_crossentropy repeat
"""
_OTHER = {"pow": "power", "permute_dimensions": "transpose", "reverse": "flip", "repeat_elements": "repeat"}
_MADE: dict[str, Any] = {}


def __getattr__(name: str) -> Any:
    if name not in _MADE:
        own = _OTHER.get(name, name if name in _SAME.split() else None)
        if own is None:
            raise AttributeError(name)
        _MADE[name] = lifted_function(getattr(keras.ops, own), f"keras.ops.{own}")
    return _MADE[name]


def _op(name: str) -> Callable[..., Any]:
    return function_of(TABLE[name])


def _ops(name: str) -> Callable[..., Any]:
    return lifted_function(getattr(keras.ops, name), f"keras.ops.{name}")


def relu(x: Any, alpha: float = 0.0, max_value: Any = None, threshold: float = 0.0) -> Any:
    """The positive part, with a slope below it."""
    whole = lifted_function(keras.activations.relu, "keras.activations.relu")
    return whole(x, negative_slope=alpha, max_value=max_value, threshold=threshold)


def flatten(x: Any) -> Any:
    """All numbers in one row."""
    return _ops("reshape")(x, (-1,))


def batch_flatten(x: Any) -> Any:
    """The numbers of each example in one row."""
    return _ops("reshape")(x, (-1, int(np.prod(int_shape(x)[1:]))))


def gather(reference: Any, indices: Any) -> Any:
    """The rows with these numbers."""
    return _ops("take")(reference, indices, axis=0)


def l2_normalize(x: Any, axis: Any = None) -> Any:
    """Scaled to the length 1."""
    return _op("tf.nn.l2_normalize")(x, axis=axis)


def batch_dot(x: Any, y: Any, axes: Any = None) -> Any:
    """The products of the examples of two batches."""
    one, other = (axes, axes) if isinstance(axes, int) else (axes or (len(int_shape(x)) - 1, len(int_shape(y)) - 2))
    return keras.layers.Dot((one, other))([x, y])


def int_shape(x: Any) -> tuple[Any, ...]:
    """The sizes, as far as they are known."""
    shape: Any = x.shape if hasattr(x, "shape") else convert(x).shape
    return tuple(shape.as_list()) if hasattr(shape, "as_list") else tuple(shape)


def shape(x: Any) -> Any:
    """The sizes, as a tensor."""
    return _op("tf.shape")(x)


def ndim(x: Any) -> int:
    """The rank."""
    return len(int_shape(x))


def dtype(x: Any) -> str:
    """The name of the dtype."""
    found = x.dtype if hasattr(x, "dtype") else convert(x).dtype
    return str(getattr(found, "name", found))


def cast_to_floatx(x: Any) -> Any:
    """In Keras's type of numbers."""
    return np.asarray(x, keras.config.floatx()) if isinstance(x, np.ndarray) else cast_to(x, keras.config.floatx())


def constant(value: Any, dtype: Any = None, shape: Any = None, name: str | None = None) -> Any:
    """A tensor of a value that is known."""
    return _constant(value, dtype or keras.config.floatx(), shape, name)


def variable(value: Any, dtype: Any = None, name: str | None = None, constraint: Any = None) -> Any:
    """A variable of Keras's."""
    value = value.numpy() if hasattr(value, "numpy") else np.asarray(value)
    found = keras.Variable(value.astype(dtype or keras.config.floatx()), name=name)
    found.constraint = constraint
    return found


def zeros(shape: Any, dtype: Any = None, name: str | None = None) -> Any:
    """A variable of zeros."""
    return variable(np.zeros(tuple(shape)), dtype, name)


def ones(shape: Any, dtype: Any = None, name: str | None = None) -> Any:
    """A variable of ones."""
    return variable(np.ones(tuple(shape)), dtype, name)


def get_value(x: Any) -> Any:
    """The value as NumPy's."""
    return x.numpy() if hasattr(x, "numpy") else np.asarray(x)


eval = get_value  # noqa: A001 - Keras's name


def set_value(x: Any, value: Any) -> None:
    """Gives a variable a value."""
    x.assign(np.asarray(value, str(x.dtype)))


def batch_get_value(tensors: Sequence[Any]) -> list[Any]:
    """The values of several."""
    return [get_value(one) for one in tensors]


def batch_set_value(tuples: Sequence[tuple[Any, Any]]) -> None:
    """Gives several variables values."""
    for one, value in tuples:
        set_value(one, value)


def update(x: Any, new_x: Any) -> Any:
    """Gives a variable a new value."""
    return x.assign(new_x)


def update_add(x: Any, increment: Any) -> Any:
    """Adds to a variable."""
    return x.assign_add(increment)


def update_sub(x: Any, decrement: Any) -> Any:
    """Subtracts from a variable."""
    return x.assign_sub(decrement)


def moving_average_update(x: Any, value: Any, momentum: float) -> Any:
    """Moves a variable towards a value."""
    return x.assign(convert(x) * momentum + convert(value) * (1.0 - momentum))


def switch(condition: Any, then_expression: Any, else_expression: Any) -> Any:
    """One of two values, or what one of two functions gives."""
    one, other = (given() if callable(given) else given for given in (then_expression, else_expression))
    return _op("tf.where")(condition, one, other)


def random_normal(shape: Any, mean: float = 0.0, stddev: float = 1.0, dtype: Any = None, seed: Any = None) -> Any:
    """Random numbers of a normal distribution."""
    return _op("tf.random.normal")(shape, mean, stddev, dtype or keras.config.floatx(), seed=seed)


def random_uniform(shape: Any, minval: float = 0.0, maxval: float = 1.0, dtype: Any = None, seed: Any = None) -> Any:
    """Random numbers of a range."""
    return _op("tf.random.uniform")(shape, minval, maxval, dtype or keras.config.floatx(), seed=seed)


def dropout(x: Any, level: float, noise_shape: Any = None, seed: Any = None) -> Any:
    """Zeroes elements with a probability."""
    from trainband.compat.tf2.eager.networks import dropout as drop

    return drop(x, level, noise_shape, seed)


def in_train_phase(x: Any, alt: Any, training: Any = None) -> Any:
    """The first in training, and else the second."""
    chosen = x if training else alt
    return chosen() if callable(chosen) else chosen


def learning_phase() -> int:
    """0: training is said by the argument `training` of each call."""
    return 0


def set_learning_phase(value: Any) -> None:
    """Changes nothing: training is said by the argument `training` of each call."""
    del value


def function(inputs: Any, outputs: Any, updates: Any = None, name: str | None = None, **_: Any) -> Callable[..., Any]:
    """A function of arrays, between symbolic tensors of a model."""
    del updates, name
    single = not isinstance(outputs, list | tuple)
    model = keras.Model(inputs, [outputs] if single else list(outputs))

    def call(given: Any) -> Any:
        values = given[0] if isinstance(given, list | tuple) and len(given) == 1 else given
        found = [get_value(one) for one in model(values)]
        return found[0] if single else found

    return call


def gradients(loss: Any, variables: Any) -> Any:
    """Refused: derivatives are taken by tapes."""
    del loss, variables
    raise RuntimeError("tf.gradients is not supported when eager execution is enabled. Use tf.GradientTape instead.")


def name_scope(name: str) -> Any:
    """A scope that changes nothing."""
    return nullcontext(name)


def count_params(x: Any) -> int:
    """How many numbers there are."""
    return int(np.prod(int_shape(x)))


def is_keras_tensor(x: Any) -> bool:
    """Whether it is symbolic."""
    return bool(keras.backend.is_keras_tensor(x))


def manual_variable_initialization(value: bool) -> None:
    """Changes nothing."""
    del value


def get_session(op_input_list: Any = ()) -> Any:
    """Refused: there is no session."""
    del op_input_list
    raise RuntimeError("tf.keras.backend.get_session: TensorFlow 2 has no sessions; call functions and read numpy().")


set_session = get_session
