"""What a launcher starts for a script of TensorFlow 2 when nobody says."""

from __future__ import annotations

import pytest

from trainband.compat.wanted_tasks import wanted_tasks

PS, CHIEF = "ps", "chief"


@pytest.mark.parametrize(
    ("source", "tasks"),
    [
        ("strategy = tf.distribute.experimental.ParameterServerStrategy(resolver)", {PS, CHIEF}),
        ("strategy = tf.distribute.MultiWorkerMirroredStrategy()", set()),
        ("s = tf.distribute.MirroredStrategy ()\nt = tf.distribute.experimental.MultiWorkerMirroredStrategy()", set()),
        ("a = tf.distribute.ParameterServerStrategy(r)\nb = tf.distribute.MirroredStrategy()", {PS}),
        ("tf.estimator.RunConfig(train_distribute=tf.distribute.experimental.ParameterServerStrategy())", {PS}),
        ("print('MirroredStrategy')", {PS}),
    ],
)
def test_what_a_script_wants(source: str, tasks: set[str]) -> None:
    wanted = wanted_tasks(source)
    assert {name for name in (PS, CHIEF) if getattr(wanted, name)} == tasks
