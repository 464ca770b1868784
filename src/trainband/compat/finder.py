"""Redirect a TensorFlow 1 script's imports to the module that stands in for TensorFlow."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from trainband.compat.missing import MissingModule, describe
from trainband.compat.tf1.modules import spaces_of
from trainband.compat.tf1.names import NAMES, everything
from trainband.runtime.overrides import override

_ROOTS = {"tensorflow.compat.v1": "tf", "tensorflow": "tf", "trainband.compat.tf1": "tf"}
"""Modules that scripts import, and the namespaces that they are. The longest come first."""


def path_of(module: str) -> str | None:
    """Return a module as `tf.nn`, or `None` if it is not TensorFlow's."""
    for root, short in _ROOTS.items():
        if module == root or module.startswith(f"{root}."):
            return short + module[len(root) :]
    return None


class Finder(MetaPathFinder, Loader):
    """Finds `tensorflow` and its submodules here, whether or not TensorFlow is installed.

    Args:
      say: called once, with a line that tells the user.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._said = False

    @override
    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a spec for one of TensorFlow's modules, or `None` for a module of another library.

        Raises:
          MissingModule: trainband lacks this module of TensorFlow.
        """
        del path, target
        if fullname.partition(".")[0] != "tensorflow":
            return None
        if not self._said:
            self._said = True
            self._say("import tensorflow: this is trainband.compat.tf1, trainband's front end for TensorFlow 1")
        shown = str(path_of(fullname))
        if spaces_of(shown) is None:
            # The error does not name `fullname`: `from tensorflow.contrib import slim` would then hide it.
            raise MissingModule(describe(shown, everything()), name=shown)
        return ModuleSpec(fullname, self, is_package=True)

    @override
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandIn(spec.name, str(path_of(spec.name)))

    @override
    def exec_module(self, module: ModuleType) -> None:
        pass  # names are looked up when they are used


class _StandIn(ModuleType):
    """A module with TensorFlow's name and the contents of another module."""

    def __init__(self, name: str, real: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        self._real = real

    def __getattr__(self, name: str) -> object:
        if name == "__all__":  # what `from tensorflow import *` asks for
            return [one for one in dir(self) if not one.startswith("_")]
        if name.startswith("__") and name not in NAMES["tf"]:
            raise AttributeError(name)
        value: object = getattr(self._module(), name)
        return value

    def __dir__(self) -> list[str]:
        return dir(self._module())

    def _module(self) -> ModuleType:
        from trainband.compat.tf1.namespace import namespace

        return namespace(self._real)


def install(say: Callable[[str], None]) -> Finder:
    """Make `import tensorflow` find the module that stands in for it."""
    finder = Finder(say)
    sys.meta_path.insert(0, finder)
    return finder


def uninstall(finder: Finder) -> None:
    """Undo `install`, and forget the modules that were imported in between."""
    sys.meta_path.remove(finder)
    for name in [name for name in sys.modules if name.partition(".")[0] == "tensorflow"]:
        del sys.modules[name]
