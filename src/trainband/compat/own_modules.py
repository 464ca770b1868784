"""Compile a script and the modules beside it, from Python 2 where that is wanted, and with NumPy 2's methods."""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from trainband.compat.python2 import parsed, read_source
from trainband.runtime.overrides import override


class _ToBytes(ast.NodeTransformer):
    """Replaces `array.tostring()`, which NumPy has no more."""

    @override
    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "tostring" and not (node.args or node.keywords):
            node.func.attr = "tobytes"
        return node


def compiled(tree: ast.Module, filename: str) -> CodeType:
    """Compile a file of a script."""
    code: CodeType = compile(_ToBytes().visit(tree), filename, "exec", dont_inherit=True)
    return code


class _Loader(SourceFileLoader):
    """Compiles what a file becomes; nothing is cached."""

    def __init__(self, fullname: str, path: str, convert: bool) -> None:
        super().__init__(fullname, path)
        self._convert = convert

    @override
    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        in_package = "." in fullname or self.is_package(fullname)
        return compiled(parsed(read_source(Path(path)), path, self._convert, in_package), path)


class OwnModules(MetaPathFinder):
    """Finds the modules below a directory.

    Args:
      home: where the script is.
      convert: whether they are converted from Python 2.
    """

    def __init__(self, home: Path, convert: bool) -> None:
        self._home = home
        self._convert = convert

    @override
    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a spec for a module below the directory, or `None` for any other, such as one of an environment."""
        place = self._home.joinpath(*fullname.split("."))
        if not (place.is_dir() or place.with_name(f"{place.name}.py").is_file()):
            return None
        spec = PathFinder.find_spec(fullname, [str(self._home)] if path is None else path, target)
        if spec is None or spec.origin not in (f"{place}.py", str(place / "__init__.py")):
            return None
        spec.loader = _Loader(fullname, spec.origin, self._convert)
        return spec


def install_own_modules(home: Path, convert: bool) -> OwnModules:
    """Find the modules below a directory in this way."""
    finder = OwnModules(home, convert)
    sys.meta_path.insert(0, finder)
    return finder
