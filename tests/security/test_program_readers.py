"""Which code reads programs (MLIR, or what `jax.export` wraps it in), and in which process: readers crash on bad bytes.

What other tasks send is read by the checker's process alone; every other process reads what the checker has written
anew, what it has made itself, or a file that its user names.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.test_layers import FILES, ROOT, imports_of

CHECKER = "the checker's process"
CHECKED = "a ps or worker, what its checker has written"
OWN = "the process that has made the program"
USERS = "the process of a user, a file that the user names"

READERS = {
    "compat/tf2/coordinator/programs.py:Program.__init__ export.deserialize": CHECKED,
    "compat/tf2/saving/exported.py:LoadedFunction.__init__ export.deserialize": USERS,
    "export/converters/stablehlo.py:portable stablehlo.deserialize_portable_artifact_str": OWN,
    "export/converters/write_litert.py:convert stablehlo.deserialize_portable_artifact": OWN,
    "export/loader.py:read jax_export.deserialize": USERS,
    "ps/program/compiled_program.py:CompiledProgram.__init__ export.deserialize": CHECKED,
    "ps/program/check/check.py:_read export.deserialize": CHECKER,
    "ps/program/check/checker_main.py:_of_function export.deserialize": CHECKER,
    "ps/program/check/jax_internals.py:canonical passmanager.PassManager.parse": CHECKER,
    "ps/program/check/jax_internals.py:module_of _jax.mlir.deserialize_portable_artifact": CHECKER,
}
OTHERS = {
    "compat/checkpoints/files.py:load deserialize": "safetensors",
    "compat/tf1/input/sparse_parts.py:deserialize_many_sparse deserialize_sparse": "sparse tensors",
    "compat/tf2/keras/saving.py:_of_names deserialize": "Keras's configurations",
    "compat/tf2/keras/saving.py:install module.deserialize": "Keras's configurations",
    "compat/tf2/saving/snapshot.py:Restoration._give value.deserialize": "the JSON of a Python object",
}
"""Calls of the same name that read no program."""

IMPORTERS = {
    "trainband.ps.program.check.jax_internals": {
        "ps/program/check/check.py",
        "ps/program/check/checker_main.py",
        "ps/program/check/checker_process.py",
        "ps/program/check/custom_calls.py",
        "ps/program/check/loops.py",
        "ps/program/check/orders.py",
        "ps/program/check/verifier.py",
    },
    "trainband.ps.program.check.jax_internals.module_of": set(),
    "trainband.ps.program.check.check.checked": {"ps/program/check/checker_main.py"},
    "trainband.ps.program.check.check.checked_function": {"ps/program/check/checker_main.py"},
    "trainband.ps.program.compiled_program.CompiledProgram": {
        "ps/program/check/checker.py",
        "ps/program/check/checker_main.py",
        "ps/service/service.py",  # a default for tests: `Server` gives `CheckedPrograms`
    },
    "trainband.compat.tf2.coordinator.programs.program_of": {
        "compat/tf2/coordinator/ps_service.py",
        "compat/tf2/coordinator/worker_service.py",
    },
}
"""Who uses the functions that read, of those that run in a service or in its checker."""

_READING = re.compile(r"(^|\.)(deserialize\w*|(Module|PassManager)\.parse|mlir_module_to_xla_computation)$")


def calls_in(tree: ast.AST, where: str = "") -> Iterator[str]:
    """The functions in a file that read a program, and by what: `function call`."""
    for node in ast.iter_child_nodes(tree):
        inner = f"{where}.{node.name}".lstrip(".") if isinstance(node, ast.FunctionDef | ast.ClassDef) else where
        if isinstance(node, ast.Attribute | ast.Name) and _READING.search(name := ast.unparse(node)):
            yield f"{inner} {name}"
        else:
            yield from calls_in(node, inner)


def test_every_reader_of_programs_is_known() -> None:
    found = {
        f"{path.relative_to(ROOT)}:{call}" for path in FILES for call in calls_in(ast.parse(path.read_text("utf-8")))
    }
    assert found == READERS.keys() | OTHERS.keys()


def test_the_test_would_find_one() -> None:
    source = "def f(data):\n    read = jax.export.deserialize\n    return ir.Module.parse(data), read(data)"
    assert list(calls_in(ast.parse(source))) == ["f jax.export.deserialize", "f ir.Module.parse"]


@pytest.mark.parametrize("name", IMPORTERS)
def test_only_these_have_programs_read(name: str) -> None:
    found = {str(path.relative_to(ROOT)) for path in FILES if name in [module for _, module in imports_of(path)]}
    assert found == IMPORTERS[name]
