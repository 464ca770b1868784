"""What a launcher starts for a script of TensorFlow 2 when nobody says."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from trainband.cli.tensorflow_script import for_strategy
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


def test_a_script_that_may_need_a_chief_gets_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script, context = tmp_path / "script.py", click.Context(click.Command("run"))
    script.write_text("a = tf.distribute.ParameterServerStrategy(r)\nb = tf.distribute.MirroredStrategy()")
    for ps, chief, says in ((1, False, True), (1, True, False), (0, False, False)):
        assert for_strategy(context, str(script), ps=ps, chief=chief) == (ps, chief)
        assert ("add --chief" in capsys.readouterr().err) is says
