"""`tf.keras.backend`: operations by Keras's names, variables and their values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from trainband.compat.ops import (
    activations,
    array,
    clipping,
    indexing,
    keras_losses,
    math,
    matrices,
    normalization,
    random,
    reductions,
)
from trainband.compat.ops.dtypes import array_of, as_dtype
from trainband.compat.tf1.graphs.graph import Tensor, get_default_graph
from trainband.compat.tf1.graphs.record import convert, is_tensor
from trainband.compat.tf1.graphs.variable import Variable
from trainband.compat.tf1.models import losses, phase
from trainband.compat.tf1.models.core_layers import now
from trainband.compat.tf1.networks.core import flat, while_training
from trainband.compat.tf1.operations import array as arrays
from trainband.compat.tf1.operations.control_flow import group
from trainband.compat.tf1.operations.gradients import gradients as gradients_of
from trainband.compat.tf1.operations.recorder import recorded
from trainband.compat.tf1.operations.state import variable_of

_float = "float32"
_epsilon = 1e-7


def backend() -> str:
    """TensorFlow's name, for scripts that ask."""
    return "tensorflow"


def floatx() -> str:
    """The dtype of floats."""
    return _float


def set_floatx(value: str) -> None:
    """Sets the dtype of floats that `variable`, `placeholder` and `cast_to_floatx` use."""
    global _float
    _float = value


def epsilon() -> float:
    """What keeps quotients finite."""
    return _epsilon


def set_epsilon(value: float) -> None:
    """Sets what keeps quotients finite in the script's own formulas."""
    global _epsilon
    _epsilon = float(value)


def cast_to_floatx(x: Any) -> Any:
    """An array of floats."""
    return np.asarray(x, dtype=_float)


# --- tensors and variables


def variable(value: Any, dtype: Any = None, name: str | None = None, constraint: Any = None) -> Variable:
    """A variable that is not trained by optimizers of its own accord."""
    kind = as_dtype(dtype or _float)

    def first() -> Any:
        return convert(value, kind) if is_tensor(value) else convert(array_of(value, kind))

    return Variable(first, dtype=kind, name=name or "Variable", constraint=constraint)


def constant(value: Any, dtype: Any = None, shape: Any = None, name: str = "Const") -> Any:
    """A constant."""
    return arrays.constant(value, dtype or _float, shape, name)


def placeholder(
    shape: Any = None, ndim: int | None = None, dtype: Any = None, sparse: bool = False, name: str | None = None
) -> Any:  # fmt: skip
    """A tensor that every run must feed."""
    del sparse
    sizes = [None] * ndim if shape is None and ndim is not None else shape
    return arrays.placeholder(dtype or _float, sizes, name)


def is_keras_tensor(x: Any) -> bool:
    """Whether a tensor came out of a layer."""
    return hasattr(x, "_keras_history")


def is_placeholder(x: Any) -> bool:
    """Whether a tensor must be fed."""
    return isinstance(x, Tensor) and x.op.type == "Placeholder"


def int_shape(x: Any) -> tuple[int | None, ...] | None:
    """The sizes, as far as they are known."""
    sizes = convert(x).shape.sizes
    return None if sizes is None else tuple(sizes)


def ndim(x: Any) -> int | None:
    """How many axes there are."""
    return convert(x).shape.ndims


def dtype(x: Any) -> str:
    """The dtype's name."""
    return convert(x).dtype.name


def get_value(x: Any) -> Any:
    """The value of a variable or tensor."""
    return phase.get_session().run(x) if hasattr(x, "as_tensor") or isinstance(x, Tensor) else x


def batch_get_value(tensors: Sequence[Any]) -> list[Any]:
    """The values of variables."""
    return list(phase.get_session().run(list(tensors))) if tensors else []


def set_value(x: Any, value: Any) -> None:
    """Gives a variable a value."""
    one = variable_of(x)
    one.load(np.asarray(value, one.dtype.numpy), phase.get_session())


def batch_set_value(tuples: Sequence[tuple[Any, Any]]) -> None:
    """Gives variables values."""
    for one, value in tuples:
        set_value(one, value)


