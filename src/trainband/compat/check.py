"""Find the names of TensorFlow that a script uses and trainband lacks, without running the script."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trainband.compat.finder import INPUT_DATA
from trainband.compat.missing import describe
from trainband.compat.tf1.names import NAMES, everything, look_up

_ROOTS = {"tensorflow": "tf", "tensorflow.compat.v1": "tf", "trainband.compat.tf1": "tf"}
_ELSEWHERE = ("tensorflow.examples", "tensorflow.examples.tutorials", "tensorflow.examples.tutorials.mnist")


@dataclass(frozen=True, slots=True, order=True)
class Missing:
    """A name that trainband lacks, and the line that uses it."""

    line: int
    name: str

    def __str__(self) -> str:
        return describe(self.name, everything())


def check(source: str, filename: str = "<script>") -> list[Missing]:
    """List the names of TensorFlow in a script that trainband lacks, each once per line, in the order of the lines.

    Raises:
      SyntaxError: the script is not Python 3.
    """
    tree = ast.parse(source, filename)
    aliases: dict[str, str] = {}
    found = set(_imported(tree, aliases))
    _follow_assignments(tree, aliases)
    for node in ast.walk(tree):
        path = _dotted(node, aliases)
        if path is not None:
            absent = look_up(path)
            if absent is not None:
                found.add(Missing(getattr(node, "lineno", 0), absent))
    return sorted(_outermost(found))


def check_file(path: Path) -> list[Missing]:
    """Like `check`, for a file."""
    return check(path.read_text(encoding="utf-8"), str(path))


def _imported(tree: ast.AST, aliases: dict[str, str]) -> Iterator[Missing]:
    """Record the names that a script gives to TensorFlow's modules, and yield the modules that trainband lacks."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                path = _path_of(alias.name)
                if path is None:
                    continue
                if path not in NAMES and alias.name not in _ELSEWHERE and alias.name != INPUT_DATA:
                    yield Missing(node.lineno, path)
                elif alias.asname:
                    if path in NAMES:
                        aliases[alias.asname] = path
                else:
                    aliases["tensorflow"] = "tf"
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            path = _path_of(node.module)
            if path is None or node.module in _ELSEWHERE or node.module == INPUT_DATA:
                continue
            if path not in NAMES:
                yield Missing(node.lineno, path)
                continue
            for alias in node.names:
                inner = f"{path}.{alias.name}"
                if alias.name == "examples":
                    continue
                if look_up(inner) is not None:
                    yield Missing(node.lineno, inner)
                else:
                    aliases[alias.asname or alias.name] = inner


def _path_of(module: str) -> str | None:
    """Return a module as `tf.nn`, or `None` if it is not TensorFlow's."""
    for root, short in sorted(_ROOTS.items(), key=lambda pair: -len(pair[0])):
        if module == root or module.startswith(f"{root}."):
            return short + module[len(root) :]
    return None


def _follow_assignments(tree: ast.AST, aliases: dict[str, str]) -> None:
    """`flags = tf.app.flags` gives a namespace another name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            path = _dotted(node.value, aliases)
            if path is not None and look_up(path) is None:
                aliases.setdefault(node.targets[0].id, path)


def _dotted(node: ast.AST, aliases: dict[str, str]) -> str | None:
    """Return `tf.nn.relu` for a node that is this attribute of TensorFlow, under whatever name the script uses."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not parts or not isinstance(node, ast.Name) or node.id not in aliases:
        return None
    path = ".".join([aliases[node.id], *reversed(parts)])
    return path.replace("tf.compat.v1.", "tf.", 1) if path.startswith("tf.compat.v1.") else path


def _outermost(found: set[Missing]) -> set[Missing]:
    """Keep only `tf.contrib` if `tf.contrib.layers` is missing on the same line."""
    return {
        one
        for one in found
        if not any(other.line == one.line and one.name.startswith(f"{other.name}.") for other in found)
    }
