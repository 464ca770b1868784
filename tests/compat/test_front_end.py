"""What stands around the graph: imports, missing names, `--check`, flags, files, and the documentation."""

from __future__ import annotations

import ast
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.compat.make_names import PAGE, listed, sections, written

import trainband.compat.tf1 as tf
from trainband.cluster import Cluster, ClusterSpec, Task
from trainband.compat.__main__ import main
from trainband.compat.check import check
from trainband.compat.finder import install, uninstall
from trainband.compat.missing import MissingModule, MissingName
from trainband.compat.script import cluster_arguments
from trainband.compat.tf1.modules import look_up
from trainband.compat.tf1.names import NAMES
from trainband.compat.tf1.namespace import find, namespace
from trainband.compat.tf1.scripts.input_data import read_data_sets
from trainband.compat.tf2.names import NAMES as SECOND
from trainband.data import load

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("space", NAMES)
def test_every_name_is_there(space: str) -> None:
    for name in NAMES[space]:
        find(space, name)
    assert set(NAMES[space]) <= set(dir(namespace(space)))


MISSING = [
    # name, the nearest
    (("tf.nn", "rellu"), "tf.nn.relu"),
    (("tf.train", "AdamOptimiser"), "tf.train.AdamOptimizer"),
    (("tf", "batch_normalization"), "tf.nn.batch_normalization"),
]


@pytest.mark.parametrize(("name", "nearest"), MISSING)
def test_a_missing_name_says_so(name: tuple[str, str], nearest: str) -> None:
    with pytest.raises(MissingName) as caught:
        getattr(namespace(name[0]), name[1])
    text = str(caught.value)
    assert text.startswith(".".join(name))
    assert "it is not planned" in text
    assert nearest in text
    assert isinstance(caught.value, AttributeError)
    assert not hasattr(namespace(name[0]), name[1])


def test_imports_reach_this_module_and_say_so_once() -> None:
    said: list[str] = []
    finder = install(said.append)
    try:
        for module in ("tensorflow", "tensorflow.compat.v1", "tensorflow.nn", "tensorflow.compat.v1.train"):
            importlib.import_module(module)
        script: dict[str, Any] = {}
        code = (
            "import tensorflow, tensorflow as one, tensorflow.compat.v1 as two\n"
            "from tensorflow.examples.tutorials.mnist import input_data\n"
            "from tensorflow import nn, float32 as kind\n"
            "from tensorflow.train import AdamOptimizer\n"
            "from tensorflow import keras\n"
            "from tensorflow.keras.layers import Dense\n"
            "from tensorflow.python.keras.models import Sequential\n"
        )
        exec(code, script)
        assert script["one"].constant is script["two"].constant is tf.constant
        assert script["nn"].relu is tf.nn.relu
        assert script["kind"] is tf.float32
        assert script["keras"].layers.Dense is script["Dense"]
        assert script["keras"].Sequential is script["Sequential"]
        assert script["input_data"].read_data_sets is read_data_sets
        assert script["one"].__version__.startswith("1.")
        assert script["one"].compat.v1.Session is tf.Session
        with pytest.raises(MissingModule, match=r"tf\.contrib\.crf is not in .*\(it is not planned"):
            exec("import tensorflow.contrib.crf as crf")
        with pytest.raises(MissingName, match=r"tf\.contrib\.cudnn_rnn"):
            exec("import tensorflow as tf; tf.contrib.cudnn_rnn.CudnnGRU")
        with pytest.raises(ImportError):
            exec("from tensorflow import autograph")
    finally:
        uninstall(finder)
    assert len(said) == 1
    assert "tensorflow" not in sys.modules


@pytest.mark.parametrize("path", sorted((ROOT / "examples" / "tf1").glob("*.py")), ids=lambda path: path.stem)
def test_nothing_is_missing_for_the_examples(path: Path) -> None:
    assert check(path.read_text()) == []


def test_a_dotted_name_is_looked_up_as_far_as_it_goes() -> None:
    assert look_up("tf.app.flags.FLAGS.anything") is None
    assert look_up("tf.train.Saver.save") is None
    assert look_up("tf.nothing.at.all") == "tf.nothing"
    assert look_up("tf.compat.v1.nn.relu") is None


