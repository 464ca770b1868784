"""Event files as TensorBoard's own reader sees them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.train.fakes import ONES, curves_in, mean_model

from trainband.strategies import StepReport
from trainband.train import Hook
from trainband.train.hooks import SummarySaverHook
from trainband.train.tensorboard_file import EventFile

reader = pytest.importorskip(
    "tensorboard.backend.event_processing.event_accumulator", reason="needs tensorboard: pip install 'trainband[dev]'"
)


def read(directory: Path) -> Any:
    """A run as TensorBoard loads it, with nothing left out."""
    run = reader.EventAccumulator(str(directory), size_guidance=dict.fromkeys(reader.DEFAULT_SIZE_GUIDANCE, 0))
    run.Reload()
    return run


def test_a_training_that_was_resumed_is_one_curve(tmp_path: Path) -> None:
    class Dies(Hook):
        def after_run(self, session: Any, report: StepReport) -> None:
            if report.global_step == 4:
                session.save(wait=True)
            if report.global_step == 7:
                raise OSError("the machine is gone")

    def fit(*hooks: Hook) -> None:
        made = mean_model(say=lambda _: None)
        made.fit([ONES] * 3, 10, checkpoint_dir=tmp_path, hooks=[SummarySaverHook(save_steps=1), *hooks])

    with pytest.raises(OSError, match="the machine is gone"):
        fit(Dies())
    fit()
    run = read(tmp_path)
    curves = {tag: [(point.step, point.value) for point in run.Scalars(tag)] for tag in run.Tags()["scalars"]}
    assert [step for step, _ in curves["loss"]] == list(range(1, 11))
    assert curves == curves_in(tmp_path), "the tests read as TensorBoard does"


def test_scalars_and_histograms(tmp_path: Path) -> None:
    values = np.arange(1000, dtype=np.float32) - 10
    with EventFile(tmp_path, pytest.fail) as events:
        events.add(3, {"loss": np.float32(0.25), "params/w": values})
    run = read(tmp_path)
    ((point,), (histogram,)) = run.Scalars("loss"), run.Histograms("params/w")
    assert (point.step, point.value, histogram.step) == (3, 0.25, 3)
    found = histogram.histogram_value
    assert (found.min, found.max, found.num, sum(found.bucket)) == (-10.0, 989.0, 1000.0, 1000.0)
    assert found.sum == values.sum(dtype=np.float64)


def test_summaries_of_a_script_of_tensorflow_1(tmp_path: Path) -> None:
    from PIL import Image

    from trainband.compat import tf1 as tf

    with tf.Graph().as_default() as graph:
        x = tf.placeholder(tf.float32, [None], name="x")
        tf.summary.scalar("average", tf.reduce_mean(x))
        tf.summary.histogram("values", x)
        tf.summary.image("picture", tf.reshape(x, [1, 2, 2, 1]))
        merged = tf.summary.merge_all()
        with tf.Session() as session, tf.summary.FileWriter(str(tmp_path), graph) as writer:
            writer.add_summary(session.run(merged, {x: [0.0, 2.0, 4.0, 6.0]}), 4)
    run = read(tmp_path)
    assert [(point.step, point.value) for point in run.Scalars("average")] == [(4, 3.0)]
    assert run.Histograms("values")[0].histogram_value.sum == 12.0
    (image,) = run.Images("picture/image")
    with Image.open(io.BytesIO(image.encoded_image_string)) as picture:
        assert (picture.size, image.width, image.height) == ((2, 2), 2, 2)
        assert np.ptp(np.asarray(picture)) == 255
    assert {node.name for node in run.Graph().node} >= {"x"}
