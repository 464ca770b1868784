"""Batches of pieces: filled over their borders, with how far each piece is after each of them."""

from __future__ import annotations

import numpy as np
import pytest

from trainband.data.piece_batches import PieceBatches
from trainband.data.pieces import SourceSettings
from trainband.data.readers import Files, Indexed
from trainband.data.visits import Hold
from trainband.errors import DataError

SETTINGS = SourceSettings(examples=6, piece=3, epochs=1, seed=0, shuffle=False)


def test_batches_are_filled_over_the_borders_of_pieces() -> None:
    batches = PieceBatches(Indexed(np.copy), SETTINGS, 4, "data")
    first, second = Hold((0, 0), 0, 3, 0), Hold((0, 1), 3, 6, 4)
    batches.start_piece(first)
    assert batches.next() is None
    assert batches.rows == 3
    batches.start_piece(second)
    made = batches.next()
    assert made is not None
    np.testing.assert_array_equal(made[0], [0, 1, 2, 4])
    assert not batches.is_empty
    given = batches.pop_contents()
    assert (given.examples, given.marks) == (4, [(first, (3, 0)), (second, (5, 0))])
    assert batches.next() is None
    assert batches.rows == 1
    batches.make_short()
    made = batches.next()
    assert made is not None
    np.testing.assert_array_equal(made[0], [5])
    assert batches.pop_contents().marks == [(second, (6, 0))]
    assert batches.is_empty


def test_what_is_left_out_says_how_far_its_pieces_are() -> None:
    batches = PieceBatches(Indexed(np.copy), SETTINGS, 4, "data")
    hold = Hold((0, 0), 0, 3, 1)
    batches.start_piece(hold)
    assert batches.next() is None
    assert not batches.is_empty
    assert batches.drop_rest() == [(hold, (3, 0))]
    assert (batches.is_empty, batches.drop_rest()) == (True, [])


def test_an_epoch_of_empty_files_is_refused() -> None:
    settings = SourceSettings(examples=2, piece=1, epochs=None, seed=0, shuffle=False)
    batches = PieceBatches(Files(["a", "b"], lambda _: [], 4), settings, 4, "logs")
    for piece in range(2):
        batches.start_piece(Hold((0, piece), piece, piece + 1, piece))
        assert batches.next() is None
    batches.start_piece(Hold((1, 0), 0, 1, 0))
    with pytest.raises(DataError, match="no example for any of 3 pieces of 'logs'"):
        batches.next()
