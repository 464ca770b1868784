"""Find the names and arguments of TensorFlow that a script uses and trainband lacks, without running the script."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trainband.compat.finder import path_of
from trainband.compat.missing import describe
from trainband.compat.python2 import Python2Error, parsed, read_source
from trainband.compat.tf1.modules import child, locate, look_up, spaces_of
from trainband.compat.tf1.names import everything
from trainband.compat.tf1.namespace import find

_GUARDS = ("ImportError", "ModuleNotFoundError", "AttributeError", "Exception")


@dataclass(frozen=True, slots=True, order=True)
class Missing:
    """A name that trainband lacks, or an argument of one that it has, and the line that uses it."""

    line: int
    name: str
    argument: str = ""

    def __str__(self) -> str:
        if self.argument:
            return f"{self.name} has no argument {self.argument!r} in trainband's TensorFlow 1 front end."
        return describe(self.name, everything())


@dataclass(slots=True)
class Report:
    """What a script uses of TensorFlow, its own modules included.

    Attributes:
      missing: by file, what is missing there, in the order of the lines.
      used: all names of TensorFlow that occur.
      python2: by file, why it is not Python 3.
    """

    missing: dict[Path, list[Missing]] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    python2: dict[Path, Python2Error] = field(default_factory=dict)

    @property
    def absent(self) -> set[str]:
        """The names that are missing, without arguments."""
        return {one.name for found in self.missing.values() for one in found if not one.argument}

    @property
    def coverage(self) -> str:
        """How much of what is used is there, in words."""
        there = sum(look_up(name) is None for name in self.used)
        return f"{there} of the {len(self.used)} names of TensorFlow that are used are there"


def check_files(script: Path, convert: bool = False) -> Report:
    """Check a script and the modules beside it that it imports.

    Args:
      convert: read what is not Python 3 as Python 2.

    Raises:
      OSError, UnicodeDecodeError: a file cannot be read.
    """
    report = Report()
    home, waiting, seen = script.resolve().parent, [script], {script.resolve()}
    while waiting:
        path = waiting.pop(0)
        try:
            tree = parsed(read_source(path), str(path), convert)
        except Python2Error as exc:
            report.python2[path] = exc
            continue
        checker = _Checker(tree)
        if checker.found:
            report.missing[path] = checker.found
        report.used |= checker.used
        for module in _own_modules(tree, path, home):
            if module.resolve() not in seen:
                seen.add(module.resolve())
                waiting.append(module)
    return report


def check(source: str, filename: str = "<script>") -> list[Missing]:
    """List what is missing for a script by itself, each once per line, in the order of the lines.

    Raises:
      Python2Error: the script is not Python 3.
    """
    return _Checker(parsed(source, filename)).found


class _Checker:
    """One walk through a file.

    Attributes:
      found: what is missing, in the order of the lines.
      used: all names of TensorFlow that occur.
    """

    def __init__(self, tree: ast.Module) -> None:
        self._aliases: dict[str, str] = {}
        self._guarded = set(_guarded(tree))
        self.used: set[str] = set()
        found = set(self._imported(tree))
        self._follow_assignments(tree)
        inner: set[ast.AST] = set()  # `tf.nn` within `tf.nn.relu` is no name of its own
        for node in ast.walk(tree):
            path = None if node in inner else self._dotted(node)
            if path is not None:
                part: ast.AST = node
                while isinstance(part, ast.Attribute):
                    inner.add(part := part.value)
                found |= set(self._looked_up(node, path))
            if isinstance(node, ast.Call):
                found |= set(self._arguments(node))
        self.found = sorted(_outermost(found))

    def _imported(self, tree: ast.AST) -> Iterator[Missing]:
        """Record the names that a script gives to TensorFlow's modules, and yield the modules that trainband lacks."""
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    path = path_of(alias.name)
                    if path is None:
                        continue
                    if spaces_of(path) is None:
                        yield from self._absent(node, path)
                    elif alias.asname:
                        self._aliases[alias.asname] = path
                    else:
                        self._aliases[alias.name.partition(".")[0]] = "tf"
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                path = path_of(node.module)
                if path is None:
                    continue
                if spaces_of(path) is None:
                    yield from self._absent(node, path)
                    continue
                for alias in node.names:
                    inner = f"{path}.{alias.name}"
                    if alias.name != "*":
                        missing = list(self._looked_up(node, inner))
                        if not missing and look_up(inner) is None:
                            self._aliases[alias.asname or alias.name] = inner
                        yield from missing

    def _follow_assignments(self, tree: ast.AST) -> None:
        """Follow `flags = tf.app.flags`, unless the name is also given to something else."""
        stored: dict[str, int] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                stored[node.id] = stored.get(node.id, 0) + 1
            elif isinstance(node, ast.arg):
                stored[node.arg] = 2
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                path, name = self._dotted(node.value), node.targets[0].id
                if path is not None and look_up(path) is None and stored[name] == 1:
                    self._aliases.setdefault(name, path)

    def _dotted(self, node: ast.AST) -> str | None:
        """Return `tf.nn.relu` for a node that is this attribute of TensorFlow, under whatever name the script uses."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id not in self._aliases:
            return None
        path = ".".join([self._aliases[node.id], *reversed(parts)])
        return path.replace("tf.compat.v1.", "tf.", 1) if path.startswith("tf.compat.v1.") else path

    def _looked_up(self, node: ast.AST, path: str) -> Iterator[Missing]:
        absent = look_up(path)
        if absent is not None:
            yield from self._absent(node, absent)
        elif name := _name_in(path):
            self.used.add(name)

    def _absent(self, node: ast.AST, path: str) -> Iterator[Missing]:
        if node not in self._guarded:
            self.used.add(path)
            yield Missing(getattr(node, "lineno", 0), path)

    def _arguments(self, node: ast.Call) -> Iterator[Missing]:
        """Yield the keywords of a call that trainband's function lacks."""
        path = self._dotted(node.func)
        if path is None or look_up(path) is not None or _name_in(path) != path or not node.keywords:
            return
        module, _, name = path.rpartition(".")
        try:
            parameters = inspect.signature(find(_module(module), name)).parameters
        except (TypeError, ValueError):
            return
        if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
            return
        for keyword in node.keywords:
            if keyword.arg is not None and keyword.arg not in parameters:
                yield Missing(node.lineno, path, keyword.arg)


