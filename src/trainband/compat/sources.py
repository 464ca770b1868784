"""The files of a script: itself, and the modules beside it that it imports."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trainband.compat.python2 import Python2Error, parsed, read_source

_GUARDS = ("ImportError", "ModuleNotFoundError", "AttributeError", "Exception")


@dataclass(slots=True)
class Sources:
    """What a script consists of.

    Attributes:
      trees: the syntax tree of each file, the script's first.
      python2: by file, why it is not Python 3.
    """

    trees: dict[Path, ast.Module] = field(default_factory=dict)
    python2: dict[Path, Python2Error] = field(default_factory=dict)


def read_files(script: Path, convert: bool = False) -> Sources:
    """Read a script and the modules beside it that it imports.

    Args:
      convert: read what is not Python 3 as Python 2.

    Raises:
      OSError, UnicodeDecodeError: a file cannot be read.
      SyntaxError: a file is not Python at all.
    """
    found = Sources()
    home, waiting, seen = script.resolve().parent, [script], {script.resolve()}
    while waiting:
        path = waiting.pop(0)
        try:
            tree = parsed(read_source(path), str(path), convert)
        except Python2Error as exc:
            found.python2[path] = exc
            continue
        found.trees[path] = tree
        for module in _own_modules(tree, path, home):
            if module.resolve() not in seen:
                seen.add(module.resolve())
                waiting.append(module)
    return found


def guarded(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield what may fail, because the script catches that a name is missing."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Try) and any(_catches(handler) for handler in node.handlers):
            for statement in node.body:
                yield from ast.walk(statement)


def _catches(handler: ast.ExceptHandler) -> bool:
    kinds = [] if handler.type is None else ast.walk(handler.type)
    return handler.type is None or any(isinstance(one, ast.Name) and one.id in _GUARDS for one in kinds)


def _own_modules(tree: ast.AST, path: Path, home: Path) -> Iterator[Path]:
    """Yield the files beside a script, or beside the module that imports them, that it imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names: Sequence[str] = [alias.name for alias in node.names]
            roots = [home, path.parent]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            names = [base, *(f"{base}.{alias.name}".lstrip(".") for alias in node.names)]
            above = path.resolve().parents[max(node.level - 1, 0) :]  # none where there are more dots than directories
            roots = [*above[:1], *([] if node.level else [home])]
        else:
            continue
        for name in filter(None, names):
            for root in roots:
                parts = name.split(".")
                packages = [root.joinpath(*parts[:i], "__init__.py") for i in range(1, len(parts) + 1)]
                files = [*packages, root.joinpath(*parts[:-1], f"{parts[-1]}.py")]
                yield from (file for file in files if file.is_file())
