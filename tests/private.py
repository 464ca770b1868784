"""Looks for what other libraries do not promise to keep, and says by name what is gone."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pytest


def found(name: str, library: str) -> Any:
    """What a dotted name stands for, through modules and then attributes; fails with the part that is gone."""
    parts = name.split(".")
    value: Any = importlib.import_module(parts[0])
    for i, part in enumerate(parts[1:], 1):
        if not hasattr(value, part):
            try:
                value = importlib.import_module(".".join(parts[: i + 1]))
            except ModuleNotFoundError:
                pytest.fail(f"{library} has no {'.'.join(parts[: i + 1])} any more, and trainband needs {name}")
        else:
            value = getattr(value, part)
    return value


def accepts(function: Any, keyword: str) -> bool:
    """Whether a function has a parameter of that name; of one in C++, only its docstring says so."""
    if inspect.isfunction(function):
        return keyword in inspect.signature(function).parameters
    return f"{keyword}:" in (function.__doc__ or "")
