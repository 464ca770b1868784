"""Which front end a script gets, and what `import tensorflow` is in one of TensorFlow 2."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from trainband.compat.__main__ import main
from trainband.compat.sources import read_files
from trainband.compat.version import choose

EXAMPLES = Path(__file__).parents[2] / "examples"

TF = "import tensorflow as tf\n"
CHOICES = [
    (TF + "tf.Session()", 1, "tf.Session at line 2"),
    ("import tensorflow.compat.v1 as tf\ntf.nn.relu", 1, "tf.compat.v1.nn.relu at line 2"),
    (TF + "tf.compat.v1.disable_eager_execution()\ntf.function", 1, "tf.compat.v1.disable_eager_execution at line 2"),
    (TF + "tf.compat.v1.placeholder\ntf.keras.layers", 1, "tf.compat.v1.placeholder at line 2"),
    (TF + "x = tf.train.AdamOptimizer(1)\ntf.keras.layers", 1, "tf.train.AdamOptimizer at line 2"),
    (TF + "tf.estimator.Estimator\ntf.distribute.MirroredStrategy()", 1, "tf.estimator.Estimator at line 2"),
    (TF + "tf.constant(1)", 1, ""),
    (TF + "s = tf.distribute.MirroredStrategy()", 2, "tf.distribute.MirroredStrategy at line 2"),
    (TF + "tf.compat.v1.logging.info\ntf.GradientTape()", 2, "tf.GradientTape at line 3"),
    (TF + "tf.compat.v1.Session()\ntf.random.set_seed(1)", 2, "tf.random.set_seed at line 3"),
    (TF + "try:\n  tf.Session\nexcept AttributeError:\n  pass\ntf.function", 2, "tf.function at line 6"),
    (TF + "if tf.__version__ < '2': tf.Session()\ntf.function", 2, "tf.function at line 3"),
    (TF + "tf.compat.v1.enable_eager_execution()\ntf.contrib.x", 2, "tf.compat.v1.enable_eager_execution at line 2"),
    ("from tensorflow.keras import layers\nlayers.Dense(1)", 2, "tf.keras.layers at line 1"),
    ("from tensorflow import keras", 2, "tf.keras at line 1"),
    (TF + "tf.Variable(1).assign(2)\ntf.raw_operations", 1, ""),
    (TF + "d = tf.data.Dataset.range(3)\nfor x in d.batch(2):\n  print(x)", 2, "a loop over a dataset at line 3"),
    (TF + "for x in make(): x\ndef make():\n  return tf.data.Dataset.range(3)", 2, "a loop over a dataset at line 2"),
    (TF + "[x for x in tf.data.Dataset.range(3)]", 2, "a loop over a dataset at line 2"),
    (TF + "print(tf.add(1, 2).numpy())", 2, ".numpy() at line 2"),
    (TF + "d = tf.data.Dataset.range(3)\nd.make_one_shot_iterator()\nfor x in (1, 2): x", 1, ""),
]


@pytest.mark.parametrize(("source", "number", "reason"), CHOICES)
def test_what_a_script_uses_decides(source: str, number: int, reason: str) -> None:
    choice = choose({Path("x.py"): ast.parse(source)})
    assert (choice.number, choice.reason) == (number, reason)


@pytest.mark.parametrize("path", [*EXAMPLES.glob("tf?/*.py")], ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_example_gets_its_own(path: Path) -> None:
    assert choose(read_files(path).trees).number == int(path.parent.name[-1])


SCRIPT = """\
import os; os.environ["KERAS_BACKEND"] = "tensorflow"
import keras as own
import tensorflow as tf
import tensorflow.keras.backend
from tensorflow.keras.layers import Dense
from tensorflow.python.framework import ops
import tf_keras
import helper
assert tf_keras.layers.Dense is Dense is tf.keras.layers.Dense
try:
    import tensorflow_addons
except ImportError as exc:
    print(str(exc)[:31])
layer = own.layers.Dense(1, kernel_initializer="ones")
with tf.GradientTape() as tape:
    loss = tf.reduce_sum(layer(tf.compat.v2.ones([2, 3])))
bias = tape.gradient(loss, layer.trainable_variables)[1]
print(bias.numpy(), ops.convert_to_tensor(2).numpy(), tf.losses.Loss.__name__)
tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.ERROR)
tf.compat.v1.app.run(lambda argv: print(argv[1:]))
"""


def test_a_script_of_version_2_runs(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "helper.py").write_text(TF + "strategy = tf.function(lambda: tf.constant(1))")
    done = subprocess.run(
        [sys.executable, "-m", "trainband.compat", str(tmp_path / "script.py"), "5"],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.stdout == "trainband has no tensorflow_add\n[2.] 2 Loss\n['5']\n", done.stderr
    assert next(line for line in done.stderr.splitlines() if "import tensorflow" in line) == (
        "trainband: import tensorflow: this is trainband.compat.tf2, trainband's front end for TensorFlow 2 "
        "(tf.GradientTape at line 15); --tensorflow 1 chooses the other"
    )
    assert "trainband: KERAS_BACKEND=tensorflow: Keras computes with JAX, " in done.stderr


def test_check_names_the_front_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "script.py"
    script.write_text(TF + "tf.GradientTape()\ntf.keras.layers.Dens\ntf.get_variable\ntf.nn.relu(1, axis=2)\n")
    assert main(["--check", "--tensorflow", "2", str(script)]) == 1
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith(f"{script}:3: tf.keras.layers.Dens is not in trainband's TensorFlow 2 front end")
    assert shown[1].startswith(f"{script}:4: tf.get_variable is not")
    assert shown[1].endswith("--tensorflow 1 has it.")
    assert shown[2].startswith(f"{script}:5: tf.nn.relu has no argument 'axis' in trainband's TensorFlow 2")
    assert shown[3] == f"{script}: 2 of the 4 names of TensorFlow 2 that are used are there"
    assert main(["--check", "--tensorflow=3", str(script)]) == 2
