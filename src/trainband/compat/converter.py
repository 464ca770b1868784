"""Convert the modules beside a script of Python 2 when they are imported."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from trainband.compat.python2 import converted, read_source
from trainband.runtime.overrides import override


class _Loader(SourceFileLoader):
    """Compiles what a file becomes in Python 3; nothing is cached."""

    @override
    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        code: CodeType = compile(converted(read_source(Path(path)), path), path, "exec", dont_inherit=True)
        return code


class Converter(MetaPathFinder):
    """Finds the modules below a directory.

    Args:
      home: where the script is.
    """

    def __init__(self, home: Path) -> None:
        self._home = home

    @override
    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a spec for a module below the directory, or `None` for any other."""
        spec = PathFinder.find_spec(fullname, [str(self._home)] if path is None else path, target)
        if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
            return None
        if not Path(spec.origin).resolve().is_relative_to(self._home):
            return None
        spec.loader = _Loader(fullname, spec.origin)
        return spec


def install_converter(home: Path) -> Converter:
    """Make imports convert the modules below a directory."""
    converter = Converter(home)
    sys.meta_path.insert(0, converter)
    return converter
