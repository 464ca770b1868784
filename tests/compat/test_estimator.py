"""`tf.estimator`: training, evaluation and predictions of one model, and the models that come with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainband.compat.tf1 as tf

RANDOM = np.random.RandomState(0)
X = RANDOM.normal(size=(60, 3)).astype(np.float32)
Y = (X @ np.array([1.0, 2.0, 3.0])).astype(np.float32)
NAMES = np.array([f"row {i}" for i in range(60)])
TRAIN, EVAL, PREDICT = tf.estimator.ModeKeys.TRAIN, tf.estimator.ModeKeys.EVAL, tf.estimator.ModeKeys.PREDICT


def inputs(epochs: int | None = 1, labels: bool = True, shuffle: bool = False) -> Any:
    features = {"x": X, "name": NAMES}
    return tf.estimator.inputs.numpy_input_fn(features, Y if labels else None, 16, epochs, shuffle)


def line(features: Any, labels: Any, mode: str, params: Any) -> Any:
    weights = tf.get_variable("w", [3, 1], initializer=tf.zeros_initializer())
    predictions = tf.squeeze(tf.matmul(features["x"], weights), 1)
    if mode == PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions={"value": predictions, "name": features["name"]})
    loss = tf.reduce_mean(tf.square(predictions - labels))
    train = tf.train.AdamOptimizer(params["rate"]).minimize(loss, tf.train.get_global_step())
    metrics = {"error": tf.metrics.mean_absolute_error(labels, predictions)}
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train, eval_metric_ops=metrics)


def served() -> Any:
    features = {"x": tf.placeholder(tf.float32, [None, 3]), "name": tf.placeholder(tf.string, [None])}
    return tf.estimator.export.ServingInputReceiver(features, features)


def estimator(directory: Path, **settings: Any) -> Any:
    config = tf.estimator.RunConfig(tf_random_seed=1, **settings)
    return tf.estimator.Estimator(line, str(directory), config, {"rate": 0.1})


def test_a_model_is_trained_evaluated_and_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tf.logging.set_verbosity(tf.logging.INFO)
    model = estimator(tmp_path)
    assert model.train(inputs(None, shuffle=True), steps=150) is model
    model.train(inputs(None), max_steps=150)
    logged = capsys.readouterr().err
    assert "step = 101" in logged
    assert "Skipping training since max_steps has already saved." in logged
    assert model.latest_checkpoint() == str(tmp_path / "model.ckpt-150")
    assert {"w", "w/Adam", "global_step"} <= set(model.get_variable_names())
    np.testing.assert_allclose(model.get_variable_value("w").ravel(), [1.0, 2.0, 3.0], atol=0.02)

    found = model.evaluate(inputs())
    assert found.keys() == {"error", "loss", "global_step"}
    assert found["global_step"] == 150
    assert found["error"] < 0.05
    assert model.evaluate(inputs(), steps=1, name="some", checkpoint_path=str(tmp_path / "model.ckpt-0"))["error"] > 1
    assert all(list((tmp_path / name).glob("events*")) for name in ("eval", "eval_some"))

    examples = list(model.predict(inputs(labels=False)))
    assert [one["name"] for one in examples] == [text.encode() for text in NAMES]
    np.testing.assert_allclose([one["value"] for one in examples], Y, atol=0.1)
    (batch, *_) = model.predict(inputs(labels=False), predict_keys="value", yield_single_examples=False)
    assert {name: value.shape for name, value in batch.items()} == {"value": (16,)}


def test_checkpoints_are_evaluated_while_it_trains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = estimator(tmp_path, save_checkpoints_steps=4, keep_checkpoint_max=2)
    seen: list[int] = []

    class Seen(tf.train.CheckpointSaverListener):  # type: ignore[misc]
        def after_save(self, session: Any, global_step_value: int) -> None:  # noqa: ARG002
            seen.append(global_step_value)

    exporters = [
        tf.estimator.LatestExporter("latest", served, exports_to_keep=2),
        tf.estimator.FinalExporter("final", served),
        tf.estimator.BestExporter("best", served, compare_fn=lambda best, new: False),  # noqa: ARG005
    ]
    metrics, exported = tf.estimator.train_and_evaluate(
        model,
        tf.estimator.TrainSpec(inputs(None), max_steps=10, saving_listeners=[Seen()]),
        tf.estimator.EvalSpec(inputs(), throttle_secs=0, exporters=exporters),
    )
    assert metrics["global_step"] == 10
    assert seen == [0, 4, 8, 10]
    assert "which TensorFlow and TensorFlow Serving cannot" in capsys.readouterr().err
    folders = {one.name: list((tmp_path / "export" / one.name).glob("*")) for one in exporters}
    assert {name: len(there) for name, there in folders.items()} == {"latest": 2, "final": 1, "best": 1}
    assert exported[1:] == [str(folders["final"][0]).encode(), None]
    with tf.Graph().as_default(), tf.Session() as session:
        stored = tf.saved_model.loader.load(session, [tf.saved_model.tag_constants.SERVING], exported[1])
        value = stored.signature_def["serving_default"].outputs["value"]
        assert [one.size for one in value.tensor_shape.dim] == [-1]
        np.testing.assert_array_equal(session.run("w:0"), model.get_variable_value("w"))
    assert sorted(path.stem for path in tmp_path.glob("model.ckpt-*.safetensors")) == ["model.ckpt-10", "model.ckpt-8"]
    other = tf.estimator.Estimator(line, str(tmp_path / "other"), params={"rate": 0.1}, warm_start_from=str(tmp_path))
    assert other.evaluate(inputs())["error"] == metrics["error"]


def test_the_model_function_gets_what_it_names_and_the_training_ends_with_the_inputs(tmp_path: Path) -> None:
    steps: list[int] = []

    class Steps(tf.train.SessionRunHook):  # type: ignore[misc]
        def begin(self) -> None:
            self.step = tf.train.get_global_step()

        def before_run(self, _: Any) -> Any:
            return tf.train.SessionRunArgs(self.step)

        def after_run(self, _: Any, values: Any) -> None:
            steps.append(int(values.results))

    def constant(features: Any, labels: Any, mode: str) -> Any:
        mean = tf.get_variable("mean", [])
        loss = tf.reduce_mean(tf.square(labels - mean)) + 0.0 * tf.reduce_sum(features)
        train = tf.train.GradientDescentOptimizer(0.1).minimize(loss, tf.train.get_global_step())
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train, training_hooks=[Steps()])

    model = tf.estimator.Estimator(constant, str(tmp_path))
    model.train(tf.estimator.inputs.numpy_input_fn(X, Y, 25, 2, shuffle=True))
    assert steps == [1, 2, 3, 4, 5]  # 120 rows
    model.train(lambda: (tf.constant(X), tf.constant(Y)), steps=2)
    assert steps[-1] == 7
    model.train(lambda: tf.data.Dataset.from_tensor_slices((X, Y)).batch(20))
    assert steps[-3:] == [8, 9, 10]

    def queued() -> Any:
        row = tf.train.slice_input_producer([tf.constant(X), tf.constant(Y)], num_epochs=1)
        return tf.train.batch(row, 30)

    model.train(queued)
    assert steps[-2:] == [11, 12]


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    model = estimator(tmp_path)
    with pytest.raises(ValueError, match="Can not provide both steps and max_steps"):
        model.train(inputs(), steps=1, max_steps=1)
    with pytest.raises(ValueError, match="shuffle must be provided"):
        tf.estimator.inputs.numpy_input_fn(X, Y)
    with pytest.raises(ValueError, match="mismatched"):
        tf.estimator.inputs.numpy_input_fn({"x": X}, Y[1:], shuffle=False)
    with pytest.raises(ValueError, match="not expected args: \\['other'\\]"):
        tf.estimator.Estimator(lambda features, other: (features, other))
    with pytest.raises(ValueError, match="must include features"):
        tf.estimator.Estimator(lambda labels: labels)
    with pytest.raises(ValueError, match="Missing train_op"):
        tf.estimator.EstimatorSpec(TRAIN, loss=tf.constant(1.0))
    with pytest.raises(ValueError, match="Could not find trained model"):
        model.get_variable_names()
    with pytest.raises(ValueError, match="Could not find trained model"):
        model.export_savedmodel("somewhere", None)


def test_a_loss_that_is_no_number_ends_the_training(tmp_path: Path) -> None:
    def broken(features: Any, labels: Any, mode: str) -> Any:  # noqa: ARG001
        w = tf.get_variable("w", [], initializer=tf.ones_initializer())
        loss = tf.log(-w)
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=tf.assign_add(tf.train.get_global_step(), 1))

    with pytest.raises(tf.train.NanLossDuringTrainingError):
        tf.estimator.Estimator(broken, str(tmp_path)).train(inputs(), steps=1)


TASKS = [
    # cluster, task, is_chief, master, ps, workers
    ({}, {}, True, "", 0, 1),
    ({"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:1"]}, ("chief", 0), True, "grpc://a:1", 1, 2),
    ({"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:1"]}, ("worker", 0), False, "grpc://b:1", 1, 2),
    ({"master": ["a:1"], "ps": ["c:1", "d:1"]}, ("ps", 1), False, "grpc://d:1", 2, 1),
    ({"worker": ["a:1", "b:1"], "ps": ["c:1"]}, ("worker", 0), True, "grpc://a:1", 1, 2),
    ({"worker": ["a:1", "b:1"], "ps": ["c:1"]}, ("evaluator", 0), False, "", 1, 2),
]


@pytest.mark.parametrize(("cluster", "task", "is_chief", "master", "ps", "workers"), TASKS)
def test_a_configuration_follows_from_the_environment(
    cluster: Any, task: Any, is_chief: bool, master: str, ps: int, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"cluster": cluster} | ({"task": {"type": task[0], "index": task[1]}} if task else {})
    monkeypatch.setenv("TF_CONFIG", json.dumps(given))
    config = tf.estimator.RunConfig(save_checkpoints_steps=5)
    assert (config.is_chief, config.master) == (is_chief, master)
    assert (config.num_ps_replicas, config.num_worker_replicas) == (ps, workers)
    changed = config.replace(save_checkpoints_secs=7, model_dir="there")
    assert (changed.save_checkpoints_steps, changed.save_checkpoints_secs, changed.model_dir) == (None, 7, "there")


# --- the models that come with it

COLOURS = np.array(["red", "blue", "green", "red", "none", "blue"] * 10)
CLASSES = ((X[:, 0] > 0).astype(np.int64) + (COLOURS == "red")).astype(np.int64)


def quiet() -> Any:
    """Neither summaries nor the loss are fetched, which are other runs to compile."""
    return tf.estimator.RunConfig(tf_random_seed=3, save_summary_steps=0, log_step_count_steps=None)


def columns() -> tuple[list[Any], list[Any]]:
    column = tf.feature_column
    colour = column.categorical_column_with_vocabulary_list("colour", ["red", "green", "blue"])
    x = column.numeric_column("x", shape=3)
    bucketized = column.bucketized_column(column.numeric_column("first"), [-0.5, 0.5])
    return [x, colour, column.crossed_column([bucketized, "colour"], 30)], [x, column.embedding_column(colour, 2)]


def canned_inputs(labels: Any, epochs: int | None = 1) -> Any:
    features = {"x": X, "first": X[:, :1], "colour": COLOURS, "weight": np.linspace(0.5, 1.5, 60)}
    return tf.estimator.inputs.numpy_input_fn(features, labels, 20, epochs, shuffle=False)


@pytest.mark.parametrize(
    ("name", "settings", "labels", "wanted"),
    [
        (
            "LinearClassifier",
            {},
            CLASSES > 0,
            {
                "accuracy": 0.933333, "accuracy_baseline": 0.733333, "average_loss": 0.19575, "label/mean": 0.733333,
                "loss": 3.915, "precision": 0.934783, "prediction/mean": 0.717031, "recall": 0.977273,
            },
        ),
        (
            "LinearRegressor",
            {"weight_column": "weight"},
            Y,
            {"average_loss": 1.96258, "label/mean": 0.090139, "loss": 39.2516, "prediction/mean": 0.0781851},
        ),
        (
            "BaselineClassifier",
            {"n_classes": 3},
            CLASSES,
            {"accuracy": 0.533333, "average_loss": 1.00964, "loss": 20.1928},
        ),
    ],
)  # fmt: skip
def test_what_has_no_random_numbers_gives_what_tensorflow_gives(
    name: str, settings: dict[str, Any], labels: Any, wanted: dict[str, float], tmp_path: Path
) -> None:
    given = {} if "Baseline" in name else {"feature_columns": columns()[0]}
    labels = labels.astype(np.int64) if labels.dtype == bool else labels
    model = getattr(tf.estimator, name)(model_dir=str(tmp_path), config=quiet(), **given, **settings)
    model.train(canned_inputs(labels, None), steps=30)
    found = model.evaluate(canned_inputs(labels))
    assert found["global_step"] == 30
    assert {key: found[key] for key in wanted} == pytest.approx(wanted, rel=2e-5)


@pytest.mark.parametrize(
    ("name", "settings", "labels", "variables"),
    [
        (
            "DNNClassifier",
            {"n_classes": 3, "hidden_units": [8], "batch_norm": True},
            CLASSES,
            {"dnn/hiddenlayer_0/kernel", "dnn/hiddenlayer_0/batchnorm_0/gamma", "dnn/logits/bias"},
        ),
        (
            "DNNLinearCombinedClassifier",
            {"dnn_hidden_units": [4], "label_vocabulary": ["no", "yes"]},
            np.array(["no", "yes"])[(CLASSES > 0).astype(int)],
            {
                "dnn/input_from_feature_columns/input_layer/colour_embedding/embedding_weights",
                "linear/linear_model/colour_X_first_bucketized/weights",
            },
        ),
    ],
    ids=["DNNClassifier", "DNNLinearCombinedClassifier"],
)
def test_networks(name: str, settings: dict[str, Any], labels: Any, variables: set[str], tmp_path: Path) -> None:
    linear, network = columns()
    given = {"linear_feature_columns": linear, "dnn_feature_columns": network}
    given = given if "Combined" in name else {"feature_columns": network}
    model = getattr(tf.estimator, name)(model_dir=str(tmp_path), config=quiet(), **given, **settings)
    model.train(canned_inputs(labels, None), steps=60)
    assert set(model.get_variable_names()) >= variables
    words = settings.get("label_vocabulary", ["0", "1", "2"])
    right = 0
    for label, prediction in zip(labels, model.predict(canned_inputs(None)), strict=True):
        (number,) = prediction["class_ids"]
        assert prediction["classes"].tolist() == [words[number].encode()]
        assert prediction["probabilities"].argmax() == number
        right += words[number] == str(label)
    assert right > (25 if "batch_norm" in settings else 40)
    assert ("logistic" in prediction) == ("n_classes" not in settings)


def test_labels_that_are_no_class_are_refused(tmp_path: Path) -> None:
    model = tf.estimator.BaselineClassifier(str(tmp_path))
    with pytest.raises(tf.errors.InvalidArgumentError, match="Labels must be <= n_classes - 1"):
        model.train(canned_inputs(CLASSES), steps=1)
