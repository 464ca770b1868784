"""The functions of `compat.ops` give TensorFlow's values and derivatives, without a graph; and the table's rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.compat.golden_values import golden
from tests.compat.operations_table import (
    IDS,
    IN_A_GRAPH,
    LABELS,
    NEEDS_A_GRAPH,
    PROBABILITIES,
    TABLE,
    TRUTHS,
    A,
    B,
)

from trainband.compat.ops import array, clipping, dtypes, embedding, losses, math
from trainband.compat.ops.arrays import ArgumentError, ComputedError
from trainband.compat.ops.catalogue import MODULES
from trainband.compat.ops.dtypes import float32, float64, int32
from trainband.compat.ops.eager import run
from trainband.compat.ops.signature import Signature
from trainband.compat.ops.table import TABLE as OPS
from trainband.compat.ops.table import op

GOLDEN = golden("operations")


class Eager:
    """The operations as TensorFlow 1 names and calls them, run at once."""

    def __init__(self, space: str) -> None:
        self._space = space

    def __getattr__(self, name: str) -> Any:
        full = f"{self._space}.{name}"
        if full in OPS:
            return lambda *arguments, **keywords: run(OPS[full], *arguments, v1=True, **keywords)
        if any(one.startswith(f"{full}.") for one in OPS):
            return Eager(full)
        if full == "tf.constant":
            return array.constant
        if hasattr(dtypes, name):
            return getattr(dtypes, name)
        raise AttributeError(full)


def _embedded(a: Any, b: Any, ids: Any) -> Any:
    return sum(
        embedding.gather_or_zero(part, embedding.places_in_part(ids + 2, i, [3, 3], "mod"))
        for i, part in enumerate((a, b))
    )


Function = Callable[..., Any]
OTHERS: dict[str, tuple[Function, tuple[Any, ...]]] = {
    # what records several operations, as the functions that these are
    "clip_by_global_norm": (lambda a, b: clipping.scaled_to_norm(b, clipping.global_norm([a, b]), 2.0), (A, B)),
    "embedding_parts": (_embedded, (A, B, IDS)),
    "losses_weighted": (
        lambda a, b: losses.weighted_loss(losses.squared_errors(a, b), np.array([[1.0], [0.0], [2.0]])),
        (A, B),
    ),
    "losses_huber": (lambda a, b: losses.weighted_loss(losses.huber_losses(a, b, 0.5), np.float32(1)), (A, B)),
    "losses_absolute": (lambda a, b: losses.weighted_loss(losses.absolute_errors(a, b), np.float32(1)), (A, B)),
    "losses_log": (
        lambda p: losses.weighted_loss(losses.log_losses(PROBABILITIES, math.sigmoid(p), 1e-7), np.float32(1)),
        (A,),
    ),
    "losses_hinge": (lambda a: losses.weighted_loss(losses.hinge_losses(TRUTHS, a), np.float32(1)), (A,)),
    "losses_softmax_smoothed": (
        lambda a: losses.weighted_loss(losses.softmax_losses(PROBABILITIES, a, 0.1), np.float32(1)),
        (A,),
    ),
    "losses_sparse": (
        lambda a: losses.weighted_loss(losses.sparse_softmax_losses(LABELS, a), np.float32(1)),
        (A,),
    ),
}
FUNCTIONS: dict[str, tuple[Function, tuple[Any, ...]]] = OTHERS | {
    name: ((lambda *inputs, function=function: function(Eager("tf"), *inputs)), inputs)
    for name, (function, inputs) in TABLE.items()
    if name not in NEEDS_A_GRAPH
}


@pytest.fixture(autouse=True)
def _wide() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def test_every_golden_value_is_compared() -> None:
    assert set(FUNCTIONS) | set(IN_A_GRAPH) == set(TABLE)
    assert MODULES  # which fill the table
    assert {key.partition("/")[0] for key in GOLDEN} == {*TABLE, "optimizer"}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_derivatives_are_those_of_tensorflow(name: str) -> None:
    function, inputs = FUNCTIONS[name]
    floats = [i for i, one in enumerate(inputs) if np.asarray(one).dtype.kind == "f"]

    @jax.jit
    def compute(given: Any) -> Any:
        def of(some: Any) -> Any:
            whole = list(given)
            for i, value in zip(floats, some, strict=True):
                whole[i] = value
            return function(*whole)

        value, pull_back = jax.vjp(of, [given[i] for i in floats])
        return value, pull_back(2 * value)[0] if floats and value.dtype.kind == "f" else []

    value, derivatives = compute([jnp.asarray(one) for one in inputs])
    assert np.shape(value) == GOLDEN[name].shape
    np.testing.assert_allclose(value, GOLDEN[name], rtol=2e-5, atol=2e-5)
    for number, derivative in enumerate(derivatives):
        wanted = GOLDEN.get(f"{name}/grad{number}", np.zeros_like(derivative))  # none: TensorFlow has no gradient
        np.testing.assert_allclose(derivative, wanted, rtol=2e-5, atol=2e-5)


DTYPES: list[tuple[str, tuple[Any, ...], Any]] = [
    # operation, arguments -> the dtype of the result
    ("tf.add", (np.float32(1), 2), float32),
    ("tf.add", (2, np.float64(1)), float64),
    ("tf.add", (1, 2), int32),
    ("tf.truediv", (np.int32(1), 2), float64),
    ("tf.truediv", (np.int8(1), 2), float32),
    ("tf.reduce_sum", (np.ones(3, np.int8),), dtypes.int8),
    ("tf.reduce_mean", (np.ones(3, np.int64),), dtypes.int64),
    ("tf.argmax", (np.ones(3, np.float32),), dtypes.int64),
    ("tf.shape", (np.ones(3),), int32),
    ("tf.range", (3,), int32),
    ("tf.range", (np.float32(0), 3), float32),
    ("tf.one_hot", (np.int32(1), 3), float32),
    ("tf.one_hot", (np.int32(1), 3, 5, 0), int32),
    ("tf.zeros", ([2],), float32),
    ("tf.clip_by_value", (np.float64(1), 0, 2), float64),
]


@pytest.mark.parametrize(("name", "arguments", "dtype"), DTYPES)
def test_the_dtypes_of_results(name: str, arguments: tuple[Any, ...], dtype: Any) -> None:
    assert dtypes.as_dtype(run(OPS[name], *arguments).dtype) == dtype


REFUSED: list[tuple[str, tuple[Any, ...], type[Exception], str]] = [
    ("tf.add", (np.float32(1), np.float64(1)), TypeError, "type float64 that does not match type float32"),
    ("tf.add", (np.int32(1), 2.5), TypeError, "operand of Add"),
    ("tf.matmul", (np.ones(3), np.ones((3, 3))), ArgumentError, "rank 2 but is rank 1"),
    ("tf.nn.sparse_softmax_cross_entropy_with_logits", (LABELS, np.ones(3)), ArgumentError, "Rank mismatch"),
    ("tf.where", (jnp.asarray(TRUTHS),), ComputedError, "computed from values"),
    ("tf.add_n", ([],), ValueError, "at least one"),
    ("tf.train.piecewise_constant", (np.int32(1), [1], [1.0]), ArgumentError, "length of boundaries"),
    ("tf.train.cosine_decay", (0.1, None, 10), ArgumentError, "global_step is required for cosine_decay"),
]


@pytest.mark.parametrize(("name", "arguments", "error", "pattern"), REFUSED)
def test_arguments_that_are_refused(
    name: str, arguments: tuple[Any, ...], error: type[Exception], pattern: str
) -> None:
    with pytest.raises(error, match=pattern):
        run(OPS[name], *arguments)


def test_random_numbers_follow_from_the_key() -> None:
    key = jax.random.key(3)
    for name in ("tf.random.normal", "tf.random.uniform", "tf.random.truncated_normal"):
        first, again = (run(OPS[name], [4, 5], key=key) for _ in range(2))
        assert first.shape == (4, 5)
        np.testing.assert_array_equal(first, again)
        assert not np.array_equal(first, run(OPS[name], [4, 5], key=jax.random.key(4)))
    with pytest.raises(ArgumentError, match="Must specify maxval"):
        run(OPS["tf.random.uniform"], [2], dtype=int32, key=key)


def test_numpy_stays_numpy_where_the_table_says_so() -> None:
    for name, entry in OPS.items():
        if entry.folds and entry.tensors == ("x", "y") and entry.outputs == 1:
            logical = "logical" in name
            pair = (TRUTHS, ~TRUTHS) if logical else (A, B)
            with np.errstate(all="ignore"):
                assert isinstance(entry.function(*pair), np.ndarray), name


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("tf.reduce_sum", "(input_tensor, axis=None, keepdims=False, name=None, reduction_indices=None, "
         "keep_dims=None, *, dim=None)"),
        ("tf.matmul", "(a, b, transpose_a=False, transpose_b=False, adjoint_a=False, adjoint_b=False, "
         "a_is_sparse=False, b_is_sparse=False, name=None)"),
        ("tf.nn.conv2d", "(input, filter=None, strides=None, padding=None, use_cudnn_on_gpu=True, "
         "data_format='NHWC', dilations=(1, 1, 1, 1), name=None, filters=None)"),
        ("tf.einsum", "(equation, *inputs, name=None)"),
        ("tf.random_shuffle", "(value, seed=None, name=None)"),
    ],
)  # fmt: skip
def test_signatures_are_those_of_tensorflow_1(name: str, shown: str) -> None:
    assert str(Signature.parse(OPS[name], OPS[name].v1).shown) == shown


def test_lists_of_arrays() -> None:
    np.testing.assert_array_equal(run(OPS["tf.add_n"], (one for one in (A, B))), A + B)
    np.testing.assert_array_equal(run(OPS["tf.stack"], [np.float64(1), 2]), np.array([1.0, 2.0]))
    np.testing.assert_array_equal(run(OPS["tf.concat"], A, 0), A)


def test_older_names_of_arguments() -> None:
    assert run(OPS["tf.reduce_sum"], A, reduction_indices=[1], keep_dims=True, v1=True).shape == (3, 1)
    assert run(OPS["tf.expand_dims"], A, dim=0, v1=True).shape == (1, 3, 4)
    with pytest.raises(ValueError, match="Only call"):
        run(OPS["tf.nn.sigmoid_cross_entropy_with_logits"], A, A, v1=True)
    with pytest.raises(TypeError, match="missing the argument 'filter'"):
        run(OPS["tf.nn.conv2d"], A, v1=True)
    with pytest.raises(TypeError, match="reduction_indices"):
        run(OPS["tf.reduce_sum"], A, reduction_indices=[1])  # TensorFlow 2 has no such argument


def test_an_entry_is_checked_when_it_is_made() -> None:
    with pytest.raises(ValueError, match="both add and twice"):
        op("tf.add", tensors="x")(twice)
    with pytest.raises(ValueError, match=r"twice has no parameters \['y'\]"):
        op("tf.twice", tensors="y")(twice)


def twice(x: Any) -> Any:
    return x + x