def function(
    inputs: Any, outputs: Any, updates: Any = None, name: str | None = None, **more: Any
) -> Callable[..., Any]:
    """A function of arrays that runs a part of the graph."""
    del name, more
    operations = [one if not isinstance(one, tuple) else one[0].assign(one[1]).op for one in updates or ()]
    also = [group(*operations)] if operations else []
    several = isinstance(outputs, list | tuple)

    def run(*values: Any) -> Any:
        given = values[0] if len(values) == 1 and isinstance(values[0], list | tuple) else list(values)
        keys = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
        feeds = {key: value for key, value in zip(keys, given, strict=True) if isinstance(key, Tensor)}
        wanted = list(outputs) if several else [outputs]
        found = phase.get_session().run([wanted, also], feeds)[0]
        return found if several else found[0]

    return run


def gradients(loss: Any, variables: Any) -> list[Any]:
    """The derivatives of a loss."""
    listed = list(variables) if isinstance(variables, list | tuple) else [variables]
    return list(gradients_of(loss, listed))


def update(x: Any, new_x: Any) -> Any:
    """Record an assignment."""
    return x.assign(new_x)


def update_add(x: Any, increment: Any) -> Any:
    """Record an addition."""
    return x.assign_add(increment)


def update_sub(x: Any, decrement: Any) -> Any:
    """Record a subtraction."""
    return x.assign_sub(decrement)


def moving_average_update(x: Any, value: Any, momentum: Any) -> Any:
    """Record that a moving average takes a value in."""
    return x.assign_sub((x - value) * (1.0 - momentum))


def name_scope(name: str) -> Any:
    """Names made inside begin with this one."""
    return get_default_graph().name_scope(name)


# --- operations


def _floats(x: Any) -> Any:
    tensor = convert(x)
    return recorded(math.cast)(tensor, _float) if tensor.dtype.is_bool else tensor


