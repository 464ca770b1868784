"""Operations on sparse and ragged tensors: the examples of TensorFlow's documentation, with its values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import trainband.compat.tf2 as tf

A = tf.sparse.SparseTensor([[0, 0, 0], [0, 0, 1], [0, 1, 0], [1, 0, 0], [1, 1, 0], [1, 1, 1]], range(1, 7), [2, 2, 2])
B = tf.sparse.SparseTensor(
    [[0, 0, 0], [0, 0, 1], [0, 1, 0], [1, 0, 0], [1, 1, 0], [1, 1, 1]], [1, 9, 3, 4, 5, 7], [2, 2, 2]
)
LOGITS = np.log(
    np.array(
        [[[0.1, 0.2, 0.7], [0.5, 0.3, 0.2]], [[0.6, 0.3, 0.1], [0.1, 0.1, 0.8]], [[0.2, 0.7, 0.1], [0.2, 0.6, 0.2]]]
    )
).astype(np.float32)
"""Of two sequences of 3 and of 2 steps, [steps, batch, classes]."""
MATRICES = np.array(
    [[[1, 2, 3, 4], [5, 6, 7, 8], [9, 8, 7, 6]], [[5, 4, 3, 2], [1, 2, 3, 4], [5, 6, 7, 8]]], np.float32
)


def _parts(sparse: Any) -> tuple[Any, Any, Any]:
    return sparse.indices.numpy().tolist(), sparse.values.numpy().tolist(), sparse.dense_shape.numpy().tolist()


def test_edit_distance() -> None:
    hypothesis = tf.sparse.SparseTensor([[0, 0, 0], [1, 0, 0]], ["a", "b"], (2, 1, 1))
    truth = tf.sparse.SparseTensor([[0, 1, 0], [1, 0, 0], [1, 0, 1], [1, 1, 0]], ["a", "b", "c", "a"], (2, 2, 2))
    np.testing.assert_array_equal(tf.edit_distance(hypothesis, truth).numpy(), [[np.inf, 1.0], [0.5, 1.0]])


def test_sets() -> None:
    assert _parts(tf.sets.intersection(A, B))[1] == [1, 3, 4, 5]
    assert _parts(tf.sets.difference(A, B))[1] == [2, 6]
    assert _parts(tf.sets.union(A, B))[1] == [1, 2, 9, 3, 4, 5, 6, 7]
    assert tf.sets.size(A).numpy().tolist() == [[2, 1], [1, 2]]
    assert _parts(tf.sets.intersection(tf.constant([[1, 2]]), tf.constant([[2, 3]]))) == ([[0, 0]], [2], [1, 1])


def test_fill_empty_rows() -> None:
    given = tf.sparse.SparseTensor([[0, 1], [0, 3], [2, 0], [3, 1]], ["a", "b", "c", "d"], [5, 6])
    filled, empty = tf.sparse.fill_empty_rows(given, "x")
    assert _parts(filled)[0] == [[0, 1], [0, 3], [1, 0], [2, 0], [3, 1], [4, 0]]
    assert _parts(filled)[1] == [b"a", b"b", b"x", b"c", b"d", b"x"]
    assert empty.numpy().tolist() == [False, True, False, False, True]


def test_decoders_of_ctc() -> None:
    (best,), scores = tf.nn.ctc_greedy_decoder(LOGITS, [3, 2])
    assert _parts(best) == ([[0, 0], [0, 1], [1, 0]], [0, 1, 0], [2, 2])
    np.testing.assert_allclose(scores.numpy(), [[1.2241755], [0.9162907]], rtol=1e-6)
    decoded, logs = tf.nn.ctc_beam_search_decoder(LOGITS, [3, 2], beam_width=10, top_paths=2)
    assert [_parts(one)[1] for one in decoded] == [[0, 1, 0], [1, 1]]
    np.testing.assert_allclose(logs.numpy(), [[-1.0023935, -1.3205067], [-0.7550225, -1.2378744]], rtol=1e-5)


@pytest.mark.parametrize(
    ("align", "around", "above"),
    [
        ("RIGHT_LEFT", [[2, 7, 6], [1, 6, 7], [5, 8, 9]], [[9, 3, 8], [2, 7, 6], [1, 6, 7]]),
        ("LEFT_RIGHT", [[2, 7, 6], [1, 6, 7], [9, 5, 8]], [[3, 8, 9], [2, 7, 6], [1, 6, 7]]),
    ],
)
def test_several_diagonals(align: str, around: Any, above: Any) -> None:
    for k, wanted in (((-1, 1), around), ((0, 2), above)):
        found = tf.linalg.diag_part(MATRICES, k=k, align=align, padding_value=9)
        assert found.numpy()[0].tolist() == wanted


def test_ragged_rows_in_a_shape() -> None:
    rows = tf.ragged.constant([[9, 8, 7], [], [6, 5], [4]])
    assert rows.to_tensor(shape=[None, 2]).numpy().tolist() == [[9, 8], [0, 0], [6, 5], [4, 0]]
    nested = tf.ragged.constant([[[1], [2, 3]], [[4, 5, 6]]])
    assert nested.to_tensor(default_value=-1, shape=[3, None, 2]).numpy().tolist() == [
        [[1, -1], [2, 3]], [[4, 5], [-1, -1]], [[-1, -1], [-1, -1]],
    ]  # fmt: skip
    assert tf.ragged.constant([["a"], ["b", "c"]]).to_tensor("z").numpy().tolist() == [[b"a", b"z"], [b"b", b"c"]]
    with pytest.raises(tf.errors.InvalidArgumentError, match="2 sizes"):
        rows.to_tensor(shape=[5])


@pytest.mark.parametrize("initial", [None, [2 / 3, 1 / 3]])
def test_rejection_resample_changes_the_shares_of_classes(initial: Any) -> None:
    dataset = tf.data.Dataset.from_tensor_slices([0, 1, 0] * 300)
    kept = list(dataset.rejection_resample(lambda x: x, [0.25, 0.75], initial_dist=initial, seed=1))
    classes = [int(kind) for kind, _ in kept]
    assert classes == [int(x) for _, x in kept]
    assert np.mean(classes) == pytest.approx(0.75, abs=0.08)
