"""Names, messages, errors, files and flags, compared with what TensorFlow 1 does."""

from __future__ import annotations

import sys

import absl.flags
import pytest

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


def test_flags_are_defined_and_read_as_ever(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags, values = tf.app.flags, tf.flags.FLAGS
    flags.DEFINE_integer(flag_name="steps", default_value=3, docstring="how many")
    flags.DEFINE_string("kind", "a")
    flags.DEFINE_multi_integer("layer", [1], "sizes")
    flags.DEFINE_string("log_dir", "here", "a flag that absl has, too")
    absl.flags.DEFINE_float("shared", 0.5, "")
    monkeypatch.setattr(sys, "argv", ["prog", "-steps", "5", "--layer=2", "--layer", "3", "--other=1", "--shared=2"])
    assert (values.steps, values.kind, values.layer, values.log_dir) == (5, "a", [2, 3], "here")
    assert values.shared == absl.flags.FLAGS.shared == 2.0
    assert getattr(values, "__flags")["steps"].value == 5
    values._parse_flags()  # noqa: SLF001
    assert getattr(values, "__flags")["steps"] == 5
    values.set_default("kind", "b")
    assert values.flag_values_dict()["kind"] == "b"
    assert values(["prog", "--steps=7", "rest"]) == ["prog", "rest"]
    with pytest.raises(flags.UnrecognizedFlagError):
        values(["prog", "--nothing=1"])
    seen: list[list[str]] = []
    with pytest.raises(SystemExit):
        tf.app.run(seen.append, ["prog", "--steps=9", "--unknown=1", "x"])
    assert seen == [["prog", "--unknown=1", "x"]]
    assert "no flags --unknown=1" in capsys.readouterr().err
    assert values.steps == 9