def _reduction(formula: Callable[..., Any]) -> Callable[..., Any]:
    def reduce(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
        return recorded(formula)(_floats(x), axis, keepdims=keepdims)

    reduce.__doc__ = formula.__doc__
    return reduce


sum_, mean, max_, min_, prod, logsumexp = map(
    _reduction,
    (
        reductions.reduce_sum,
        reductions.reduce_mean,
        reductions.reduce_max,
        reductions.reduce_min,
        reductions.reduce_prod,
        reductions.reduce_logsumexp,
    ),
)
any_, all_ = map(recorded, (reductions.reduce_any, reductions.reduce_all))


def var(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """The variance."""
    away = _floats(x) - mean(x, axis, True)
    return mean(recorded(math.square)(away), axis, keepdims)


def std(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """The standard deviation."""
    return recorded(math.sqrt)(var(x, axis, keepdims))


def argmax(x: Any, axis: int = -1) -> Any:
    """The place of the largest."""
    return recorded(reductions.argmax)(x, axis)


def argmin(x: Any, axis: int = -1) -> Any:
    """The place of the smallest."""
    return recorded(reductions.argmin)(x, axis)


def clip(x: Any, min_value: Any, max_value: Any) -> Any:
    """Moved into an interval."""
    return recorded(clipping.clip_by_value)(x, min_value, max_value)


def sqrt(x: Any) -> Any:
    """The square root; of negative numbers, zero."""
    return recorded(math.sqrt)(recorded(math.maximum)(x, 0.0))


def pow_(x: Any, a: Any) -> Any:
    """A power."""
    return recorded(math.pow_)(x, a)


def dot(x: Any, y: Any) -> Any:
    """The product along the last axis and the last but one."""
    a, b = convert(x), convert(y)
    rank, other = a.shape.ndims or 2, b.shape.ndims or 2
    if rank <= 2 and other == 2:
        return recorded(matrices.matmul)(a, b)
    return recorded(matrices.tensordot)(a, b, [[rank - 1], [max(other - 2, 0)]])


def concatenate(tensors: Any, axis: int = -1) -> Any:
    """One after the other."""
    return arrays.concat(list(tensors), axis)


def reshape(x: Any, shape: Any) -> Any:
    """In another shape."""
    return arrays.reshape(x, shape)


def permute_dimensions(x: Any, pattern: Any) -> Any:
    """The axes in another order."""
    return recorded(array.transpose)(x, list(pattern))


def expand_dims(x: Any, axis: int = -1) -> Any:
    """With one more axis."""
    return recorded(array.expand_dims)(x, axis)


def squeeze(x: Any, axis: int) -> Any:
    """Without an axis of size 1."""
    return recorded(array.squeeze)(x, [axis])


def flatten(x: Any) -> Any:
    """All in one row."""
    return arrays.reshape(x, [-1])


def batch_flatten(x: Any) -> Any:
    """One row for each example."""
    return flat(x)


def gather(reference: Any, indices: Any) -> Any:
    """Rows by their numbers."""
    return recorded(indexing.gather)(reference, indices)


def cast(x: Any, dtype: Any) -> Any:
    """As another dtype."""
    return recorded(math.cast)(x, dtype)


def zeros(shape: Any, dtype: Any = None, name: str | None = None) -> Any:
    """A variable of zeros."""
    return variable(np.zeros(shape, as_dtype(dtype or _float).numpy), dtype, name)


def ones(shape: Any, dtype: Any = None, name: str | None = None) -> Any:
    """A variable of ones."""
    return variable(np.ones(shape, as_dtype(dtype or _float).numpy), dtype, name)


def random_normal(shape: Any, mean: float = 0.0, stddev: float = 1.0, dtype: Any = None, seed: Any = None) -> Any:
    """Normally distributed numbers."""
    return recorded(random.random_normal)(shape, mean, stddev, dtype or _float, seed)


def random_uniform(shape: Any, minval: float = 0.0, maxval: float = 1.0, dtype: Any = None, seed: Any = None) -> Any:
    """Uniformly distributed numbers."""
    return recorded(random.random_uniform)(shape, minval, maxval, dtype or _float, seed)


def dropout(x: Any, level: float, noise_shape: Any = None, seed: Any = None) -> Any:
    """Zeroes each element with a probability."""
    return recorded(random.dropout)(x, keep_prob=1.0 - level, noise_shape=noise_shape, seed=seed)


def l2_normalize(x: Any, axis: Any = None) -> Any:
    """With the norm 1."""
    return recorded(normalization.l2_normalize)(x, axis)


def bias_add(x: Any, bias: Any, data_format: str | None = None) -> Any:
    """A bias added to each channel."""
    layout = "NCHW" if data_format == "channels_first" else "NHWC"
    return recorded(activations.bias_add)(x, bias, layout)


def categorical_crossentropy(target: Any, output: Any, from_logits: bool = False, axis: int = -1) -> Any:
    """The cross entropy of class probabilities."""
    return losses.categorical_crossentropy(target, output, from_logits, 0.0, axis)


def binary_crossentropy(target: Any, output: Any, from_logits: bool = False) -> Any:
    """The cross entropy of each element, of two classes."""
    return recorded(keras_losses.binary_cross_entropies)(target, output, from_logits)


def in_train_phase(x: Any, alt: Any, training: Any = None) -> Any:
    """One result while training, and another at other times."""

    def of(value: Any) -> Callable[[], Any]:
        return value if callable(value) and not isinstance(value, Tensor) else lambda: recorded(array.identity)(value)

    return while_training(now(training), of(x), of(alt))


def in_test_phase(x: Any, alt: Any, training: Any = None) -> Any:
    """One result at other times than training, and another then."""
    return in_train_phase(alt, x, training)


def switch(condition: Any, then_expression: Any, else_expression: Any) -> Any:
    """One of two results, by a condition or element by element."""
    test = convert(condition)
    if test.shape.ndims == 0:
        return in_train_phase(then_expression, else_expression, recorded(math.cast)(test, "bool"))
    first, second = (
        one() if callable(one) and not isinstance(one, Tensor) else one for one in (then_expression, else_expression)
    )
    return recorded(indexing.where)(recorded(math.cast)(test, "bool"), first, second)


def count_params(x: Any) -> int:
    """How many numbers a variable has."""
    return convert(x).shape.num_elements() or 0
