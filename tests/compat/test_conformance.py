"""Operations give TensorFlow's values, gradients, dtypes, shapes and errors; see `conformance/cases.py`."""

from __future__ import annotations

import functools
import json
from typing import Any

import jax
import numpy as np
import pytest
from tests.compat.conformance.cases import HERE, TABLES, Case, compute, read

import trainband.compat.tf1 as tf

OPERATIONS = [(table, name) for table in TABLES for name in dict.fromkeys(case.operation for case in read(table))]


@functools.cache
def golden(table: str) -> dict[str, Any]:
    """What TensorFlow gave for a table, by line."""
    found: dict[str, Any] = json.loads((HERE / "golden" / f"{table}.json").read_text(encoding="utf-8"))
    return found


@functools.cache
def computed(table: str) -> dict[str, Any]:
    """What trainband gives for the whole of a table."""
    cases = [case for case in read(table) if not case.differs]
    failing = [case for case in cases if "error" in golden(table)[case.key]]
    working = [case for case in cases if case not in failing]
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)  # each program runs once, so compiling counts
    try:
        return compute(tf, working) | compute(tf, failing, alone=True)
    finally:
        jax.config.update("jax_disable_most_optimizations", before)


@pytest.mark.parametrize(("table", "operation"), OPERATIONS)
def test_operation(table: str, operation: str) -> None:
    wrong = []
    for case in read(table):
        if case.operation == operation and not case.differs:
            try:
                _compare(case, computed(table)[case.key], golden(table)[case.key])
            except AssertionError as exc:
                wrong.append(f"{case.key}\n{exc}")
    assert not wrong, "\n\n".join(wrong)


def test_every_case_has_a_golden_value_and_none_is_left_over() -> None:
    for table in TABLES:
        assert [case.key for case in read(table)] == [*dict.fromkeys(case.key for case in read(table))], table
        assert {case.key for case in read(table)} == set(golden(table)), table


def _compare(case: Case, mine: dict[str, Any], theirs: dict[str, Any]) -> None:
    if "error" in theirs:
        assert "error" in mine, f"no error, but {theirs['error']} is expected: {mine}"
        assert mine["error"] == theirs["error"], f"{mine}"
        return
    assert "error" not in mine, f"{mine['error']}: {mine.get('text')}"
    assert len(mine["outputs"]) == len(theirs["outputs"])
    for one, other in zip(mine["outputs"], theirs["outputs"], strict=True):
        assert one["dtype"] == other["dtype"], "dtype"
        assert "train(" not in case.key or one["name"] == other["name"], f"name: {one.get('name')}"
        known = other["static"]
        if known is not None and None not in known:
            assert one["static"] == known, "static shape"
        close(one["value"], other["value"], "value")
    for name, gradient in theirs["gradients"].items():
        if gradient is None:
            assert mine["gradients"][name] is None or not np.any(mine["gradients"][name]["value"]), (
                f"gradient of {name}"
            )
        else:
            assert mine["gradients"].get(name) is not None, f"no gradient of {name}"
            close(mine["gradients"][name]["value"], gradient["value"], f"gradient of {name}")


def close(mine: Any, theirs: dict[str, Any], what: str) -> None:
    assert list(np.shape(mine)) == theirs["shape"], f"{what}: {np.shape(mine)}, not {theirs['shape']}"
    flat = np.ravel(mine)
    if flat.dtype.kind == "O":
        assert [one.decode() for one in flat] == theirs["flat"], what
        return
    wanted = np.array(theirs["flat"])
    if flat.dtype.kind == "c":
        wanted = wanted.reshape(-1, 2) @ [1, 1j] if wanted.size else wanted
    if flat.dtype.kind in "iub":  # to the last digit: at the edges of a dtype, the next number is another one
        np.testing.assert_array_equal(flat, wanted.reshape(flat.shape), err_msg=what)
        return
    np.testing.assert_allclose(flat, wanted.reshape(flat.shape), rtol=3e-5, atol=1e-5, err_msg=what)
