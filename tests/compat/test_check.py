"""`--check`, Python 2 and `--convert`, and what scripts of NumPy 1 get."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainband.compat.__main__ import main
from trainband.compat.check import check, check_files
from trainband.compat.finder import install, uninstall
from trainband.compat.missing import MissingModule
from trainband.compat.numpy_names import install_numpy_names
from trainband.compat.python2 import Python2Error, converted, old_div, parsed
from trainband.compat.six_names import install_six
from trainband.compat.tf1.sessions import one_element

converting = pytest.mark.skipif(
    not any(importlib.util.find_spec(name) for name in ("fissix", "lib2to3")),
    reason="neither fissix nor lib2to3 is installed",
)

SCRIPT = """\
import tensorflow as tf
from tensorflow.examples.tutorials.mnist import input_data
from tensorflow.python.ops import array_ops, nothing_ops
import tensorflow.contrib.nothing as nothing
flags = tf.app.flags
flags.DEFINE_string("a", "", "")
flags.DEFINE_strings("b", "", "")
x = tf.nn.relu(tf.nn.conv2e(tf.constant(1.0)))
y = tf.train.AdamOptimizer(learning_rte=0.1).minimise(x)
try:
    from tensorflow.python.ops import older_ops
except ImportError:
    pass
relu = tf.nn.relu
layers = tf.layers
for layers in []:
    layers.append(relu(features=x, inplace=True))
tf.reduce_sum(x, keep_dims=True, reduction_indices=0), array_ops.reshape, array_ops.reshap

def later():
    return tf.contrib.nothing.LSTMCell(3), tf.contrib.layers.flatten, tf.compat.v1.nn.relu, tf.compat.v1.nn.rely
