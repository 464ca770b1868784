"""Names, messages, errors, files and flags, compared with what TensorFlow 1 does."""

from __future__ import annotations

import trainband.compat.tf1 as tf


def test_an_example_is_protobufs_bytes() -> None:
    example = tf.train.Example()
    example.features.feature["a"].int64_list.value.extend([1, -2])
    data = example.SerializeToString()
    assert data == b"\n\x16\n\x14\n\x01a\x12\x0f\x1a\r\n\x0b\x01\xfe" + b"\xff" * 8 + b"\x01"
    again = tf.train.Example.FromString(data)
    assert again == tf.train.Example(
        features=tf.train.Features(feature={"a": tf.train.Feature(int64_list=tf.train.Int64List(value=[1, -2]))})
    )
    assert again.features.feature["a"].WhichOneof("kind") == "int64_list"
    steps = tf.train.SequenceExample()
    steps.feature_lists.feature_list["b"].feature.add().bytes_list.value.append(b"x")
    assert tf.train.SequenceExample.FromString(steps.SerializeToString()) == steps
