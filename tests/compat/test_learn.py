"""`tf.contrib.learn`, and the feature columns of `tf.contrib.layers`, over `tf.estimator`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainband.compat.tf1 as tf

learn, layers = tf.contrib.learn, tf.contrib.layers
X = np.random.default_rng(0).normal(size=(60, 2))
Y = (X[:, 0] > 0).astype(np.int64)


def test_a_classifier_of_arrays_is_fitted_evaluated_and_asked(tmp_path: Path) -> None:
    columns = learn.infer_real_valued_columns_from_input(X)
    classifier = learn.LinearClassifier(feature_columns=columns, model_dir=str(tmp_path), optimizer=_fast())
    monitor = learn.monitors.ValidationMonitor(X, Y, every_n_steps=5, eval_steps=1)
    assert classifier.fit(x=X, y=Y, steps=20, batch_size=30, monitors=[monitor]) is classifier
    metric = learn.MetricSpec(tf.contrib.metrics.streaming_accuracy, "classes")
    found = classifier.evaluate(x=X, y=Y, steps=1, metrics={"mine": metric, ("again", "classes"): tf.metrics.accuracy})
    assert found["accuracy"] == found["mine"] == found["again"] > 0.9
    assert np.mean(np.array(list(classifier.predict(X))) == Y) > 0.9
    probabilities = classifier.predict_proba(X, as_iterable=False)
    assert probabilities.shape == (60, 2)
    assert learn.SKCompat(classifier).predict(X[:4])["classes"].tolist() == Y[:4].tolist()


def test_a_model_function_returns_its_parts_or_model_fn_ops(tmp_path: Path) -> None:
    def model_fn(features: Any, targets: Any, mode: str, params: Any) -> Any:
        predictions = layers.fully_connected(features, 1, activation_fn=None)[:, 0]
        if mode == learn.ModeKeys.INFER:
            return learn.ModelFnOps(mode, predictions={"value": predictions})
        loss = tf.losses.mean_squared_error(targets, predictions)
        train = layers.optimize_loss(loss, tf.train.get_global_step(), params["rate"], "SGD")
        return predictions, loss, train

    estimator = learn.Estimator(model_fn, str(tmp_path), params={"rate": 0.5})
    targets = (X @ [1.0, -2.0] + 3.0).astype(np.float32)
    estimator.fit(X, targets, steps=50)
    assert estimator.evaluate(X, targets, steps=1)["loss"] < 1e-3
    np.testing.assert_allclose(estimator.predict(X, as_iterable=False)["value"], targets, atol=0.1)


def test_an_experiment_does_what_a_schedule_or_the_cluster_says(tmp_path: Path) -> None:
    def input_fn() -> Any:
        return {"x": tf.constant(X, tf.float32)}, tf.constant(Y)

    def experiment_fn(run_config: Any, hparams: Any) -> Any:
        columns = [layers.real_valued_column("x", dimension=2)]
        classifier = learn.LinearClassifier(columns, config=run_config, optimizer=_fast())
        return learn.Experiment(classifier, input_fn, input_fn, train_steps=hparams.steps, eval_steps=1)

    config = learn.RunConfig(model_dir=str(tmp_path))
    given = {"run_config": config, "hparams": tf.contrib.training.HParams(steps=8)}
    metrics, _ = learn.learn_runner.run(experiment_fn, **given)
    assert metrics["global_step"] == 8
    assert learn.learn_runner.run(experiment_fn, schedule="evaluate", **given)["global_step"] == 8
    with pytest.raises(ValueError, match="non-existent task"):
        learn.learn_runner.run(experiment_fn, schedule="nothing", **given)


def test_columns_by_their_first_names() -> None:
    color = layers.sparse_column_with_keys("color", ["red", "green"])
    word = layers.sparse_column_with_hash_bucket("word", 5)
    size = layers.real_valued_column("size")
    columns = [
        layers.one_hot_column(color),
        layers.embedding_column(word, 3, initializer=tf.ones_initializer()),
        layers.bucketized_column(size, [1.0, 2.0]),
        layers.one_hot_column(layers.crossed_column([color, word], 4)),
    ]
    features = {"color": tf.constant(["green"]), "word": tf.constant(["a"]), "size": tf.constant([[1.5]])}
    whole = layers.input_from_feature_columns(features, columns)
    total, variables, bias = layers.weighted_sum_from_feature_columns(features, [color, size], 2)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        row = session.run(whole)[0]
        assert row[:2].tolist() == [0.0, 1.0]  # by name: color_X_word_indicator comes after color_indicator
        assert row.sum() == 1.0 + 1.0 + 1.0 + 3.0
        assert session.run(total).tolist() == [[0.0, 0.0]]
    assert set(variables) == {color, size}
    assert bias.shape.as_list() == [2]
    assert sorted(layers.create_feature_spec_for_parsing(columns)) == ["color", "size", "word"]


def _fast() -> Any:
    return tf.train.GradientDescentOptimizer(0.1)
