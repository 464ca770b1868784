"""Operations on text; the expected values are TensorFlow's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import trainband.compat.tf1 as tf

LETTERS = [["a", "b"], ["c", "d"]]
CASES: list[tuple[Callable[[], Any], Any]] = [
    (lambda: tf.string_join(["x", tf.constant(["ab", "c"])], "-"), [b"x-ab", b"x-c"]),
    (lambda: tf.strings.join(["p", "q"]), b"pq"),
    (lambda: tf.as_string([1, -2]), [b"1", b"-2"]),
    (lambda: tf.as_string([1.5, 2e10]), [b"1.500000", b"20000000000.000000"]),
    (lambda: tf.as_string([True, False]), [b"true", b"false"]),
    (lambda: tf.as_string(3.14159, precision=2), b"3.14"),
    (lambda: tf.as_string([7], width=4, fill="0"), [b"0007"]),
    (lambda: tf.as_string([1.5, 0.1], shortest=True), [b"1.5", b"0.1"]),
    (lambda: tf.as_string([1.5], scientific=True), [b"1.500000e+00"]),
    (lambda: tf.substr(["hello", "wor"], [1, 2], [2, 1]), [b"el", b"r"]),
    (lambda: tf.strings.substr("hello", -3, 2), b"ll"),
    (lambda: tf.substr("abc", 1, 100), b"bc"),
    (lambda: tf.strings.substr("aé!", 1, 1, unit="UTF8_CHAR"), "é".encode()),
    (lambda: tf.regex_replace(["a1b22", "x"], "[0-9]+", "#"), [b"a#b#", b"x"]),
    (lambda: tf.strings.regex_replace("aXbX", "X", r"<\0>", replace_global=False), b"a<X>bX"),
    (lambda: tf.strings.regex_replace("ab", "(a)(b)", r"\2\1"), b"ba"),
    (lambda: tf.strings.regex_full_match(["a1", "b"], "a[0-9]"), [True, False]),
    (lambda: tf.string_strip(["  a ", "b\n"]), [b"a", b"b"]),
    (lambda: tf.strings.length(["abc", "é"]), [3, 2]),
    (lambda: tf.strings.length("é", unit="UTF8_CHAR"), 1),
    (lambda: tf.strings.upper(["ab"]), [b"AB"]),
    (lambda: tf.strings.lower("ÄB", encoding="utf-8"), "äb".encode()),
    (lambda: tf.reduce_join(LETTERS, 0), [b"ac", b"bd"]),
    (lambda: tf.reduce_join(LETTERS, [0, 1], separator=" "), b"a c b d"),
    (lambda: tf.reduce_join(LETTERS, axis=1, keep_dims=True), [[b"ab"], [b"cd"]]),
    (lambda: tf.strings.reduce_join(LETTERS), b"abcd"),
    (lambda: tf.encode_base64("hi?>"), b"aGk_Pg"),
    (lambda: tf.decode_base64("aGk_Pg"), b"hi?>"),
    (lambda: tf.strings.format("x {} y {}", [tf.constant([1, 2]), tf.constant(1.5)]), b"x [1 2] y 1.5"),
    (lambda: tf.strings.format("{}", tf.constant([[1, 2], [3, 4]])), b"[[1 2]\n [3 4]]"),
    (lambda: tf.strings.format("{}", tf.range(10)), b"[0 1 2 ... 7 8 9]"),
]


@pytest.mark.parametrize(("make", "value"), CASES)
def test_text(make: Callable[[], Any], value: Any) -> None:
    tensor = make()
    with tf.Session() as session:
        found = session.run(tensor)
    assert found == value if isinstance(value, bytes) else np.asarray(found).tolist() == value
    assert tensor.shape.is_compatible_with(np.shape(found))


def test_a_place_beyond_the_text_is_an_error() -> None:
    with tf.Session() as session, pytest.raises(tf.errors.InvalidArgumentError, match="pos 5 out of range"):
        session.run(tf.substr("abc", 5, 1))
    with tf.Session() as session, pytest.raises(tf.errors.InvalidArgumentError, match="precision not supported"):
        session.run(tf.as_string([3], precision=1))


def test_fed_text_works_too() -> None:
    text = tf.placeholder(tf.string, [None])
    with tf.Session() as session:
        assert session.run(tf.strings.length(text) + 1, {text: ["abc", "d"]}).tolist() == [4, 2]


def test_a_size_that_is_not_known_is_none_of_a_part_of_texts_either() -> None:
    k, texts = tf.placeholder(tf.int32, []), tf.constant(["a", "b", "c"])
    parts = [texts[:k], texts[1:k], texts[k:], tf.tile(texts, [k]), tf.fill([k], texts[0]), tf.gather(texts, [k, k])]
    assert [one.shape.as_list() for one in parts] == [[None]] * 5 + [[2]]
    assert texts[k].shape.as_list() == []
    with tf.Session() as session:
        assert session.run(parts[1], {k: 2}).tolist() == [b"b"]
