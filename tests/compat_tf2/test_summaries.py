"""`tf.summary`: what is in the event files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainband.compat.tf2 as tf
from trainband.compat.tf1.scripts.events import summary_iterator


def _written(directory: Path) -> list[tuple[int, Any]]:
    return [
        (event.step, value)
        for path in sorted(directory.glob("events*"))
        for event in summary_iterator(path)
        for value in event.summary.value
    ]


def test_summaries_are_written_with_their_steps(tmp_path: Path) -> None:
    step = tf.Variable(0, dtype=tf.int64)
    writer = tf.summary.create_file_writer(str(tmp_path / "train"), filename_suffix=".x")
    assert not tf.summary.scalar("nowhere", 1.0, step=0)
    with writer.as_default():
        with pytest.raises(ValueError, match="No step set"):
            tf.summary.scalar("loss", 1.0)
        for _ in range(3):
            with tf.summary.record_if(lambda: step % 2 == 0):
                tf.summary.scalar("loss", tf.constant(0.5) * 2.0, step=step)
            step.assign_add(1)
        tf.summary.experimental.set_step(7)
        tf.summary.histogram("weights", tf.ones([4]))
        tf.summary.image("pictures", np.zeros([2, 3, 4, 1], np.float32))
        tf.summary.text("text", "hello")
        tf.summary.audio("sound", np.zeros([1, 8, 1], np.float32), 8000)
        assert tf.summary.should_record_summaries()
        with pytest.raises(ValueError, match="Expected scalar"):
            tf.summary.scalar("loss", [1.0, 2.0])
    assert not tf.summary.should_record_summaries()
    writer.close()
    writer.close()
    found = _written(tmp_path / "train")
    assert [(at, value.tag) for at, value in found] == [
        (0, "loss"), (2, "loss"), (7, "weights"), (7, "pictures/image/0"), (7, "pictures/image/1"), (7, "text"),
        (7, "sound/audio"),
    ]  # fmt: skip
    assert found[0][1].simple_value == 1.0
    assert found[2][1].histo.num == 4
    assert found[3][1].image.width == 4
    assert found[5][1].tensor.string_val[0] == b"hello"
    with pytest.raises(RuntimeError, match="already closed"), writer.as_default(step=1):
        tf.summary.scalar("loss", 1.0)
    with tf.summary.create_noop_writer().as_default(step=1):
        assert not tf.summary.scalar("loss", 1.0)
