"""Pieces of shared data: how a source is cut, and where each piece is."""

from __future__ import annotations

import pytest

from trainband.data.pieces import Doubt, PieceBook, Share, SourceSettings
from trainband.errors import DataError

SETTINGS = SourceSettings(examples=10, piece=4, epochs=2, seed=0, shuffle=False)
ALL = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]


def test_a_source_is_cut_into_pieces() -> None:
    assert [SETTINGS.size(piece) for piece in range(SETTINGS.pieces)] == [4, 4, 2]
    assert [SETTINGS.after(piece) for piece in ALL] == [*ALL[1:], (2, 0)]
    SETTINGS.require((1, 2), 2)
    for piece, done in (((1, 2), 3), ((1, 3), 0), ((2, 0), 0), ((0, 0), -1)):
        with pytest.raises(DataError, match="there are no"):
            SETTINGS.require(piece, done)


def test_pieces_come_in_order_and_end() -> None:
    book = PieceBook()
    assert [book.assign(0, SETTINGS) for _ in ALL] == [(piece, Share(doubt=Doubt.NONE)) for piece in ALL]
    assert book.assign(1, SETTINGS) is None
    assert book.holders() == [0]
    for piece in ALL:
        book.finish(0, piece)
    assert (book.holders(), book.ahead) == ([], set())


def test_what_is_reserved_comes_first_then_what_was_given_back() -> None:
    book = PieceBook()
    for worker in (0, 1):
        book.assign(worker, SETTINGS)
    book.reserve(0, set())
    book.return_pieces(1)
    assert [book.assign(0, SETTINGS) for _ in range(3)] == [
        ((0, 0), Share(given=False)),
        ((0, 1), Share(given=False)),
        ((0, 2), Share(doubt=Doubt.NONE)),
    ]


def test_only_what_is_reserved_is_given_back() -> None:
    book = PieceBook()
    book.assign(0, SETTINGS)
    book.hold(0, (0, 2), 1, begins=True)
    assert book.return_reserved(0)
    assert not book.return_reserved(0)
    assert (list(book.held[0]), list(book.returned)) == ([(0, 0)], [(0, 2)])
    assert [book.assign(1, SETTINGS) for _ in range(2)] == [
        ((0, 2), Share(1, given=False, doubt=Doubt.NONE)),
        ((0, 1), Share(doubt=Doubt.NONE)),
    ]
    assert book.assign(1, SETTINGS) == ((1, 0), Share(doubt=Doubt.NONE))  # (0, 2) is not handed out again


@pytest.mark.parametrize(
    "book",
    [PieceBook(next=(3, 0)), PieceBook(next=(0, 3)), PieceBook(held={-1: {}}), PieceBook(returned={(0, 2): Share(3)})],
)
def test_an_impossible_book_is_refused(book: PieceBook) -> None:
    PieceBook(next=(2, 0)).check(SETTINGS)
    with pytest.raises(DataError):
        book.check(SETTINGS)
