"""Find the names and arguments of TensorFlow that a script uses and trainband lacks, without running the script."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from trainband.compat.faces import Face, face_of
from trainband.compat.finder import path_of
from trainband.compat.python2 import Python2Error, parsed
from trainband.compat.sources import guarded, read_files
from trainband.compat.version import Choice, choose


@dataclass(frozen=True, slots=True, order=True)
class Missing:
    """A name that trainband lacks, or an argument of one that it has, and the line that uses it."""

    line: int
    name: str
    argument: str = ""
    face: int = 1

    def __str__(self) -> str:
        if self.argument:
            return f"{self.name} has no argument {self.argument!r} in trainband's TensorFlow {self.face} front end."
        return face_of(self.face).describe(self.name)


@dataclass(slots=True)
class Report:
    """What a script uses of TensorFlow, its own modules included.

    Attributes:
      missing: by file, what is missing there, in the order of the lines.
      used: all names of TensorFlow that occur.
      python2: by file, why it is not Python 3.
      choice: the front end that it needs.
    """

    missing: dict[Path, list[Missing]] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    python2: dict[Path, Python2Error] = field(default_factory=dict)
    choice: Choice = field(default_factory=lambda: Choice(1, ""))

    @property
    def absent(self) -> set[str]:
        """The names that are missing, without arguments."""
        return {one.name for found in self.missing.values() for one in found if not one.argument}

    @property
    def coverage(self) -> str:
        """How much of what is used is there, in words."""
        face = face_of(self.choice.number)
        there = sum(face.look_up(name) is None for name in self.used)
        return f"{there} of the {len(self.used)} names of TensorFlow {face.number} that are used are there"


def check_files(script: Path, convert: bool = False, version: int | None = None) -> Report:
    """Check a script and the modules beside it that it imports.

    Args:
      convert: read what is not Python 3 as Python 2.
      version: of TensorFlow; the one for which the script is written, if left out.

    Raises:
      OSError, UnicodeDecodeError: a file cannot be read.
    """
    sources = read_files(script, convert)
    choice = choose(sources.trees) if version is None else Choice(version, "")
    report = Report(python2=sources.python2, choice=choice)
    for path, tree in sources.trees.items():
        checker = _Checker(tree, face_of(choice.number))
        if checker.found:
            report.missing[path] = checker.found
        report.used |= checker.used
    return report


def check(source: str, filename: str = "<script>", version: int | None = None) -> list[Missing]:
    """List what is missing for a script by itself, each once per line, in the order of the lines.

    Raises:
      Python2Error: the script is not Python 3.
    """
    tree = parsed(source, filename)
    return _Checker(tree, face_of(version or choose({Path(filename): tree}).number)).found


class _Checker:
    """One walk through a file.

    Attributes:
      found: what is missing, in the order of the lines.
      used: all names of TensorFlow that occur.
    """

    def __init__(self, tree: ast.Module, face: Face) -> None:
        self._face = face
        self._aliases: dict[str, str] = {}
        self._guarded = set(guarded(tree))
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
                    path = path_of(alias.name, self._face.number)
                    if path is None:
                        continue
                    if self._face.spaces_of(path) is None:
                        yield from self._absent(node, path)
                    elif alias.asname:
                        self._aliases[alias.asname] = path
                    else:
                        root = alias.name.partition(".")[0]
                        self._aliases[root] = str(path_of(root, self._face.number) or "tf")
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                path = path_of(node.module, self._face.number)
                if path is None:
                    continue
                if self._face.spaces_of(path) is None:
                    yield from self._absent(node, path)
                    continue
                for alias in node.names:
                    inner = f"{path}.{alias.name}"
                    if alias.name != "*":
                        missing = list(self._looked_up(node, inner))
                        if not missing and self._face.look_up(inner) is None:
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
                if path is not None and self._face.look_up(path) is None and stored[name] == 1:
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
        of_first = self._face.number == 1 and path.startswith("tf.compat.v1.")
        return path.replace("tf.compat.v1.", "tf.", 1) if of_first else path

    def _looked_up(self, node: ast.AST, path: str) -> Iterator[Missing]:
        absent = self._face.look_up(path)
        if absent is not None:
            yield from self._absent(node, absent)
        elif name := _name_in(path, self._face):
            self.used.add(name)

    def _absent(self, node: ast.AST, path: str) -> Iterator[Missing]:
        if node not in self._guarded:
            self.used.add(path)
            yield Missing(getattr(node, "lineno", 0), path, face=self._face.number)

    def _arguments(self, node: ast.Call) -> Iterator[Missing]:
        """Yield the keywords of a call that trainband's function lacks."""
        path = self._dotted(node.func)
        if (
            path is None
            or self._face.look_up(path) is not None
            or _name_in(path, self._face) != path
            or not node.keywords
        ):
            return
        module, _, name = path.rpartition(".")
        try:
            parameters = inspect.signature(self._face.find(_module(module, self._face), name)).parameters
        except (TypeError, ValueError):
            return
        if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
            return
        for keyword in node.keywords:
            if keyword.arg is not None and keyword.arg not in parameters:
                yield Missing(node.lineno, path, keyword.arg, self._face.number)


def _module(path: str, face: Face) -> str:
    """Return the namespace that a dotted name leads to: `tf.flags` for `tf.app.flags`."""
    module, *rest = path.split(".")
    for part in rest:
        module = face.child(module, part) or module
    return module


def _name_in(path: str, face: Face) -> str | None:
    """Return the name in a dotted one, without its own attributes; `None` if the whole is a namespace."""
    module, *rest = path.split(".")
    at = module
    for part in rest:
        at = f"{at}.{part}"
        inner = face.child(module, part)
        if inner is None:
            return at if face.locate(module, part) else None
        module = inner
    return None


def _outermost(found: set[Missing]) -> set[Missing]:
    """Keep only `tf.contrib` if `tf.contrib.layers` is missing on the same line."""
    return {
        one
        for one in found
        if not any(other.line == one.line and one.name.startswith(f"{other.name}.") for other in found)
    }