def test_running_a_script(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    (tmp_path / "helper.py").write_text("VALUE = 3\n")
    script.write_text(
        "import sys, helper, tensorflow as tf\n"
        "with tf.Session() as session:\n    print(session.run(tf.constant(helper.VALUE) * 2), sys.argv[1:], __name__)\n"
        "raise SystemExit(int(sys.argv[1]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "trainband.compat", str(script), "5", "--flag"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout == "6 ['5', '--flag'] __main__\n"
    assert done.returncode == 5
    assert done.stderr == (
        "trainband: import tensorflow: this is trainband.compat.tf1, trainband's front end for TensorFlow 1 "
        "(tf.Session at line 2); --tensorflow 2 chooses the other\n"
    )
    assert main([str(tmp_path / "nothing.py")]) == 2
    assert main([]) == 2
    assert main(["--help"]) == 0


def test_a_script_that_does_not_use_tensorflow_is_told_so(tmp_path: Path) -> None:
    script = tmp_path / "plain.py"
    script.write_text("print('trained')\n")
    command = [sys.executable, "-m", "trainband.compat", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "trained\n"
    assert f"WARNING: {script} has not imported TensorFlow; --tensorflow is for scripts that do" in done.stderr


def test_a_launched_script_is_told_by_the_flags_that_it_has() -> None:
    spec = ClusterSpec({"ps": ["a:1"], "chief": ["b:1"], "worker": ["c:1", "d:1"]})
    source = 'flags.DEFINE_string("ps_hosts", "", ""); p.add_argument("--worker_hosts"); p.add_argument("--task_index")'
    worker = Cluster(spec=spec, task=Task("worker", 1))
    tree = ast.parse(source)
    assert cluster_arguments(tree, [], worker) == [
        "--ps_hosts=a:1",
        "--worker_hosts=b:1,c:1,d:1",
        "--task_index=2",
    ]
    assert cluster_arguments(tree, ["--task_index=7", "-ps_hosts", "x"], worker) == ["--worker_hosts=b:1,c:1,d:1"]
    assert cluster_arguments(ast.parse("no_flags"), [], worker) == []


def test_a_cluster_whose_jobs_have_other_names_is_left_to_the_script(tmp_path: Path) -> None:
    cluster = {"ps": ["a:1"], "worker": ["b:1"], "master": ["c:1"]}
    config = json.dumps({"cluster": cluster, "task": {"type": "master", "index": 0}})
    script = tmp_path / "script.py"
    script.write_text("import os, sys\nprint(sys.argv[1:], 'master' in os.environ['TF_CONFIG'], 'job_name')\n")
    command = [sys.executable, "-m", "trainband.compat", str(script)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=True, env={**os.environ, "TF_CONFIG": config}
    )
    assert done.stdout == "[] True job_name\n"


def test_flags(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    flags = tf.app.flags
    flags.DEFINE_string("name", "nobody", "a name, 100%")
    flags.DEFINE_integer("count", 3, "")
    flags.DEFINE_float("rate", 0.5, "")
    flags.DEFINE_boolean("fast", False, "")
    flags.DEFINE_bool("loud", True, "")
    flags.DEFINE_enum("kind", "a", ["a", "b"], "")
    flags.DEFINE_list("hosts", "x,y", "")
    with pytest.raises(flags.DuplicateFlagError, match="defined twice"):
        flags.DEFINE_string("name", "", "")
    monkeypatch.setattr(sys, "argv", ["prog", "--name=me", "--count", "5", "--fast", "--noloud", "rest"])
    assert flags.FLAGS.name == "me"
    seen: list[Any] = []

    def note(argv: list[str]) -> int:
        seen.append((argv, flags.FLAGS.count, flags.FLAGS.rate))
        return 3

    with pytest.raises(SystemExit) as ended:
        tf.app.run(main=note)
    assert ended.value.code == 3
    assert seen == [(["prog", "rest"], 5, 0.5)]
    assert (flags.FLAGS.fast, flags.FLAGS.loud, flags.FLAGS.hosts) == (True, False, ["x", "y"])
    flags.FLAGS.count = 9
    assert flags.FLAGS.flag_values_dict()["count"] == 9
    monkeypatch.setattr(sys, "argv", ["prog", "--count=x"])
    with pytest.raises(SystemExit) as ended:
        tf.app.run(main=lambda _: None)
    assert ended.value.code == 1
    assert "count" in capsys.readouterr().err
    flags.DEFINE_string("needed", None, "")
    flags.mark_flag_as_required("needed")
    monkeypatch.setattr(sys, "argv", ["prog"])
    with pytest.raises(SystemExit):
        tf.app.run(main=lambda _: None)


def test_the_digits_stand_in_for_mnist_and_nothing_is_downloaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = read_data_sets(tmp_path, one_hot=True, seed=1)
    assert "downloads nothing" in capsys.readouterr().err
    everything = load()
    count = data.train.num_examples + data.validation.num_examples
    assert count == len(everything.train)
    assert data.test.images.shape == (len(everything.test), 784)
    assert data.train.labels.sum(1).tolist() == [1.0] * data.train.num_examples
    batches = [data.train.next_batch(100) for _ in range(data.train.num_examples // 100 + 1)]
    assert data.train.epochs_completed == 1
    assert all(images.shape == (100, 784) and labels.shape == (100, 10) for images, labels in batches)
    again = read_data_sets(tmp_path, one_hot=True, seed=1)
    np.testing.assert_array_equal(again.train.next_batch(10)[0], batches[0][0][:10])


def test_files(tmp_path: Path) -> None:
    home = str(tmp_path / "a" / "b")
    tf.gfile.MakeDirs(home)
    with tf.gfile.GFile(f"{home}/x.txt", "w") as file:
        file.write("text")
    assert tf.gfile.Exists(f"{home}/x.txt")
    assert tf.gfile.ListDirectory(home) == ["x.txt"]
    assert tf.gfile.Glob(f"{home}/*.txt") == [f"{home}/x.txt"]
    tf.gfile.DeleteRecursively(home)
    assert not tf.gfile.Exists(home)
    with pytest.raises(tf.errors.NotFoundError):
        tf.gfile.DeleteRecursively(home)


def test_logging(capsys: pytest.CaptureFixture[str]) -> None:
    tf.logging.info("not shown")
    tf.logging.warning("a %s", "b")
    tf.logging.set_verbosity(tf.logging.INFO)
    tf.logging.info("shown")
    for _ in range(4):
        tf.logging.log_every_n(tf.logging.INFO, "now and then", 3)
    assert capsys.readouterr().err.splitlines() == [
        "WARNING:tensorflow:a b",
        "INFO:tensorflow:shown",
        "INFO:tensorflow:now and then",
        "INFO:tensorflow:now and then",
    ]


@pytest.mark.parametrize(("version", "names"), [(1, NAMES), (2, SECOND)])
def test_the_tables_in_the_documentation_are_the_codes(version: int, names: dict[str, dict[str, object]]) -> None:
    text = PAGE.read_text(encoding="utf-8")
    found = listed(sections(text)[version])
    assert set(found) == set(names)
    for space, there in found.items():
        assert set(there) == set(names[space]), space
    assert written(text) == text, "run tests/compat/make_names.py"


def test_a_file_is_written_and_read_by_two_places(tmp_path: Path) -> None:
    with tf.gfile.GFile(tmp_path / "x", "w+") as file:
        file.write("one\r\ntwo\n")
        file.flush()
        assert (file.readline(), file.tell(), file.size()) == ("one\r\n", 5, 9)
        file.seek(position=0)
        file.write("three")
        assert file.read(3) == "one"
        with pytest.raises(tf.errors.InvalidArgumentError):
            file.seek(-1)
    assert (tmp_path / "x").read_bytes() == b"one\r\ntwo\nthree"
    with pytest.raises(tf.errors.NotFoundError):
        tf.gfile.GFile("").read()


def test_arrays_are_cast_but_not_pythons_numbers() -> None:
    cast = [
        tf.constant(np.array([1.7]), tf.int32),
        tf.constant(np.float64(2.5), tf.uint8),
        tf.constant(np.True_, "float32"),
    ]
    with tf.Session() as session:
        assert [float(np.squeeze(one)) for one in session.run(cast)] == [1.0, 2.0, 1.0]
    with pytest.raises(TypeError, match="Expected int32"):
        tf.constant([1.7], tf.int32)


def test_a_function_of_a_module_comes_before_a_namespace() -> None:
    from trainband.compat.tf1.namespace import find

    assert find("tf.python.summary.summary", "image") is tf.summary.image
    assert find("tf.python.util.nest", "map_structure") is tf.contrib.framework.nest.map_structure
    assert callable(find("tf.contrib.learn.python.learn.datasets.mnist", "read_data_sets"))


def test_shapes_and_specs_say_what_they_know() -> None:
    shape = tf.TensorShape([2, None])
    assert tf.TensorShape(shape.as_proto()).as_list() == [2, None]
    assert shape.most_specific_compatible_shape([3, 4]).as_list() == [None, None]
    assert (shape[0] < shape[1], shape[0] <= 2, [0] * tf.Dimension(2)) == (None, True, [0, 0])
    with pytest.raises(ValueError, match="not fully defined"):
        shape.assert_is_fully_defined()
    spec = tf.TensorSpec([None, 2], tf.float32)
    assert spec.is_compatible_with(tf.zeros([3, 2]))
    assert not spec.is_compatible_with(tf.zeros([3, 3]))


def test_a_tensor_proto_has_tensorflows_fields() -> None:
    repeated = tf.make_tensor_proto(1.5, shape=[2, 2])
    assert (list(repeated.float_val), tf.make_ndarray(repeated).tolist()) == ([1.5], [[1.5, 1.5], [1.5, 1.5]])
    halves = tf.make_tensor_proto(np.array([1, 2], np.float16))
    assert (list(halves.half_val), tf.make_ndarray(halves).tolist()) == ([15360, 16384], [1.0, 2.0])
    complex_numbers = tf.make_tensor_proto([1 + 2j])
    assert (list(complex_numbers.dcomplex_val), tf.make_ndarray(complex_numbers).tolist()) == ([1.0, 2.0], [1 + 2j])
    with pytest.raises(ValueError, match="Too many elements"):
        tf.make_tensor_proto([1, 2], shape=[1])
