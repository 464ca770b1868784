"""What `import keras` is in a script of TensorFlow 2: Keras 3, whose layers compute on this face's tensors."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

from trainband.cluster.resolvers.keras_backend import replace_tensorflow
from trainband.runtime.overrides import override
from trainband.runtime.waiting import say_on_stderr


class _Bridged(Loader):
    """Loads Keras, and then gives its classes their calls on tensors."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    @override
    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    @override
    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        inside = sys.modules.get("trainband.keras.keras_internals")
        if inside is None or hasattr(inside, "keras"):  # else whoever is importing it will do this
            from trainband.compat.tf2.keras_names import keras_module

            keras_module()


class KerasFinder(MetaPathFinder):
    """Finds the package `keras` where it is, and has it bridged."""

    @override
    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of `keras` itself, or `None` for any other module."""
        spec = PathFinder.find_spec(fullname, path, target) if fullname == "keras" else None
        if spec is None or spec.loader is None:
            return None
        if replace_tensorflow():  # scripts set it just before they import Keras
            say_on_stderr("KERAS_BACKEND=tensorflow: Keras computes with JAX, on this front end's tensors")
        spec.loader = _Bridged(spec.loader)
        return spec


def install_bridge() -> None:
    """Bridge Keras as soon as it is imported."""
    sys.meta_path.insert(0, KerasFinder())
