"""Errors as a reader meets them at the end of a traceback."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator

import jax
import pytest

from trainband import errors
from trainband.errors import ModelError, TrainbandError

_BRANCH = re.compile(r"((?:│   |    )*)[├└]── (\w+) +(.*)")
_ALSO = re.compile(r"\(also an? (\w+)\)")


def test_a_traceback_ends_with_our_message_and_not_with_jaxs_notice() -> None:
    def loss(_: jax.Array) -> jax.Array:
        raise ModelError("the loss is wrong.")

    with pytest.raises(ModelError) as caught:
        jax.jit(loss)(1.0)
    assert traceback.format_exception(caught.value)[-1] == "trainband.errors.ModelError: the loss is wrong.\n"


def test_other_notes_are_kept() -> None:
    error = TrainbandError("no")
    error.add_note("in the second epoch")
    assert error.__notes__ == ["in the second epoch"]


def drawn() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each error that the tree in the docstring of errors.py shows, with its bases."""
    above = ["TrainbandError"]
    for line in (errors.__doc__ or "").splitlines():
        if found := _BRANCH.fullmatch(line.removeprefix("    ")):
            depth = len(found[1]) // 4 + 1
            yield found[2], (above[depth - 1], *_ALSO.findall(found[3]))
            above[depth:] = [found[2]]


def test_the_drawn_tree_has_all_errors_and_their_bases() -> None:
    classes = {
        name: tuple(base.__name__ for base in one.__bases__)
        for name, one in vars(errors).items()
        if isinstance(one, type) and issubclass(one, TrainbandError) and one is not TrainbandError
    }
    assert dict(drawn()) == classes
