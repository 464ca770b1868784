"""Names, messages, errors, files and flags, compared with what TensorFlow 1 does."""

from __future__ import annotations

import json
import logging
import sys
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any

import absl.flags
import numpy as np
import pytest

import trainband.compat.tf1 as tf
from trainband.compat.tf1.modules import PRIVATE
from trainband.compat.tf1.namespace import find


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
    absl.flags.DEFINE_boolean("showprefixforinfo", True, "a flag that absl has, of a script that imports absl")
    monkeypatch.setattr(sys, "argv", ["prog", "-steps", "5", "--layer=2", "--layer", "3", "--other=1", "--shared=2"])
    assert (values.steps, values.kind, values.layer, values.log_dir) == (5, "a", [2, 3], "here")
    assert values.shared == absl.flags.FLAGS.shared == 2.0
    del absl.flags.FLAGS.shared
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


OLD_CALLS = [
    # as releases before 1.0 had it, and what it is now
    (lambda x: tf.concat(1, [x, x]), [[1, 2, 1, 2]]),
    (lambda x: tf.concat(concat_dim=1, values=[x, x]), [[1, 2, 1, 2]]),
    (lambda x: tf.split(1, 2, x)[1], [[2]]),
    (lambda x: tf.split(split_dim=1, num_split=2, value=x)[0], [[1]]),
    (lambda x: tf.reverse(x, [False, True]), [[2, 1]]),
    (lambda x: tf.reverse(x, dims=[True, False]), [[1, 2]]),
    (lambda x: tf.reverse(x, [1]), [[2, 1]]),
    (lambda x: tf.batch_matmul(x, x, adj_y=True), [[5]]),
    (lambda x: tf.reduce_sum(x, reduction_indices=[1], keep_dims=True), [[3]]),
    (lambda x: tf.expand_dims(x, dim=0)[0], [[1, 2]]),
    (lambda x: tf.squeeze(x, squeeze_dims=[0]), [1, 2]),
    (lambda x: tf.inv(x), [[1, 0.5]]),
    (lambda x: tf.atan2(x=x, y=x * 0), [[0, 0]]),
    (lambda x: tf.atan2(x * 0, x), [[0, 0]]),
    (lambda x: tf.stop_gradient(input=x), [[1, 2]]),
]


@pytest.mark.parametrize(("call", "value"), OLD_CALLS)
def test_old_orders_and_names_of_arguments_are_understood(call: Callable[[Any], Any], value: Any) -> None:
    with tf.Session() as session:
        np.testing.assert_allclose(session.run(call(tf.constant([[1.0, 2.0]]))), value)


def test_an_error_about_arguments_has_the_name_that_scripts_use() -> None:
    with pytest.raises(ValueError, match="Only call `softmax_cross_entropy_with_logits` with named arguments"):
        tf.nn.softmax_cross_entropy_with_logits(tf.zeros([1, 2]), tf.zeros([1, 2]))


def test_hyperparameters() -> None:
    settings = tf.contrib.training.HParams(rate=0.1, layers=[3, 4], name="a", fast=False, none=None)
    settings.parse("rate=1,layers=[5,6,7],name=b c,fast=true")
    assert settings.values() == {"rate": 1.0, "layers": [5, 6, 7], "name": "b c", "fast": True, "none": None}
    settings.parse("layers[1]=9").override_from_dict({"rate": 2})
    assert (settings.layers, settings.rate, settings.get("no", 3), "rate" in settings) == ([5, 9, 7], 2.0, 3, True)
    assert json.loads(settings.to_json())["name"] == "b c"
    for wrong in ("rate=x", "no=1", "layers=3", "fast=2", "rate"):
        with pytest.raises((ValueError, KeyError)):
            settings.parse(wrong)
    with pytest.raises(ValueError, match="reserved"):
        settings.add_hparam("rate", 1)


