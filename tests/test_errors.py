"""Errors as a reader meets them at the end of a traceback."""

from __future__ import annotations

import traceback

import jax
import pytest

from trainband.errors import ModelError, TrainbandError


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