"""


def test_check_lists_what_is_missing_with_lines() -> None:
    assert [(one.line, one.name, one.argument) for one in check(SCRIPT)] == [
        (3, "tf.python.ops.nothing_ops", ""),
        (4, "tf.contrib.nothing", ""),
        (7, "tf.flags.DEFINE_strings", ""),
        (8, "tf.nn.conv2e", ""),
        (9, "tf.train.AdamOptimizer", "learning_rte"),
        (17, "tf.nn.relu", "inplace"),
        (18, "tf.python.ops.array_ops.reshap", ""),
        (21, "tf.contrib.nothing", ""),
        (21, "tf.nn.rely", ""),
    ]


def test_check_follows_the_scripts_own_modules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "nets" / "deep").mkdir(parents=True)
    (tmp_path / "main.py").write_text("import os, nets.deep\nfrom nets import one\nraise SystemExit('it was run')\n")
    (tmp_path / "nets" / "__init__.py").write_text("")
    (tmp_path / "nets" / "one.py").write_text("import tensorflow as tf\nfrom .two import f\ntf.nn.relu, tf.nn.relv\n")
    (tmp_path / "nets" / "two.py").write_text("from tensorflow import nothing\nimport main\n")
    (tmp_path / "nets" / "deep" / "__init__.py").write_text("from ..three import g\n")
    (tmp_path / "nets" / "three.py").write_text("import tensorflow as t\nt.exp, t.log\n")
    report = check_files(tmp_path / "main.py")
    found = {path.name: [one.name for one in missing] for path, missing in report.missing.items()}
    assert found == {"one.py": ["tf.nn.relv"], "two.py": ["tf.nothing"]}
    assert report.used == {"tf.nn.relu", "tf.nn.relv", "tf.nothing", "tf.exp", "tf.log"}
    assert main(["--check", str(tmp_path / "main.py")]) == 1
    shown = capsys.readouterr().out.splitlines()
    assert shown[-2:] == [
        f"{tmp_path / 'main.py'}: 3 of the 5 names of TensorFlow 1 that are used are there (tf.log at three.py:2)",
        "2 names missing",
    ]
    assert shown[0].startswith(f"{tmp_path / 'nets' / 'one.py'}:3: tf.nn.relv is not in trainband's TensorFlow 1")
    assert main(["--check", str(tmp_path / "nets" / "three.py")]) == 0
    assert main(["--check", str(tmp_path / "nowhere.py")]) == 2


@pytest.mark.parametrize(
    "line",
    ["print 'x'", "print x", "try:\n    pass\nexcept ValueError, e:\n    pass", "raise E, 'x'", "x = `y`", "x = 0777L"],
)
def test_python_2_is_recognised(line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "old.py").write_text(f"import tensorflow\n{line}\n")
    assert main(["--check", str(tmp_path / "old.py")]) == 3
    assert "this is Python 2" in capsys.readouterr().out
    assert main([str(tmp_path / "old.py")]) == 2
    assert "run it with --convert" in capsys.readouterr().err


def test_a_broken_script_is_not_taken_for_python_2() -> None:
    with pytest.raises(SyntaxError) as caught:
        parsed("x = (1,\ny = 2\n", "x.py")
    assert not isinstance(caught.value, Python2Error)


def test_the_division_of_whole_numbers() -> None:
    assert (old_div(7, 2), old_div(-7, 2), old_div(7.0, 2)) == (3, -4, 3.5)
    assert old_div(np.array([7]), 2).tolist() == [3]
    assert old_div(np.float32(7), np.int64(2)) == 3.5


@converting
def test_a_script_is_converted() -> None:
    old = (
        "import cPickle\nn = 7 / 2\nn /= 2\nx = n / 2.0\ny = 1 * 9 / 2 / 2\n"
        "if x:\n\tz = [k for k, v in {1: 2}.iteritems()]\n        print n, x, y, z\n"
    )
    new = converted(old, "old.py")
    assert "print(n, x, y, z)" in new
    assert "x = n / 2.0" in new
    values: dict[str, object] = {}
    exec(compile(new, "old.py", "exec"), values)
    assert (values["n"], values["x"], values["y"], values["z"]) == (1, 0.5, 2, [1])
    assert "old_div" not in converted("from __future__ import division\nx = 1 / 2\n", "new.py")
    with pytest.raises(SyntaxError, match="neither Python 3 nor Python 2"):
        converted("x = = 1\n", "broken.py")


@converting
def test_a_script_and_its_modules_run_converted(tmp_path: Path) -> None:
    (tmp_path / "old.py").write_text(
        "import tensorflow as tf, helper\nsession = tf.Session()\n"
        "print session.run(tf.constant(helper.half(7))), __name__\n"
    )
    (tmp_path / "helper.py").write_text("def half(n):\n    for _ in xrange(1): return n / 2\n")
    (tmp_path / "__init__.py").touch()  # the script is in no package all the same
    command = [sys.executable, "-m", "trainband.compat", "--convert", str(tmp_path / "old.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "3 __main__\n"
    assert main(["--convert-to", str(tmp_path / "new.py"), str(tmp_path / "helper.py")]) == 0
    assert "in range(1)" in (tmp_path / "new.py").read_text()
    assert main(["--check", "--convert", str(tmp_path / "old.py")]) == 0


def test_a_script_runs_with_its_modules_and_old_methods_of_arrays(tmp_path: Path) -> None:
    (tmp_path / "nets").mkdir()
    (tmp_path / "nets" / "one.py").write_text("import numpy as np\nDATA = np.zeros(2, np.uint8).tostring()\n")
    (tmp_path / "main.py").write_text(
        '"""A script."""\nimport tensorflow as tf\nfrom nets.one import DATA\nimport pickle\nclass A: pass\n'
        "def main(argv):\n    print(DATA, argv[1:], __doc__, pickle.loads(pickle.dumps(A)) is A, __file__)\n"
        "tf.app.run()\n"
    )
    command = [sys.executable, "-m", "trainband.compat", str(tmp_path / "main.py"), "x"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == f"{bytes(2)!r} ['x'] A script. True {tmp_path / 'main.py'}\n"


def test_an_error_that_comes_from_python_2_says_so(tmp_path: Path) -> None:
    (tmp_path / "old.py").write_text("import tensorflow\nfor i in xrange(3): pass\n")
    command = [sys.executable, "-m", "trainband.compat", str(tmp_path / "old.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "xrange is Python 2: run it with --convert" in done.stderr


def test_a_module_that_is_missing_is_explained_wherever_it_is_imported() -> None:
    finder = install(lambda _: None)
    try:
        for line in ("from tensorflow.contrib import nothing", "from tensorflow.python.ops import nothing"):
            with pytest.raises(MissingModule, match=r"nothing is not in trainband's TensorFlow 1 front end"):
                exec(line)
        script: dict[str, object] = {}
        exec("from tensorflow.python.ops import math_ops, variables as v\nfrom tensorflow.nn import *", script)
        exec("from tensorflow.contrib.layers.python.layers import layers, batch_norm", script)
        assert script["batch_norm"] is script["layers"].batch_norm  # type: ignore[attr-defined]
        assert callable(script["batch_norm"])
        exec("import tensorflow.python.platform.gfile as g\nfrom tensorflow.python.client import device_lib", script)
        assert {"math_ops", "v", "g", "relu", "softmax"} <= set(script)
        assert script["device_lib"].list_local_devices()[0].name == "/device:CPU:0"  # type: ignore[attr-defined]
    finally:
        uninstall(finder)


def test_old_names_of_numpy_are_there_and_said_once() -> None:
    said: list[str] = []
    restore = install_numpy_names(said.append)
    try:
        assert (np.float, np.asscalar(np.array([2]))) == (float, 2)  # type: ignore[attr-defined]
        with pytest.raises(AttributeError):
            np.nothing_at_all  # type: ignore[attr-defined]  # noqa: B018
    finally:
        restore()
    assert len(said) == 1
    assert "np.float is a name of NumPy 1" in said[0]
    with pytest.raises(AttributeError):
        np.float  # type: ignore[attr-defined]  # noqa: B018


def test_an_array_of_one_element_becomes_a_number_as_in_numpy_1() -> None:
    one_element.want(True)
    try:
        value = one_element.fetched(np.array([[1.5]], np.float32))
        assert "%.1f %d" % (value, value) == "1.5 1"  # noqa: UP031 - as scripts print it
        assert (int(value), repr(value)) == (1, "array([[1.5]], dtype=float32)")
        assert type(one_element.fetched(np.zeros([2]))) is np.ndarray
        with pytest.raises(TypeError):
            float(value + np.zeros([2]))
    finally:
        one_element.want(False)
    assert type(one_element.fetched(np.zeros([1]))) is np.ndarray
    assert type(one_element.fetched(np.array(1.5))) is np.float64


def test_six_is_there_for_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "modules", {name: one for name, one in sys.modules.items() if name[:3] != "six"})
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    install_six()
    script: dict[str, Any] = {}
    exec(
        "import six\nfrom six.moves import xrange, urllib, cPickle as pickle\n"
        "from six.moves.urllib.request import urlretrieve\n"
        "@six.add_metaclass(type)\nclass A(six.with_metaclass(type, object)): x = 1\n"
        "found = [(k, v) for k, v in six.iteritems({'a': 1})], six.ensure_str(b'b'), list(xrange(2)), A.x\n",
        script,
    )
    assert script["found"] == ([("a", 1)], "b", [0, 1], 1)
    assert script["urllib"].parse.quote("a b") == "a%20b"
