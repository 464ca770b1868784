"""Makes the golden values: what TensorFlow itself gives for the scripts in `examples/tf1`, and for operations.

The recipe, with a Python that has TensorFlow 2.21 (for `tf.layers` also the package tf_keras of the same version, and
for `tf.contrib` tf_slim):

    python tests/compat/make_golden.py [NAME]...

TensorFlow 2.21 runs scripts of TensorFlow 1 as `tensorflow.compat.v1` without its version 2 behaviour; that module is
put in the place of `tensorflow`, and for the tutorials' `input_data`, which is gone, trainband's own stands in, so that
the data are the same. Nothing else of trainband is used. The values are written to `tests/compat/golden/NAME.json`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
GOLDEN = HERE / "golden"
SCRIPTS = ROOT / "examples" / "tf1"

ARGUMENTS: dict[str, tuple[str, ...]] = {
    "autoencoder": (),
    "keras_model": (),
    "input_pipeline": ("--shuffle_buffer=0",),  # TensorFlow shuffles otherwise
    "convnet": ("--keep_prob=1.0",),  # TensorFlow's random numbers are not JAX's
    "layers_batchnorm": (),
    "lstm_classifier": (),
    "mlp_supervisor": (),
    "monitored_hooks": (),
    "rnn_while_loop": (),
    "slim_convnet": (),
    "softmax_regression": (),
    "sync_replicas": (),
    "towers": (),
    "wide_linear": (),
    "word2vec": (),
    "word2vec_adam": ("--optimizer=adam",),
    "word2vec_adagrad": ("--optimizer=adagrad",),
}
"""The runs that are compared: a script's name, or that and a word more, and its arguments."""

TABLES = {"operations": "operations_table", "images": "images_table"}
"""The tables of operations that are compared, and the files that have them."""


def script_of(name: str) -> Path:
    """The script of a run."""
    path = SCRIPTS / f"{name}.py"
    return path if path.exists() else SCRIPTS / f"{name.rpartition('_')[0]}.py"


def main() -> None:
    """Makes all of them, or those that are named."""
    if sys.argv[1:2] == ["--run"]:
        run_script(sys.argv[2], sys.argv[3:])
        return
    if sys.argv[1:2] == ["--operations"]:
        run_operations(Path(sys.argv[2]), sys.argv[3])
        return
    if sys.argv[1:2] == ["--networks"]:
        run_networks(Path(sys.argv[2]))
        return
    if sys.argv[1:2] == ["--models"]:
        run_models(Path(sys.argv[2]))
        return
    wanted = sys.argv[1:] or [*ARGUMENTS, *TABLES, "networks", "models"]
    GOLDEN.mkdir(exist_ok=True)
    for name in wanted:
        with tempfile.TemporaryDirectory() as directory:
            out = Path(directory) / "values.npz"
            if name in ("networks", "models"):
                command = [sys.executable, __file__, f"--{name}", str(out)]
            elif name in TABLES:
                command = [sys.executable, __file__, "--operations", str(out), name]
            else:
                command = [sys.executable, __file__, "--run", str(script_of(name)), *ARGUMENTS[name], f"--values={out}"]
            environment = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_USE_LEGACY_KERAS": "1", **os.environ}
            subprocess.run(command, check=True, env=environment, cwd=directory)
            write(GOLDEN / f"{name}.json", dict(np.load(out)))
        print(f"made {name}")


def write(path: Path, values: dict[str, Any]) -> None:
    """Writes arrays as lists, with as many digits as float32 has."""
    shown = {
        name: {
            "shape": list(value.shape),
            "values": [float(f"{one:.8g}") for one in np.ravel(value).astype(np.float64).tolist()],
        }
        for name, value in sorted(values.items())
    }
    text = ",\n".join(f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in shown.items())
    path.write_text(f"{{\n{text}\n}}\n", encoding="utf-8")


def run_script(path: str, arguments: list[str]) -> None:
    """Runs a script of TensorFlow 1 with real TensorFlow."""
    import tensorflow.compat.v1 as v1

    v1.disable_v2_behavior()
    v1.logging.set_verbosity(v1.logging.ERROR)
    add_contrib(v1)
    sys.modules["tensorflow"] = v1
    sys.modules["tensorflow.examples.tutorials.mnist.input_data"] = module = input_data()
    for name in ("tensorflow.examples", "tensorflow.examples.tutorials", "tensorflow.examples.tutorials.mnist"):
        package = types.ModuleType(name)
        package.__path__ = []
        sys.modules[name] = package
    sys.modules["tensorflow.examples.tutorials.mnist"].input_data = module  # type: ignore[attr-defined]
    sys.argv = [path, *arguments]
    spec = importlib.util.spec_from_file_location("__main__", path)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    sys.modules["__main__"] = script
    spec.loader.exec_module(script)


