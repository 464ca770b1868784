"""`tf.keras` as a tree of modules: our own names first, then Keras 3's, found when they are first used."""

from __future__ import annotations

from functools import wraps
from importlib import import_module
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from trainband.compat.missing import missing_name
from trainband.compat.tf2.eager.tensor import Tensor
from trainband.compat.tf2.keras import install
from trainband.compat.tf2.keras.inside import keras, modules
from trainband.compat.tf2.keras.lifting import leaves_of, lifted_function, plain
from trainband.compat.tf2.keras.names import FROM, LIFTED, OWN
from trainband.compat.tf2.keras.refused import REFUSED

_FILES = "trainband.compat.tf2.keras"
_known: dict[str, KerasNamespace] = {}


class KerasNamespace(ModuleType):
    """A module of `tf.keras`.

    Args:
      path: within it, such as `layers.experimental`.
    """

    def __init__(self, path: str) -> None:
        super().__init__(f"tf.keras.{path}".rstrip("."), f"TensorFlow 2's `tf.keras.{path}`, by Keras 3 and trainband.")
        self.__path__: list[str] = []
        self._path = path

    def __getattr__(self, name: str) -> Any:
        value = find(self._path, name)
        setattr(self, name, value)
        return value

    def __dir__(self) -> list[str]:
        sources = modules(FROM.get(self._path, self._path))
        theirs = [name for source in sources for name in dir(source) if not name.startswith("_") and name != "src"]
        inner = [one.rpartition(".")[2] for one in OWN if one and one.rpartition(".")[0] == self._path]
        return sorted({*OWN.get(self._path, {}), *theirs, *inner})


def find(path: str, name: str) -> Any:
    """What a module of `tf.keras` has under a name.

    Raises:
      MissingName: nothing.
    """
    inner = f"{path}.{name}".lstrip(".")
    if inner in REFUSED:
        raise AttributeError(REFUSED[inner])
    if inner in OWN:
        return namespace(inner)
    if name in OWN.get(path, {}):
        file, own = OWN[path][name]
        return getattr(import_module(f"{_FILES}.{file}"), own)
    source = next((one for one in modules(FROM.get(path, path)) if hasattr(one, name)), None)
    if name == "__version__":
        return keras.__version__
    if source is None or name.startswith("__") or name == "src":
        raise AttributeError(name) if name.startswith("__") else _missing(path, name)
    value = getattr(source, name)
    if isinstance(value, ModuleType):
        return namespace(FROM.get(path, path) + f".{name}" if FROM.get(path, path) else name)
    if isinstance(value, FunctionType | BuiltinFunctionType):
        return (
            lifted_function(value, inner, takes_lists=not path.startswith("ops"))
            if path in LIFTED
            else _of_arrays(value)
        )
    if path in ("metrics", "losses", "") or not path.startswith("optimizers"):
        return _from_own(path, name, value)
    return value


def _from_own(path: str, name: str, value: Any) -> Any:
    """Keras's class; in a namespace of Keras 2, ours, if the namespace that has it now has one of our own."""
    source = FROM.get(path)
    if source is not None and name in OWN.get(source, {}):
        return find(source, name)
    return value


def _missing(path: str, name: str) -> Exception:
    space = f"tf.keras.{path}".rstrip(".")
    return missing_name(space, name, [f"{space}.{one}" for one in dir(namespace(path))], 2)


def _of_arrays(function: Any) -> Any:
    """A function of Keras's that is given arrays in place of tensors."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if any(isinstance(one, Tensor) for one in leaves_of((args, kwargs))):
            args, kwargs = plain(args), plain(kwargs)
        return function(*args, **kwargs)

    return call


def namespace(path: str) -> KerasNamespace:
    """The module at a path within `tf.keras`."""
    if path not in _known:
        install.once()
        _known[path] = KerasNamespace(path)
    return _known[path]


def keras_module() -> KerasNamespace:
    """`tf.keras`."""
    return namespace("")
