"""Names, messages, errors, files and flags, compared with what TensorFlow 1 does."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

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


FILE_ERRORS = [
    (lambda home: tf.gfile.GFile(home / "no").read(), tf.errors.NotFoundError),
    (lambda home: tf.gfile.GFile(home / "x").write("y"), tf.errors.PermissionDeniedError),
    (lambda home: tf.gfile.ListDirectory(home / "x"), tf.errors.NotFoundError),
    (lambda home: tf.gfile.Remove(home / "s"), tf.errors.FailedPreconditionError),
    (lambda home: tf.gfile.Copy(home / "x", home / "s"), tf.errors.AlreadyExistsError),
    (lambda home: tf.gfile.Stat(home / "no"), tf.errors.NotFoundError),
    (lambda home: tf.gfile.MkDir(home / "q" / "r"), tf.errors.NotFoundError),
    (lambda _: tf.gfile.Exists("gs://bucket/x"), tf.errors.UnimplementedError),
    (lambda home: tf.gfile.GFile(home / "x", "q"), tf.errors.InvalidArgumentError),
]


@pytest.mark.parametrize(("action", "error"), FILE_ERRORS)
def test_files_raise_the_errors_of_tensorflow(
    action: Callable[[Path], Any], error: type[Exception], tmp_path: Path
) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "x").write_text("a\nb\n")
    with pytest.raises(error):
        action(tmp_path)


def test_files_are_read_and_written(tmp_path: Path) -> None:
    tf.io.gfile.makedirs(str(tmp_path / "s" / "t"))
    with tf.gfile.FastGFile(str(tmp_path / "x"), "wb") as file:
        file.write("text\n")
        file.write(b"more\n")
    file = tf.gfile.GFile(str(tmp_path / "x"))
    assert (file.read(2), list(file), file.size()) == ("te", ["xt\n", "more\n"], 10)
    home = str(tmp_path)
    assert next(iter(tf.gfile.Walk(home))) == (home, ["s"], ["x"])
    assert [one[1] for one in tf.io.gfile.walk(top=home, topdown=False)] == [[], ["t"], ["s"]]
    assert tf.io.gfile.glob(pattern=[f"{home}/x*", f"{home}/s"]) == [f"{home}/x", f"{home}/s"]
    assert (tf.gfile.Stat(f"{home}/x").length, tf.gfile.Stat(home).is_directory) == (10, True)


def test_an_error_is_found_by_its_code() -> None:
    for code in range(1, 17):
        kind = tf.errors.exception_type_from_error_code(code)
        assert tf.errors.error_code_from_exception_type(kind) == code
        assert getattr(tf.errors, kind.__name__) is kind
    assert tf.errors.exception_type_from_error_code(tf.errors.OUT_OF_RANGE) is tf.errors.OutOfRangeError


def test_logging_is_pythons(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    tf.logging.set_verbosity("INFO")
    tf.logging.info("a %(b)s", {"b": 1})
    logging.getLogger("tensorflow").error("c")
    assert capsys.readouterr().err.splitlines() == ["INFO:tensorflow:a 1", "ERROR:tensorflow:c"]
    assert caplog.messages == ["a 1", "c"]
    assert tf.logging.get_verbosity() == tf.logging.INFO