def input_data() -> types.ModuleType:
    """Trainband's `input_data`, with the digits and without the rest of trainband."""

    class DataError(Exception):
        pass

    def stand_in(name: str, **names: Any) -> None:
        sys.modules[name] = module = types.ModuleType(name)
        module.__path__ = []
        module.__dict__.update(names)

    for name in ("trainband", "trainband.compat", "trainband.runtime", "trainband.checkpoint"):
        stand_in(name)
    stand_in("trainband.errors", DataError=DataError, YourError=DataError, PeerError=DataError)
    stand_in("trainband.runtime.waiting", say_on_stderr=lambda _: None)
    load("trainband.runtime.regular_files", ROOT / "src/trainband/runtime/regular_files.py")
    # With a place in the file system, where the digits are, but without what its own file would load.
    data = ROOT / "src/trainband/data"
    spec = importlib.util.spec_from_file_location(
        "trainband.data", data / "__init__.py", submodule_search_locations=[str(data)]
    )
    assert spec is not None
    sys.modules["trainband.data"] = importlib.util.module_from_spec(spec)
    dataset = load("trainband.data.dataset", ROOT / "src/trainband/data/dataset.py")
    idx = load("trainband.data.idx", ROOT / "src/trainband/data/idx.py")
    sys.modules["trainband.data"].__dict__["idx"] = idx
    digits = load("trainband.data.digits", ROOT / "src/trainband/data/digits.py")
    sys.modules["trainband.data"].__dict__.update(Dataset=dataset.Dataset, Split=dataset.Split, load=digits.read)
    return load("input_data", ROOT / "src/trainband/compat/tf1/scripts/input_data.py")


def load(name: str, path: Path) -> types.ModuleType:
    """A module from a file."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def add_contrib(v1: Any) -> None:
    """Adds what is left of `tf.contrib`: the package tf_slim has its layers."""
    from tensorflow.python.framework import ops, tensor
    from tf_keras.src import legacy_tf_layers
    from tf_keras.src.legacy_tf_layers import base, normalization

    ops.Tensor = tensor.Tensor  # tf_slim expects these where they were
    for name, module in {"": legacy_tf_layers, ".base": base, ".normalization": normalization}.items():
        sys.modules[f"tf_keras.legacy_tf_layers{name}"] = module
    import tf_slim  # type: ignore[import-not-found]

    v1.contrib = types.ModuleType("tensorflow.contrib")
    v1.contrib.__path__ = []
    v1.contrib.__dict__.update(layers=tf_slim, framework=tf_slim, slim=tf_slim, rnn=v1.nn.rnn_cell)
    sys.modules["tensorflow.contrib"] = v1.contrib
    sys.modules["tensorflow.contrib.slim"] = tf_slim


def run_networks(out: Path) -> None:
    """Runs the networks in `networks_table` with TensorFlow."""
    import tensorflow.compat.v1 as v1

    v1.disable_v2_behavior()
    add_contrib(v1)
    networks = load("networks_table", HERE / "networks_table.py")
    np.savez(out, **{key: value for name in networks.TABLE for key, value in networks.values_of(v1, name).items()})


def run_models(out: Path) -> None:
    """Runs the layers and models in `models_table` with TensorFlow."""
    import tensorflow.compat.v1 as v1

    v1.disable_v2_behavior()
    models = load("models_table", HERE / "models_table.py")
    found = {key: value for name in models.LAYERS for key, value in models.values_of_layer(v1, name).items()}
    for name in models.TRAINED:
        found |= models.values_of_training(v1, name)
    np.savez(out, **found)


def run_operations(out: Path, name: str) -> None:
    """Computes a table of operations, and the derivatives of those that have one, with real TensorFlow."""
    import tensorflow.compat.v1 as v1

    v1.disable_v2_behavior()
    table = load(TABLES[name], HERE / f"{TABLES[name]}.py")
    np.savez(out, **table.compute(v1))


if __name__ == "__main__":
    main()