def _module(path: str) -> str:
    """Return the namespace that a dotted name leads to: `tf.flags` for `tf.app.flags`."""
    module, *rest = path.split(".")
    for part in rest:
        module = child(module, part) or module
    return module


def _name_in(path: str) -> str | None:
    """Return the name in a dotted one, without its own attributes; `None` if the whole is a namespace."""
    module, *rest = path.split(".")
    at = module
    for part in rest:
        at = f"{at}.{part}"
        inner = child(module, part)
        if inner is None:
            return at if locate(module, part) else None
        module = inner
    return None


def _outermost(found: set[Missing]) -> set[Missing]:
    """Keep only `tf.contrib` if `tf.contrib.layers` is missing on the same line."""
    return {
        one
        for one in found
        if not any(other.line == one.line and one.name.startswith(f"{other.name}.") for other in found)
    }


def _guarded(tree: ast.AST) -> Iterator[ast.AST]:
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
            roots = [path.resolve().parents[max(node.level - 1, 0)], *([] if node.level else [home])]
        else:
            continue
        for name in filter(None, names):
            for root in roots:
                parts = name.split(".")
                packages = [root.joinpath(*parts[:i], "__init__.py") for i in range(1, len(parts) + 1)]
                files = [*packages, root.joinpath(*parts[:-1], f"{parts[-1]}.py")]
                yield from (file for file in files if file.is_file())
