"""`train_and_evaluate` as the tasks of a job."""

from __future__ import annotations

import re
from pathlib import Path

from tests.programs import Programs

SCRIPT = """
import sys
import numpy as np
import tensorflow as tf

x = np.random.RandomState(0).normal(size=(120, 2)).astype(np.float32)
colours = np.array(["red", "blue"] * 60)
labels = (x[:, 0] + (colours == "red") > 0.5).astype(np.int64)


def inputs(epochs):
    features = {"x": x, "colour": colours}
    return tf.estimator.inputs.numpy_input_fn(features, labels, 20, epochs, shuffle=epochs is None)


numbers = tf.feature_column.numeric_column("x", shape=2)
colour = tf.feature_column.categorical_column_with_vocabulary_list("colour", ["red", "blue"])
config = tf.estimator.RunConfig(sys.argv[1], tf_random_seed=1, save_checkpoints_steps=50)
model = tf.estimator.DNNLinearCombinedClassifier(
    linear_feature_columns=[numbers, colour],
    dnn_feature_columns=[numbers, tf.feature_column.embedding_column(colour, 2)],
    dnn_hidden_units=[4],
    config=config,
)
train = tf.estimator.TrainSpec(inputs(None), max_steps=100)
found = tf.estimator.train_and_evaluate(model, train, tf.estimator.EvalSpec(inputs(1), start_delay_secs=0))
if config.is_chief:
    metrics, _ = found
    assert metrics["accuracy"] > 0.8, metrics
    right = sum(one["class_ids"][0] == label for one, label in zip(model.predict(inputs(1)), labels))
    print("right", right, "of", len(labels), "at step", metrics["global_step"])
print("the end of", config.task_type, config.task_id)
"""


def test_train_and_evaluate_on_parameter_servers(programs: Programs, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    arguments = ("run", "--tensorflow", "--ps", "1", "--workers", "2", str(script), "--", str(tmp_path / "model"))
    output = programs.trainband(*arguments).succeed()
    found = re.search(r"^\[worker:0\] right (\d+) of 120 at step (\d+)", output, re.MULTILINE)
    assert found
    assert int(found[1]) > 96
    assert 100 <= int(found[2]) <= 102
    assert "[worker:1] the end of worker 1" in output
    assert "the end of ps" not in output
    assert list((tmp_path / "model" / "eval").glob("events*"))
