"""How operations are defined that are not in the table of both versions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainband.compat.ops.table import TABLE, op, op_of
from trainband.compat.tf2.eager.execute import function_of


def operation(tensors: str, **settings: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a function of arrays one of tensors; see `ops.table.op` for the settings."""

    def define(function: Callable[..., Any]) -> Callable[..., Any]:
        return function_of(op_of(op("", tensors=tensors, **settings)(function)))

    return define


def known(name: str) -> Callable[..., Any]:
    """The function of an operation of the table, by one of its names."""
    return function_of(TABLE[name])
