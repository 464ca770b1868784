"""Sizes of classes and functions outside compat: what has outgrown them is to be cut by noun, not listed here."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "src" / "trainband"

METHODS, ATTRIBUTES, LINES, PARAMETERS = 25, 20, 60, 8
FILES = [path for path in sorted(ROOT.rglob("*.py")) if path.relative_to(ROOT).parts[0] != "compat"]

Function = ast.FunctionDef | ast.AsyncFunctionDef

ALLOWED: dict[str, set[str]] = {
    "methods": set(),
    "attributes": {
        "job/statistics.py:PsStatus",
        "job/statistics.py:WorkerStatus",
        "launch/kubernetes/manifest.py:KubernetesJob",
        "monitor/snapshot.py:JobSnapshot",
        "monitor/snapshot.py:PsView",
        "wire/limits.py:Limits",
    },
    "lines": {
        "model/predictor.py:Predictor.program",
    },
    "parameters": {
        "compress/compressing.py:compress",
        "data/shared.py:shared",
        "keras/distributed.py:Distributed.fit",
        "keras/tensorboard.py:TensorBoard.__init__",
        "launch/jobs.py:run",
        "launch/local_cluster.py:LocalCluster.__init__",
        "ps/server.py:Server.__init__",
        "serve/model.py:ServedModel.__init__",
        "strategies/parameter_server.py:ParameterServer.__init__",
        "train/trainer.py:Trainer.__init__",
        "train/trainer.py:Trainer.fit",
    },
}
"""What is over a limit today; the lists may only shrink. Records of many fields, options of commands and public
constructors stay; the rest is to be cut by noun."""


def over(tree: ast.AST) -> Iterator[tuple[str, str, int]]:
    """(limit, name, size) of whatever in a module is over a limit."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            methods = [child for child in node.body if isinstance(child, Function)]
            if len(methods) > METHODS:
                yield "methods", node.name, len(methods)
            if (count := len(attributes_of(node, methods))) > ATTRIBUTES:
                yield "attributes", node.name, count
            for method in methods:
                yield from _function(method, f"{node.name}.{method.name}", of_class=True)
        elif isinstance(node, ast.Module):
            for child in node.body:
                if isinstance(child, Function):
                    yield from _function(child, child.name, of_class=False)


def attributes_of(node: ast.ClassDef, methods: list[Function]) -> set[str]:
    """The attributes that a class declares or that its methods assign."""
    declared = {
        child.target.id
        for child in node.body
        if isinstance(child, ast.AnnAssign) and isinstance(child.target, ast.Name)
    }
    assigned = {
        found.attr
        for method in methods
        for found in ast.walk(method)
        if isinstance(found, ast.Attribute) and isinstance(found.ctx, ast.Store) and _is_self(found.value)
    }
    return declared | assigned


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def _function(node: Function, name: str, *, of_class: bool) -> Iterator[tuple[str, str, int]]:
    lines = (node.end_lineno or node.lineno) - node.lineno + 1
    if lines > LINES:
        yield "lines", name, lines
    given = node.args
    names = [one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    if of_class and names[:1] in (["self"], ["cls"]):
        names = names[1:]
    if len(names) > PARAMETERS:
        yield "parameters", name, len(names)


@cache
def everything_over() -> frozenset[tuple[str, str]]:
    """(limit, file:name) of whatever is over a limit."""
    return frozenset(
        (limit, f"{path.relative_to(ROOT)}:{name}")
        for path in FILES
        for limit, name, _ in over(ast.parse(path.read_text(encoding="utf-8")))
    )


@pytest.mark.parametrize("limit", sorted(ALLOWED))
def test_nothing_outgrows_its_size(limit: str) -> None:
    assert {name for kind, name in everything_over() if kind == limit} == ALLOWED[limit]


def test_the_test_would_find_one() -> None:
    body = "\n".join(f"    def m{number}(self): self.a{number} = 0" for number in range(26))
    long = "def f(" + ", ".join("abcdefghi") + "):\n" + "    pass\n" * 60
    assert set(over(ast.parse(f"class C:\n{body}\n{long}"))) == {
        ("methods", "C", 26),
        ("attributes", "C", 26),
        ("lines", "f", 61),
        ("parameters", "f", 9),
    }
