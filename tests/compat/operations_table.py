# ruff: noqa: ARG005 - every entry is called with tf, whether or not it needs it
"""Operations with their inputs, on whose values and derivatives TensorFlow and trainband must agree.

It needs NumPy only, and is run with TensorFlow, `compat.tf1`, or the operations of `compat.ops` as `tf`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

_random = np.random.RandomState(1)


def _normal(*shape: int) -> Any:
    return _random.normal(size=shape).astype(np.float32)


A, B = _normal(3, 4), _normal(3, 4)
POSITIVE = (np.abs(_normal(3, 4)) + 0.5).astype(np.float32)
ROW = _normal(4)
MATRIX = _normal(4, 5)
IMAGES, KERNEL = _normal(2, 6, 6, 3), _normal(3, 3, 3, 4)
TIES = np.array([[1.0, 2.0, 2.0, 0.0], [0.0, 0.0, -1.0, 3.0]], np.float32)
IDS = np.array([[0, 2], [2, 1]], np.int32)
INTS = np.array([[7, -7, 5], [-5, 9, 2]], np.int32)
DIVISORS = np.array([[2, 2, -3], [3, -4, 2]], np.int32)
TRUTHS = np.array([[True, False, True, True], [False, False, True, True], [True, True, True, True]])
LABELS = np.array([1, 0, 3], np.int32)
PROBABILITIES = np.array([[0.1, 0.2, 0.3, 0.4], [1, 0, 0, 0], [0.25, 0.25, 0.25, 0.25]], np.float32)

Entry = tuple[Callable[..., Any], tuple[Any, ...]]

TABLE: dict[str, Entry] = {
    # arithmetic
    "add_broadcast": (lambda tf, a, b: tf.add(a, b), (A, ROW)),
    "subtract": (lambda tf, a, b: tf.subtract(a, b), (A, B)),
    "divide": (lambda tf, a, b: tf.divide(a, b), (A, POSITIVE)),
    "floordiv": (lambda tf, a, b: tf.floordiv(a, b), (A, POSITIVE)),
    "floormod": (lambda tf, a, b: tf.floormod(a, b), (A, POSITIVE)),
    "pow": (lambda tf, a, b: tf.pow(a, b), (POSITIVE, B)),
    "int_truediv": (lambda tf, a, b: tf.truediv(a, b), (INTS, DIVISORS)),
    "int_floordiv": (lambda tf, a, b: tf.floordiv(a, b), (INTS, DIVISORS)),
    "int_mod": (lambda tf, a, b: tf.floormod(a, b), (INTS, DIVISORS)),
    "int_div": (lambda tf, a, b: tf.div(a, b), (INTS, DIVISORS)),
    "int_truncatediv": (lambda tf, a, b: tf.truncatediv(a, b), (INTS, DIVISORS)),
    "maximum_ties": (lambda tf, a: tf.maximum(a, 0.0), (TIES,)),
    "minimum_ties": (lambda tf, a: tf.minimum(a, 2.0), (TIES,)),
    "squared_difference": (lambda tf, a, b: tf.squared_difference(a, b), (A, B)),
    "abs_sign": (lambda tf, a: tf.abs(a) + tf.sign(a), (TIES,)),
    "sqrt_rsqrt": (lambda tf, a: tf.sqrt(a) + tf.rsqrt(a), (POSITIVE,)),
    "logs": (lambda tf, a: tf.log(a) + tf.log1p(a) + tf.exp(-a) + tf.expm1(a), (POSITIVE,)),
    "trigonometry": (lambda tf, a: tf.sin(a) + tf.cos(a) + tf.tan(a) + tf.atan(a) + tf.tanh(a), (A,)),
    "erf_lgamma": (lambda tf, a: tf.erf(a) + tf.lgamma(a) + tf.digamma(a), (POSITIVE,)),
    "rounding": (lambda tf, a: tf.floor(a) + tf.ceil(a) + tf.round(a * 2.5), (A,)),
    "clip_by_value": (lambda tf, a: tf.clip_by_value(a, 0.0, 2.0), (TIES,)),
    "clip_by_norm": (lambda tf, a: tf.clip_by_norm(a, 1.5), (A,)),
    "clip_by_norm_axes": (lambda tf, a: tf.clip_by_norm(a, 1.0, axes=[1]), (A,)),
    "clip_by_global_norm": (lambda tf, a, b: tf.clip_by_global_norm([a, b], 2.0)[0][1], (A, B)),
    "global_norm": (lambda tf, a, b: tf.global_norm([a, b]), (A, B)),
    "comparisons": (lambda tf, a, b: tf.cast(tf.less(a, b), tf.float32) + tf.to_float(tf.greater_equal(a, b)), (A, B)),
    "cast_to_int": (lambda tf, a: tf.cast(a * 3, tf.int32), (A,)),
    "select": (lambda tf, a, b: tf.where(tf.greater(a, b), a, b), (A, B)),
    "select_rows": (lambda tf, a, b: tf.where(tf.constant([True, False, True]), a, b), (A, B)),
    "stop_gradient": (lambda tf, a, b: a * tf.stop_gradient(b), (A, B)),
    "add_n": (lambda tf, a, b: tf.add_n([a, b, a]), (A, B)),
    "cumsum": (lambda tf, a: tf.cumsum(a, axis=1, exclusive=True, reverse=True), (A,)),
    # matrices and reductions
    "matmul_transposed": (lambda tf, a, b: tf.matmul(a, b, transpose_a=True), (A, B)),
    "batch_matmul": (lambda tf, a, b: tf.matmul(a, b), (IMAGES, _normal(2, 6, 3, 2))),
    "tensordot": (lambda tf, a, b: tf.tensordot(a, b, [[1], [0]]), (A, MATRIX)),
    "inverse": (lambda tf, a: tf.matrix_inverse(tf.matmul(a, a, transpose_b=True)), (A,)),
    "reduce_all_ways": (lambda tf, a: tf.reduce_sum(a, 1) + tf.reduce_mean(a) + tf.reduce_prod(a, [0, 1]), (A,)),
    "reduce_max_ties": (lambda tf, a: tf.reduce_max(a, axis=1, keep_dims=True), (TIES,)),
    "reduce_min": (lambda tf, a: tf.reduce_min(a, reduction_indices=[0]), (A,)),
    "reduce_logsumexp": (lambda tf, a: tf.reduce_logsumexp(a, 1), (A,)),
    "int_mean": (lambda tf, a: tf.reduce_mean(a, 0), (INTS,)),
    "reduce_any_all": (
        lambda tf, t: tf.cast(tf.reduce_any(t, 1), tf.int32) + tf.cast(tf.reduce_all(t, 1), tf.int32),
        (TRUTHS,),
    ),
    "argmax": (lambda tf, a: tf.argmax(a, 1), (TIES,)),
    "norm": (lambda tf, a: tf.norm(a, axis=1), (A,)),
    # shapes
    "reshape_by_shape": (lambda tf, a: tf.reshape(a, [tf.shape(a)[1], -1]), (A,)),
    "transpose": (lambda tf, a: tf.transpose(a, [2, 0, 1, 3]), (IMAGES,)),
    "slices": (lambda tf, a: a[:, 1:3, ::2, -1], (IMAGES,)),
    "slice_newaxis": (lambda tf, a: a[..., tf.newaxis, 0] if hasattr(tf, "newaxis") else a[..., None, 0], (A,)),
    "slice_op": (lambda tf, a: tf.slice(a, [0, 1], [-1, 2]), (A,)),
    "split_concat": (lambda tf, a: tf.concat(tf.split(a, 2, axis=1)[::-1], 1), (A,)),
    "split_sizes": (lambda tf, a: tf.split(a, [1, 3], 1)[1], (A,)),
    "stack_unstack": (lambda tf, a: tf.stack(tf.unstack(a, axis=1)[1:], axis=0), (A,)),
    "tile_expand": (lambda tf, a: tf.tile(tf.expand_dims(a, 1), [1, 3, 1]), (A,)),
    "pad": (lambda tf, a: tf.pad(a, [[1, 0], [0, 2]]), (A,)),
    "pad_reflect": (lambda tf, a: tf.pad(a, [[1, 1], [2, 0]], "REFLECT"), (A,)),
    "gather": (lambda tf, a, i: tf.gather(a, i), (A, IDS)),
    "gather_axis": (lambda tf, a, i: tf.gather(a, i, axis=1), (A, IDS)),
    "gather_nd": (lambda tf, a, i: tf.gather_nd(a, i), (A, IDS)),
    "one_hot": (lambda tf, i: tf.one_hot(i, 4, on_value=2.0, off_value=-1.0), (IDS,)),
    "squeeze_reverse": (lambda tf, a: tf.reverse(tf.squeeze(tf.expand_dims(a, 0), [0]), [1]), (A,)),
    "range_fill": (lambda tf, a: tf.cast(tf.range(2, 10, 3), tf.float32) + tf.fill([2, 3], tf.reduce_sum(a)), (A,)),
    "sequence_mask": (lambda tf, i: tf.sequence_mask(i, 4), (LABELS,)),
    "top_k": (lambda tf, a: tf.nn.top_k(a, 2)[0], (A,)),
    "in_top_k": (lambda tf, a, t: tf.nn.in_top_k(a, t, 2), (A, LABELS)),
    # networks
    "activations": (
        lambda tf, a: (
            tf.nn.relu(a) + tf.nn.relu6(a * 5) + tf.nn.elu(a) + tf.nn.selu(a) + tf.nn.softplus(a) + tf.nn.softsign(a)
        ),
        (A,),
    ),
    "relu_at_zero": (lambda tf, a: tf.nn.relu(a) + tf.nn.leaky_relu(a), (TIES,)),
    "softmaxes": (lambda tf, a: tf.nn.softmax(a) + tf.nn.log_softmax(a, 0), (A,)),
    "xw_plus_b": (lambda tf, a, w, b: tf.nn.xw_plus_b(a, w, b), (A, MATRIX, _normal(5))),
    "l2": (lambda tf, a: tf.nn.l2_loss(a) + tf.nn.l2_normalize(a, 1), (A,)),
    "conv2d_same": (lambda tf, x, w: tf.nn.conv2d(x, w, [1, 2, 2, 1], "SAME"), (IMAGES, KERNEL)),
    "conv2d_valid": (lambda tf, x, w: tf.nn.conv2d(x, w, [1, 1, 1, 1], "VALID"), (IMAGES, KERNEL)),
    "conv2d_transpose": (
        lambda tf, x, w: tf.nn.conv2d_transpose(x, w, [2, 12, 12, 2], [1, 2, 2, 1], "SAME"),
        (IMAGES, _normal(3, 3, 2, 3)),
    ),
    "depthwise": (
        lambda tf, x, w: tf.nn.depthwise_conv2d(x, w, [1, 1, 1, 1], "SAME"),
        (IMAGES, _normal(3, 3, 3, 2)),
    ),
    "max_pool": (lambda tf, x: tf.nn.max_pool(x, [1, 3, 3, 1], [1, 2, 2, 1], "SAME"), (IMAGES,)),
    "avg_pool_edges": (lambda tf, x: tf.nn.avg_pool(x, [1, 3, 3, 1], [1, 2, 2, 1], "SAME"), (IMAGES,)),
    "lrn": (lambda tf, x: tf.nn.lrn(x, 1, bias=1.0, alpha=0.1, beta=0.75), (IMAGES,)),
    "moments_normalization": (
        lambda tf, x: tf.nn.batch_normalization(x, *tf.nn.moments(x, [0, 1, 2]), 0.5, 2.0, 1e-3),
        (IMAGES,),
    ),
    "embedding_lookup": (lambda tf, a, i: tf.nn.embedding_lookup(a, i), (A, IDS)),
    "embedding_parts": (
        lambda tf, a, b, i: tf.nn.embedding_lookup([a, b], i + 2, partition_strategy="mod"),
        (A, B, IDS),
    ),
    "softmax_cross_entropy": (
        lambda tf, x: tf.nn.softmax_cross_entropy_with_logits(labels=tf.constant(PROBABILITIES), logits=x),
        (A,),
    ),
    "sparse_cross_entropy": (
        lambda tf, x: tf.nn.sparse_softmax_cross_entropy_with_logits(labels=tf.constant(LABELS), logits=x),
        (A,),
    ),
    "sigmoid_cross_entropy": (
        lambda tf, z, x: tf.nn.sigmoid_cross_entropy_with_logits(labels=z, logits=x),
        (PROBABILITIES, A),
    ),
    "weighted_cross_entropy": (
        lambda tf, x: tf.nn.weighted_cross_entropy_with_logits(tf.constant(PROBABILITIES), x, 2.0),
        (A,),
    ),
    # losses
    "losses_weighted": (
        lambda tf, a, b: tf.losses.mean_squared_error(a, b, weights=tf.constant([[1.0], [0.0], [2.0]])),
        (A, B),
    ),
    "losses_huber": (lambda tf, a, b: tf.losses.huber_loss(a, b, delta=0.5), (A, B)),
    "losses_absolute": (lambda tf, a, b: tf.losses.absolute_difference(a, b), (A, B)),
    "losses_log": (lambda tf, p: tf.losses.log_loss(tf.constant(PROBABILITIES), tf.nn.sigmoid(p)), (A,)),
    "losses_hinge": (lambda tf, a: tf.losses.hinge_loss(tf.constant(TRUTHS), a), (A,)),
    "losses_softmax_smoothed": (
        lambda tf, a: tf.losses.softmax_cross_entropy(tf.constant(PROBABILITIES), a, label_smoothing=0.1),
        (A,),
    ),
    "losses_sparse": (lambda tf, a: tf.losses.sparse_softmax_cross_entropy(tf.constant(LABELS), a), (A,)),
    # learning rates
    "exponential_decay": (
        lambda tf, s: tf.train.exponential_decay(0.1, tf.cast(s, tf.int64), 10, 0.5, staircase=True) + s * 0,
        (np.float32(25),),
    ),
    "polynomial_decay": (lambda tf, s: tf.train.polynomial_decay(0.1, s, 40, 0.01, power=2.0), (np.float32(25),)),
    "polynomial_cycle": (
        lambda tf, s: tf.train.polynomial_decay(0.1, s, 10, 0.01, power=0.5, cycle=True),
        (np.float32(25),),
    ),
    "inverse_natural_decay": (
        lambda tf, s: tf.train.inverse_time_decay(0.1, s, 4, 0.5) + tf.train.natural_exp_decay(0.1, s, 4, 0.5),
        (np.float32(9),),
    ),
    "cosine_decay": (lambda tf, s: tf.train.cosine_decay(0.1, s, 40, 0.1), (np.float32(25),)),
    "piecewise_at_boundary": (
        lambda tf, s: tf.train.piecewise_constant(tf.cast(s, tf.int32), [10, 20], [3.0, 2.0, 1.0]) + s * 0,
        (np.float32(10),),
    ),
    # control flow
    "cond": (lambda tf, a, b: tf.cond(tf.reduce_sum(a) > 0, lambda: a * b, lambda: a - b), (A, B)),
    "while_counted": (
        lambda tf, a: tf.while_loop(lambda i, _: i < 3, lambda i, v: (i + 1, tf.sin(v * 2)), [0, a])[1],
        (A,),
    ),
    "while_by_value": (
        lambda tf, a: tf.while_loop(lambda v: tf.reduce_sum(v * v) < 500.0, lambda v: [v * 1.3 + tf.sin(a)], [a]),
        (A,),
    ),
}  # fmt: skip


NEEDS_A_GRAPH = frozenset(
    """clip_by_global_norm embedding_lookup embedding_parts losses_weighted losses_huber losses_absolute losses_log
    losses_hinge losses_softmax_smoothed losses_sparse cond while_counted while_by_value""".split()
)
"""Entries of functions that record more than one operation of the table."""
IN_A_GRAPH = NEEDS_A_GRAPH | frozenset(
    """add_broadcast int_truediv maximum_ties stop_gradient add_n rounding comparisons select matmul_transposed
    reduce_all_ways reduce_max_ties argmax reshape_by_shape slices slice_newaxis split_sizes stack_unstack pad gather
    one_hot range_fill top_k moments_normalization conv2d_same sparse_cross_entropy softmax_cross_entropy
    exponential_decay""".split()
)
"""Entries that are recorded, too: those, and one for each way in which arguments and results are treated."""


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda tf: tf.train.GradientDescentOptimizer(0.1),
    "momentum": lambda tf: tf.train.MomentumOptimizer(0.1, 0.9),
    "nesterov": lambda tf: tf.train.MomentumOptimizer(0.1, 0.9, use_nesterov=True),
    "adam": lambda tf: tf.train.AdamOptimizer(0.1, beta1=0.8, beta2=0.95, epsilon=0.01),
    "adagrad": lambda tf: tf.train.AdagradOptimizer(0.1),
    "adadelta": lambda tf: tf.train.AdadeltaOptimizer(1.0, rho=0.9, epsilon=1e-3),
    "rmsprop": lambda tf: tf.train.RMSPropOptimizer(0.1, decay=0.8, momentum=0.5, epsilon=0.1),
    "rmsprop_centered": lambda tf: tf.train.RMSPropOptimizer(0.1, decay=0.8, epsilon=0.1, centered=True),
    "ftrl": lambda tf: tf.train.FtrlOptimizer(0.3, l1_regularization_strength=0.1, l2_regularization_strength=0.1),
    "ftrl_shrinkage": lambda tf: tf.train.FtrlOptimizer(
        0.3, learning_rate_power=-0.7, l2_shrinkage_regularization_strength=0.2
    ),
}
STEPS = 4


def compute_optimizers(tf: Any) -> dict[str, Any]:
    """A dense variable, and one of which rows are looked up (one of them twice, some never), after some steps."""
    results: dict[str, Any] = {}
    for name, make in OPTIMIZERS.items():
        with tf.Graph().as_default(), tf.Session() as session:
            dense = tf.Variable(tf.constant(MATRIX), name="dense")
            table = tf.Variable(tf.constant(A), name="table")
            ids = tf.placeholder(tf.int32, [None])
            rows = tf.nn.embedding_lookup(table, ids)
            loss = tf.reduce_sum(tf.square(tf.matmul(rows, dense) - 1.0)) / 4.0
            step = make(tf).minimize(loss)
            session.run(tf.global_variables_initializer())
            for i in range(STEPS):
                session.run(step, {ids: [0, 2, 0] if i % 2 else [2]})
            # In TensorFlow's order of names, each slot by its own.
            values = session.run({v.op.name: v for v in tf.global_variables()})
            results.update({f"optimizer/{name}/{key.replace('/', '.')}": value for key, value in values.items()})
    return results


def compute(tf: Any, names: Iterable[str] = TABLE) -> dict[str, Any]:
    """The values of entries, and as `NAME/grad0` the derivatives of their sums of squares by their inputs; and what
    optimizers do.
    """
    results: dict[str, Any] = {}
    for name in names:
        function, inputs = TABLE[name]
        with tf.Graph().as_default(), tf.Session() as session:
            given = [tf.constant(value) for value in inputs]
            output = function(tf, *given)
            fetches = {name: output}
            floats = [one for one in given if one.dtype.is_floating]
            if output.dtype.is_floating and floats:
                for i, gradient in enumerate(tf.gradients(output * output, floats)):
                    if gradient is not None:
                        fetches[f"{name}/grad{i}"] = tf.convert_to_tensor(gradient)
            results.update(session.run(fetches))
    return results | compute_optimizers(tf)
