"""Redirect a script's imports of TensorFlow to the module that stands in for TensorFlow."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

from trainband.compat.faces import Face, face_of
from trainband.compat.missing import MissingModule
from trainband.runtime.overrides import override

_ROOTS = {
    1: {"tensorflow.compat.v1": "tf", "tensorflow": "tf", "trainband.compat.tf1": "tf"},
    2: {"tensorflow.compat.v2": "tf", "tensorflow": "tf", "trainband.compat.tf2": "tf", "tf_keras": "tf.keras"},
}
"""Modules that scripts of a version import, and the namespaces that they are. The longest come first."""

_NOT_THERE = {
    "tensorflow_datasets": "give tf.data.Dataset.from_tensor_slices the arrays of a data set, or read its files",
    "tensorflow_addons": "its layers and optimizers are in tf.keras by now, or are few lines of a script",
    "tensorflow_probability": "use jax.scipy.stats or distributions of your own",
    "tensorflow_hub": "load a model of Keras's with tf.keras.applications or tf.keras.models.load_model",
    "tensorflow_text": "split the text into numbers before, with the tokenizer of another library",
}
"""Packages that build upon TensorFlow itself, and what to do without them."""


def path_of(module: str, version: int = 1) -> str | None:
    """Return a module as `tf.nn`, or `None` if it is not TensorFlow's."""
    for root, short in _ROOTS[version].items():
        if module == root or module.startswith(f"{root}."):
            return short + module[len(root) :]
    return None


class Finder(MetaPathFinder, Loader):
    """Finds `tensorflow` and its submodules here, whether or not TensorFlow is installed.

    Args:
      say: called once, with a line that tells the user.
      face: the front end that stands in for TensorFlow.
      reason: why it is this one, for that line.
    """

    def __init__(self, say: Callable[[str], None], face: Face, reason: str = "") -> None:
        self._say = say
        self._said = False
        self._face = face
        self._reason = reason

    @override
    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a spec for one of TensorFlow's modules, or `None` for a module of another library.

        Raises:
          MissingModule: trainband lacks this module of TensorFlow.
        """
        del path, target
        root = fullname.partition(".")[0]
        if fullname in _NOT_THERE and self._face.number == 2 and PathFinder.find_spec(fullname) is None:
            raise MissingModule(f"trainband has no {root}: {_NOT_THERE[root]}.", name=root)
        if root != "tensorflow" and not (root == "tf_keras" and self._face.number == 2):
            return None
        if not self._said:
            self._said = True
            self._say(announcement(self._face, self._reason))
        shown = str(path_of(fullname, self._face.number))
        if self._face.spaces_of(shown) is None:
            # The error does not name `fullname`: `from tensorflow.contrib import slim` would then hide it.
            raise MissingModule(self._face.describe(shown), name=shown)
        return ModuleSpec(fullname, self, is_package=True)

    @override
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandIn(spec.name, str(path_of(spec.name, self._face.number)), self._face)

    @override
    def exec_module(self, module: ModuleType) -> None:
        """Leaves it empty, because names are looked up when they are used; a module of Keras's becomes that itself."""
        if isinstance(module, _StandIn) and (real := module.real_one()) is not None:
            sys.modules[module.__name__] = real


class _StandIn(ModuleType):
    """A module with TensorFlow's name and the contents of another module."""

    def __init__(self, name: str, real: str, face: Face) -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        self._real = real
        self._face = face

    def __getattr__(self, name: str) -> object:
        if name == "__all__":  # what `from tensorflow import *` asks for
            return [one for one in dir(self) if not one.startswith("_")]
        if name.startswith("__") and self._face.locate("tf", name) is None:
            raise AttributeError(name)
        value: object = getattr(self._module(), name)
        return value

    def __dir__(self) -> list[str]:
        return dir(self._module())

    def real_one(self) -> ModuleType | None:
        """The module to which it stands, if scripts are to get that: one of Keras's."""
        is_keras = self._face.number == 2 and (self._real == "tf.keras" or self._real.startswith("tf.keras."))
        return self._module() if is_keras else None

    def _module(self) -> ModuleType:
        return self._face.module(self._real)


def announcement(face: Face, reason: str = "") -> str:
    """The line that tells the user what stands in for TensorFlow, and why."""
    what = f"import tensorflow: this is {face.package}, trainband's front end for TensorFlow {face.number}"
    return f"{what} ({reason}); --tensorflow {3 - face.number} chooses the other" if reason else what


def install(say: Callable[[str], None], version: int = 1, reason: str = "") -> Finder:
    """Make `import tensorflow` find the module that stands in for it.

    Args:
      say: called once, with a line that tells the user.
      version: of TensorFlow.
      reason: why it is this one.
    """
    finder = Finder(say, face_of(version), reason)
    sys.meta_path.insert(0, finder)
    return finder


def uninstall(finder: Finder) -> None:
    """Undo `install`, and forget the modules that were imported in between."""
    sys.meta_path.remove(finder)
    for name in [name for name in sys.modules if name.partition(".")[0] in ("tensorflow", "tf_keras")]:
        del sys.modules[name]
