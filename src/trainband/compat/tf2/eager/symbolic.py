"""Symbolic tensors, which stand for what a model will be given: operations on them are noted in the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Symbolic(Exception):
    """An operation was given a symbolic tensor in place of a tensor.

    Args:
      apply: what gives the result of an operation: of (operation, arguments by name, seed).
    """

    def __init__(self, apply: Callable[..., Any]) -> None:
        super().__init__("a symbolic tensor has no value; only operations of the table take one")
        self.apply = apply
