"""TensorFlow 2, by trainband: `import trainband.compat.tf2 as tf`.

What a script computes is noted and run as compiled programs when a value is looked at, so that a loop of operations
under a tape costs little more than one function. `docs/compat.md` says what there is and what differs.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the namespaces of these names, and not the folders
    data: Any
    distribute: Any
    keras: Any


class _Front(ModuleType):
    """A package in which `data` is TensorFlow's namespace, and not the folder of that name."""

    def __setattr__(self, name: str, value: Any) -> None:
        is_folder = isinstance(value, ModuleType) and value.__name__ == f"{__name__}.{name}"
        if not is_folder or name not in ("data", "distribute", "keras"):  # what an import would set
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Front


def __getattr__(name: str) -> Any:
    from trainband.compat.tf2.namespace import find

    value = globals()[name] = find("tf", name)  # it is found at once from now on
    return value


def __dir__() -> list[str]:
    from trainband.compat.tf2.modules import names_of

    return names_of("tf")