def test_a_test_case() -> None:
    class Some(tf.test.TestCase):  # type: ignore[misc]
        __test__ = False

        def test_right(self) -> None:
            with self.test_session() as session:
                self.assertAllClose(session.run(tf.ones([2])), [1.0, 1.0])
                self.assertAllEqual(tf.ones([2]).eval(), np.ones(2))
            self.assertAllClose({"a": [tf.zeros([])]}, {"a": [np.float32(0)]})
            with self.assertRaisesOpError("must feed"):
                self.evaluate(tf.placeholder(tf.float32))

        def test_wrong(self) -> None:
            self.assertAllClose(self.evaluate(tf.ones([2])), [1.0, 1.1])

    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(Some).run(result)
    assert (result.testsRun, len(result.skipped), result.errors) == (3, 1, [])
    assert [test.id().rpartition(".")[2] for test, _ in result.failures] == ["test_wrong"]


def test_tensors_and_summaries_as_messages() -> None:
    for value in (np.arange(6, dtype=np.int64).reshape(2, 3), np.float32(1.5), np.array([b"a", b"bc"], object)):
        np.testing.assert_array_equal(tf.make_ndarray(tf.make_tensor_proto(value)), value)
    assert tf.contrib.util.constant_value(tf.constant([1, 2])).tolist() == [1, 2]
    assert tf.contrib.util.constant_value(tf.placeholder(tf.float32)) is None
    text = tf.summary.text("words", tf.constant(["a", "b"]))
    sound = tf.summary.audio("sound", tf.zeros([1, 80, 2]), 8000)
    array = tf.summary.tensor_summary("array", tf.ones([3]))
    with tf.Session() as session:
        found = tf.Summary.FromString(session.run(tf.summary.merge([text, sound, array]))).value
    assert [one.tag for one in found] == ["words", "sound/audio", "array"]
    assert (list(found[0].tensor.string_val), found[0].metadata.plugin_data.plugin_name) == ([b"a", b"b"], "text")
    assert (found[1].audio.num_channels, found[1].audio.length_frames) == (2, 80)
    assert tf.make_ndarray(found[2].tensor).tolist() == [1.0, 1.0, 1.0]


def test_the_number_of_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    tf.get_variable("w", [3, 4])
    options = tf.profiler.ProfileOptionBuilder.trainable_variables_parameter()
    assert tf.profiler.profile(tf.get_default_graph(), options=options).total_parameters == 12
    assert capsys.readouterr().err == ""
    tf.profiler.profile(options=tf.profiler.ProfileOptionBuilder.float_operation())
    assert "no times here" in capsys.readouterr().err


def test_a_resource_is_beside_the_script() -> None:
    assert tf.resource_loader.get_path_to_datafile("x") == str(Path(__file__).resolve().parent / "x")
    assert tf.resource_loader.load_resource(Path(__file__).name).startswith(b'"""Names')


def test_a_table_is_read_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("2,2,a,b\n1.5,2,0\n3,4,1\n")
    data = tf.contrib.learn.datasets.base.load_csv_with_header(tmp_path / "x.csv", int, np.float32)
    assert (data.data.tolist(), data.target.tolist()) == ([[1.5, 2.0], [3.0, 4.0]], [0, 1])


def test_a_moving_average_does_not_begin_at_zero() -> None:
    variable = tf.get_variable("v", [2], initializer=tf.zeros_initializer())
    value = tf.placeholder(tf.float32, [2])
    average = find("tf.python.training.moving_averages", "assign_moving_average")
    step = average(variable, value, 0.9)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        found = [session.run(step, {value: [1.0, i]}).tolist() for i in range(3)]
    expected: Any = [[1, 0], [1, 0.5263156], [1, 1.0701103]]  # TensorFlow's own
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert [one.name for one in tf.global_variables()] == ["v:0", "v/biased:0", "v/local_step:0"]


@pytest.mark.parametrize("module", PRIVATE)
def test_every_private_name_is_there(module: str) -> None:
    for name in PRIVATE[module]:
        find(module, name)


def test_the_projectors_settings_are_written(tmp_path: Path) -> None:
    projector = tf.contrib.tensorboard.plugins.projector
    config = projector.ProjectorConfig()
    embedding = config.embeddings.add()
    embedding.tensor_name, embedding.metadata_path = "w", "labels.tsv"
    embedding.sprite.single_image_dim.extend([28, 28])
    with tf.summary.FileWriter(str(tmp_path)) as writer:
        projector.visualize_embeddings(writer, config)
    assert 'tensor_name: "w"' in (tmp_path / "projector_config.pbtxt").read_text()
