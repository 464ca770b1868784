"""The layers: imports point one way, and only the edge looks at the environment."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "src" / "trainband"

LAYERS = [
    "version",
    "errors",
    "runtime",
    "data",
    "rows",
    "cluster",
    "checkpoint",
    "wire",
    "launch",
    "model",
    "job",
    "ps",
    "spmd",
    "strategies",
    "compress",
    "export",
    "serve",
    "monitor",
    "train",
    "keras",
    "compat",
    "cli",
    "demo",
]
"""Each may import those before it."""

FILES = sorted(ROOT.rglob("*.py"))


def module_of(path: Path) -> tuple[str, ...]:
    """`ps/rules/base.py` -> ("trainband", "ps", "rules", "base")."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ("trainband", *(parts[:-1] if parts[-1] == "__init__" else parts))


@cache
def imports_of(path: Path, source: str | None = None) -> tuple[tuple[int, str], ...]:
    """(line, module) of everything that a file imports, at its top or inside functions, by absolute name."""
    return tuple(_imports_of(path, source))


def _imports_of(path: Path, source: str | None) -> Iterator[tuple[int, str]]:
    module = module_of(path)
    package = module if path.name == "__init__.py" else module[:-1]
    for node in ast.walk(ast.parse(source if source is not None else path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = list(package[: len(package) - node.level + 1]) if node.level else []
            where = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                yield node.lineno, f"{where}.{alias.name}"


def layer_of(module: str) -> str | None:
    """The folder or file of trainband that a module is in; "" for the package itself, None for others' modules."""
    parts = module.split(".")
    if parts[0] != "trainband":
        return None
    return parts[1] if len(parts) > 1 else ""


def upward(path: Path, source: str | None = None) -> list[str]:
    """The imports of a file that point the wrong way."""
    here = layer_of(".".join(module_of(path)))
    assert here is not None
    allowed = set(LAYERS[: LAYERS.index(here) + 1])
    if here == LAYERS[-1]:
        allowed.add("")  # the package itself, through which a program reaches every other layer
    return [
        f"{path.relative_to(ROOT)}:{line} imports {module}"
        for line, module in imports_of(path, source)
        if layer_of(module) is not None and layer_of(module) not in allowed
    ]


def test_every_folder_has_its_place() -> None:
    found = {path.stem if path.is_file() else path.name for path in ROOT.iterdir() if path.suffix in ("", ".py")}
    assert found - {"__init__", "__pycache__"} == set(LAYERS)


def test_imports_point_one_way() -> None:
    checked = [path for path in FILES if path.parent != ROOT or path.stem == "errors"]
    assert [found for path in checked for found in upward(path)] == []


CAUGHT: list[tuple[str, str, str]] = [
    # file, what stands in it -> what is found
    ("wire/x.py", "from trainband.ps.shard.shard import Shard", "wire/x.py:1 imports trainband.ps.shard.shard.Shard"),
    ("wire/x.py", "def f():\n    import trainband.train", "wire/x.py:2 imports trainband.train"),
    ("wire/x.py", "from ..ps import client", "wire/x.py:1 imports trainband.ps.client"),
    ("wire/__init__.py", "from ..ps import client", "wire/__init__.py:1 imports trainband.ps.client"),
    ("wire/__init__.py", "from .. import strategies", "wire/__init__.py:1 imports trainband.strategies"),
    ("ps/rules/x.py", "from ...train.feed import feed", "ps/rules/x.py:1 imports trainband.train.feed.feed"),
    ("data/x.py", "from trainband.cluster import Task", "data/x.py:1 imports trainband.cluster.Task"),
    ("errors.py", "from trainband import data", "errors.py:1 imports trainband.data"),
]


@pytest.mark.parametrize(("file", "source", "found"), CAUGHT)
def test_the_test_would_find_one(file: str, source: str, found: str) -> None:
    assert upward(ROOT / file, source) == [found]


FINE: list[tuple[str, str]] = [
    ("ps/rules/x.py", "from ..members import Member\nfrom ...wire import messages\nfrom . import base"),
    ("wire/__init__.py", "from .memory import MemoryTransport\nfrom ..errors import Refused"),
    ("data/x.py", "import numpy\nfrom .idx import read\nfrom trainband.errors import DataError"),
]


@pytest.mark.parametrize(("file", "source"), FINE)
def test_and_would_not_find_what_is_fine(file: str, source: str) -> None:
    assert upward(ROOT / file, source) == []


def test_only_one_file_knows_flight() -> None:
    found = {
        str(path.relative_to(ROOT))
        for path in FILES
        for _, module in imports_of(path)
        if module.startswith("pyarrow.flight")
    }
    assert all(name == "wire/flight.py" or name.startswith("wire/flight/") for name in found)
    assert found


def test_only_the_edge_reads_the_environment() -> None:
    found = []
    for path in FILES:
        name = str(path.relative_to(ROOT))
        if name.startswith(("cli/", "cluster/resolvers/")):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            reads = (
                (isinstance(node, ast.Attribute) and node.attr in ("environ", "environb", "getenv"))
                or (isinstance(node, ast.Name) and node.id in ("getenv",))
                or (
                    isinstance(node, ast.ImportFrom)
                    and node.module == "os"
                    and any(a.name in ("environ", "getenv") for a in node.names)
                )
            )
            if reads and not (isinstance(node, ast.Attribute) and _is_self(node)):
                found.append(f"{name}:{node.lineno}")  # type: ignore[attr-defined]
    assert found == []


def module_named(name: str, known: Collection[str]) -> str | None:
    """The module of trainband that an import of `name` reaches: itself, or the one that it is a name of."""
    while name and name not in known:
        name = name.rpartition(".")[0]
    return name or None


def circles(imports: Mapping[str, Collection[str]]) -> list[list[str]]:
    """The groups of modules each of which imports all others of its group, through however many."""

    def reached(start: str) -> set[str]:
        found: set[str] = set()
        waiting = list(imports[start])
        while waiting:
            one = waiting.pop()
            if one not in found:
                found.add(one)
                waiting += imports[one]
        return found

    reach = {module: reached(module) for module in imports}
    groups = {tuple(sorted(a for a in reach if a in reach[b] and b in reach[a])) for b in reach if b in reach[b]}
    return sorted(map(list, groups))


def test_no_file_imports_itself_through_others() -> None:
    # Imports inside functions and for type checking alone count, too: a reader cannot take two such files apart either.
    modules = {".".join(module_of(path)): path for path in FILES}
    imports = {
        module: {found for _, name in imports_of(path) if (found := module_named(name, modules)) not in (None, module)}
        for module, path in modules.items()
    }
    chosen = {
        module: {other for other in others if other is not None and other.split(".")[1:2] == module.split(".")[1:2]}
        for module, others in imports.items()
    }
    assert circles(chosen) == []


KNOTS = {
    ("compat", "checkpoints", "tf1"),
    ("compat/tf1", "estimators", "feature_columns", "models", "modules.py", "names.py", "namespace.py"),
    ("compat/tf1", "input", "networks", "operations", "saved_models", "scripts", "sessions", "training"),
    ("compat/tf2", "keras", "keras_names.py", "saving"),
}
"""Folders of compat whose children still import each other in circles; nothing may be added."""


def test_no_child_of_a_folder_imports_itself_through_others() -> None:
    # The children of a folder are its files, except the one that makes it a package, and its subfolders.
    modules = {".".join(module_of(path)): path for path in FILES if path.name != "__init__.py"}
    children: dict[Path, dict[str, set[str]]] = {}
    for path in modules.values():
        for _, name in imports_of(path):
            other = modules.get(module_named(name, modules) or "")
            if other is not None and other != path:
                folder = Path(os.path.commonpath([path, other]))
                one, another = path.relative_to(folder).parts[0], other.relative_to(folder).parts[0]
                found = children.setdefault(folder, {})
                found.setdefault(one, set()).add(another)
                found.setdefault(another, set())
    knots = {(str(folder.relative_to(ROOT)), *group) for folder, found in children.items() for group in circles(found)}
    assert knots == KNOTS


@pytest.mark.parametrize(
    ("imports", "found"),
    [
        ({"a": ["b"], "b": ["c"], "c": []}, []),
        ({"a": ["b"], "b": ["a"], "c": ["a"]}, [["a", "b"]]),
        ({"a": ["b"], "b": ["c"], "c": ["a"], "d": ["e"], "e": ["d"]}, [["a", "b", "c"], ["d", "e"]]),
    ],
)
def test_a_circle_would_be_found(imports: dict[str, list[str]], found: list[list[str]]) -> None:
    assert circles(imports) == found


PRIVATE = {
    "jax": ("spmd/jax_internals.py", "ps/program/check/jax_internals.py"),
    "jaxlib": ("spmd/jax_internals.py", "ps/program/check/jax_internals.py"),
    "keras": ("keras/keras_internals.py", "compat/tf2/keras/inside.py"),
}
"""Libraries of which we need what they do not promise to keep, and the files that may: one in a layer."""


def test_what_is_private_of_a_library_is_used_in_one_file_of_a_layer() -> None:
    for path in FILES:
        for line, module in imports_of(path):
            library, *parts = module.split(".")
            if library == "trainband":
                continue
            if module.startswith("jaxlib.mlir.") or any(part == "src" or part[0] == "_" != part[-1] for part in parts):
                assert path.relative_to(ROOT).as_posix() in PRIVATE.get(library, ()), f"{path}:{line} imports {module}"


def _is_self(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id == "self"


ALONE = """
import sys, threading
import trainband
from trainband import ClusterSpec, errors
assert ClusterSpec({"ps": ["a:1"], "worker": ["b:1"]}).chief
assert threading.active_count() == 1, threading.enumerate()
heavy = {"jax", "jaxlib", "numpy", "pyarrow", "optax", "msgspec", "rich", "matplotlib", "click"}
print(*sorted({name.partition(".")[0] for name in sys.modules} & heavy))
"""


def test_importing_has_no_effects() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", ALONE],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT.parent)},
    )
    assert (done.stdout, done.stderr, done.returncode) == ("\n", "", 0)
