"""Datasets whose elements, specs, lengths and errors are compared with TensorFlow's.

`python tests/compat_tf2/datasets_table.py` writes `golden/datasets.json` where TensorFlow 2.21 is installed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

GOLDEN = Path(__file__).parent / "golden" / "datasets.json"


def _three(tf: Any) -> Any:
    return tf.data.Dataset.from_tensor_slices({"x": np.arange(6, dtype=np.float32).reshape(3, 2), "y": [1, 2, 3]})


def _ragged(tf: Any) -> Any:
    return tf.data.Dataset.range(1, 6).map(lambda n: tf.fill([tf.cast(n, tf.int32)], n))


def _lengths(tf: Any) -> Any:
    lengths = [1, 4, 3, 5, 6, 2]
    return tf.data.Dataset.from_generator(
        lambda: (np.arange(one) for one in lengths), output_signature=tf.TensorSpec([None], tf.int64)
    )


def _by_variable(tf: Any) -> Any:
    two = tf.Variable(2, dtype=tf.int64)
    return tf.data.Dataset.range(3).map(lambda x: x * two)


def _even(tf: Any, x: Any) -> Any:
    return tf.equal(x % 2, 0)


Case = Callable[[Any], Any]

CASES: dict[str, Case] = {
    "range": lambda tf: tf.data.Dataset.range(5),
    "range step": lambda tf: tf.data.Dataset.range(10, 0, -3),
    "range of int32": lambda tf: tf.data.Dataset.range(3, output_type=tf.int32),
    "slices of a dictionary": _three,
    "slices of a pair": lambda tf: tf.data.Dataset.from_tensor_slices(([1, 2], [3.5, 4.5])),
    "slices of nested": lambda tf: tf.data.Dataset.from_tensor_slices(({"a": [1, 2]}, ([3, 4], [b"x", b"y"]))),
    "slices of text": lambda tf: tf.data.Dataset.from_tensor_slices(["a", "bc"]),
    "slices of lists": lambda tf: tf.data.Dataset.from_tensor_slices([[1, 2], [3, 4]]),
    "slices that differ": lambda tf: tf.data.Dataset.from_tensor_slices(([1, 2], [3])),
    "slices of a scalar": lambda tf: tf.data.Dataset.from_tensor_slices(3),
    "tensors": lambda tf: tf.data.Dataset.from_tensors(([1, 2], "a")),
    "tensors of a list of pairs": lambda tf: tf.data.Dataset.from_tensors([(1, 2), (3, 4)]),
    "batch": lambda tf: tf.data.Dataset.range(10).batch(4),
    "batch that drops": lambda tf: tf.data.Dataset.range(10).batch(4, drop_remainder=True),
    "batch of dictionaries": lambda tf: _three(tf).batch(2),
    "batch of batches": lambda tf: tf.data.Dataset.range(10).batch(2).batch(2),
    "batch of unlike": lambda tf: _ragged(tf).batch(2),
    "batch of none": lambda tf: tf.data.Dataset.range(3).batch(0),
    "padded": lambda tf: _ragged(tf).padded_batch(2),
    "padded to": lambda tf: _ragged(tf).padded_batch(2, padded_shapes=[6], padding_values=np.int64(-1)),
    "padded too little": lambda tf: _ragged(tf).padded_batch(2, padded_shapes=[2]),
    "padded pair": lambda tf: tf.data.Dataset.zip((_ragged(tf), tf.data.Dataset.range(5))).padded_batch(
        3, padded_shapes=([None], []), drop_remainder=True
    ),
    "unbatch": lambda tf: tf.data.Dataset.range(5).batch(2).unbatch(),
    "rebatch": lambda tf: tf.data.Dataset.range(8).batch(4).rebatch(3),
    "rebatch in turn": lambda tf: tf.data.Dataset.range(8).batch(4).rebatch([1, 2]),
    "map": lambda tf: tf.data.Dataset.range(4).map(lambda x: x * x),
    "map of pair": lambda tf: tf.data.Dataset.from_tensor_slices(([1, 2], [3, 4])).map(lambda a, b: (a + b, b)),
    "map to dictionary": lambda tf: tf.data.Dataset.range(3).map(lambda x: {"b": x, "a": tf.cast(x, tf.float32) / 2}),
    "map of dictionary": lambda tf: _three(tf).map(lambda one: (one["x"] / 2, one["y"])),
    "map of batches": lambda tf: _three(tf).batch(2).map(lambda one: tf.reduce_sum(one["x"], axis=1)),
    "map to list": lambda tf: tf.data.Dataset.range(2).map(lambda x: [x, x + 1]),
    "map to constant": lambda tf: tf.data.Dataset.range(2).map(lambda x: (x, 7, "t")),
    "map by numpy": lambda tf: tf.data.Dataset.range(3).map(
        lambda x: tf.numpy_function(lambda a: a * 2, [x], tf.int64)
    ),
    "map one hot": lambda tf: tf.data.Dataset.range(3).map(lambda x: tf.one_hot(x, 3)),
    "map of variable": _by_variable,
    "filter": lambda tf: tf.data.Dataset.range(8).filter(lambda x: _even(tf, x)),
    "filter of pairs": lambda tf: tf.data.Dataset.range(8).enumerate(5).filter(lambda i, _: _even(tf, i)),
    "flat_map": lambda tf: tf.data.Dataset.range(1, 4).flat_map(lambda x: tf.data.Dataset.range(x)),
    "flat_map of slices": lambda tf: tf.data.Dataset.from_tensor_slices([[1, 2], [3, 4]]).flat_map(
        tf.data.Dataset.from_tensor_slices
    ),
    "interleave": lambda tf: tf.data.Dataset.range(1, 6).interleave(
        lambda x: tf.data.Dataset.from_tensors(x).repeat(6), cycle_length=2, block_length=4
    ),
    "interleave of three": lambda tf: tf.data.Dataset.range(5).interleave(
        lambda x: tf.data.Dataset.range(x * 10, x * 10 + x), cycle_length=3
    ),
    "zip": lambda tf: tf.data.Dataset.zip((tf.data.Dataset.range(3), tf.data.Dataset.range(10, 14))),
    "zip of two": lambda tf: tf.data.Dataset.zip(tf.data.Dataset.range(3).batch(2), tf.data.Dataset.range(2)),
    "zip of dictionary": lambda tf: tf.data.Dataset.zip({"a": tf.data.Dataset.range(2), "b": tf.data.Dataset.range(2)}),
    "zip of list": lambda tf: tf.data.Dataset.zip([tf.data.Dataset.range(2)]),
    "concatenate": lambda tf: tf.data.Dataset.range(2).concatenate(tf.data.Dataset.range(8, 10)),
    "take": lambda tf: tf.data.Dataset.range(5).take(2),
    "take all": lambda tf: tf.data.Dataset.range(5).take(-1),
    "skip": lambda tf: tf.data.Dataset.range(5).skip(3),
    "skip all": lambda tf: tf.data.Dataset.range(5).skip(-1),
    "shard": lambda tf: tf.data.Dataset.range(10).shard(3, 1),
    "shard too far": lambda tf: tf.data.Dataset.range(10).shard(3, 3),
    "repeat": lambda tf: tf.data.Dataset.range(3).repeat(2),
    "repeat and batch": lambda tf: tf.data.Dataset.range(3).repeat(2).batch(2),
    "endless": lambda tf: tf.data.Dataset.range(3).repeat().batch(2).take(4),
    "enumerate": lambda tf: tf.data.Dataset.range(5, 8).enumerate(2),
    "window": lambda tf: tf.data.Dataset.range(7).window(3).flat_map(lambda one: one.batch(3)),
    "window with shift": lambda tf: (
        tf.data.Dataset.range(7).window(3, shift=1, drop_remainder=True).flat_map(lambda one: one.batch(3))
    ),
    "window with stride": lambda tf: tf.data.Dataset.range(9).window(2, 2, 3, True).flat_map(lambda one: one.batch(2)),
    "window of pairs": lambda tf: (
        tf.data.Dataset.range(4)
        .enumerate()
        .window(2)
        .flat_map(lambda a, b: tf.data.Dataset.zip((a.batch(2), b.batch(2))))
    ),
    "scan": lambda tf: tf.data.Dataset.range(5).scan(np.int64(0), lambda state, x: (state + x, state + x)),
    "take_while": lambda tf: tf.data.Dataset.range(10).take_while(lambda x: x < 4),
    "unique": lambda tf: tf.data.Dataset.from_tensor_slices([1, 37, 2, 37, 2, 1]).unique(),
    "group_by_window": lambda tf: tf.data.Dataset.range(10).group_by_window(
        lambda x: x % 2, lambda _, one: one.batch(3), window_size=3
    ),
    "buckets": lambda tf: _lengths(tf).bucket_by_sequence_length(lambda one: tf.shape(one)[0], [3, 5], [2, 2, 2]),
    "choose": lambda tf: tf.data.Dataset.choose_from_datasets(
        [tf.data.Dataset.range(3), tf.data.Dataset.range(10, 12)],
        tf.data.Dataset.from_tensor_slices(np.array([0, 1, 1, 0, 1, 0])),
    ),
    "cache": lambda tf: tf.data.Dataset.range(3).cache().repeat(2),
    "prefetch": lambda tf: tf.data.Dataset.range(4).map(lambda x: x + 1).prefetch(tf.data.AUTOTUNE),
    "generator": lambda tf: tf.data.Dataset.from_generator(lambda: iter([1, 2, 3]), output_types=tf.int32),
    "generator of pairs": lambda tf: tf.data.Dataset.from_generator(
        lambda: iter([([1.0, 2.0], 3)]),
        output_signature=(tf.TensorSpec([2], tf.float32), tf.TensorSpec([], tf.int32)),
    ),
    "generator of others": lambda tf: tf.data.Dataset.from_generator(
        lambda: iter([[1, 2], [1]]), output_signature=tf.TensorSpec([2], tf.int32)
    ),
    "generator with arguments": lambda tf: tf.data.Dataset.from_generator(
        lambda n: iter(range(n)), output_signature=tf.TensorSpec([], tf.int32), args=[3]
    ),
    "assert_cardinality": lambda tf: (
        tf.data.Dataset.range(9).filter(lambda x: x < 5).apply(tf.data.experimental.assert_cardinality(5))
    ),
    "assert_cardinality too many": lambda tf: (
        tf.data.Dataset.range(9).filter(lambda x: x < 5).apply(tf.data.experimental.assert_cardinality(6))
    ),
    "text to lengths": lambda tf: tf.data.Dataset.from_tensor_slices(["a", "bcd"]).map(tf.strings.length),
    "text in parts": lambda tf: tf.data.Dataset.from_tensor_slices(["1,2", "3,4"]).map(
        lambda line: tf.strings.to_number(tf.strings.split(line, ","))
    ),
    "counter": lambda tf: tf.data.Dataset.counter(5, 2).take(3),
    "sparse": lambda tf: tf.data.Dataset.from_tensor_slices(tf.sparse.from_dense([[0, 1], [2, 0]])).map(
        tf.sparse.to_dense
    ),
}
"""What makes a dataset with either `tf`."""


def outcome(tf: Any, case: Case) -> dict[str, Any]:
    """The elements of a dataset, their spec and their number; or the class of the error."""
    try:
        dataset = case(tf)
        found: dict[str, Any] = {"elements": [_plain(one) for one in dataset.as_numpy_iterator()]}
    except Exception as exc:
        return {"error": type(exc).__name__}
    found["spec"] = str(dataset.element_spec)
    found["count"] = int(dataset.cardinality())
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(value[key]) for key in sorted(value)}
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    if isinstance(value, bytes):
        return value.decode()
    array = np.asarray(value)
    return [
        str(array.dtype),
        [_plain(one) if isinstance(one, bytes) else one for one in array.ravel().tolist()],
        list(array.shape),
    ]


def main() -> None:
    """Writes what TensorFlow gives."""
    import tensorflow as tf

    found = {name: outcome(tf, case) for name, case in CASES.items()}
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text(
        "{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(one)}" for name, one in found.items()) + "\n}\n"
    )


if __name__ == "__main__":
    main()
