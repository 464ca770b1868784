"""Tensors in fewer bytes: exact on known values, and decoded by the program that uses them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from trainband.compress import encoding as encode
from trainband.compress.encodings import Encoding, LowRank, Plain, Sparse, nbytes_of
from trainband.errors import ModelError


def decoded(encoding: Encoding, stored: Any) -> NDArray[Any]:
    assert sum(array.nbytes for array in stored.values()) == nbytes_of(encoding)
    assert {name: (array.shape, array.dtype.name) for name, array in stored.items()} == encoding.parts("w")
    return np.asarray(jax.jit(lambda held: encoding.decode("w", held))(dict(stored)))


@pytest.mark.smoke
def test_each_channel_has_a_scale_of_its_own_and_halves_go_to_even() -> None:
    values = np.array([[127.0, -2.54], [0.5, 0.01], [1.5, 0.03], [-127.0, 0.0]], np.float32)
    encoding, stored = encode.int8("w", values, 1)
    np.testing.assert_array_equal(stored["w/values"], np.array([[127, -127], [0, 0], [2, 2], [-127, 0]], np.int8))
    np.testing.assert_allclose(stored["w/scale"], [1.0, 0.02], rtol=1e-7)
    wanted = np.array([[127, -2.54], [0, 0], [2, 0.04], [-127, 0]])
    np.testing.assert_allclose(decoded(encoding, stored), wanted, rtol=1e-6)


def test_no_weight_is_further_off_than_half_a_step() -> None:
    values = (
        np.random.default_rng(0).normal(size=(3, 5, 7)).astype(np.float32) * np.array([1e-6, 1, 1e6, 3, 9])[:, None]
    )
    values = values.astype(np.float32)
    encoding, stored = encode.int8("w", values, 1)
    off = np.abs(decoded(encoding, stored) - values)
    assert (off <= stored["w/scale"][:, None] * 0.5001).all()


def test_a_channel_of_zeros_and_one_of_the_smallest_numbers_are_kept() -> None:
    values = np.array([[0.0, 1e-45], [0.0, -1e-45]], np.float32)
    encoding, stored = encode.int8("w", values, 1)
    assert np.isfinite(decoded(encoding, stored)).all()
    np.testing.assert_array_equal(decoded(encoding, stored)[:, 0], 0)


@pytest.mark.parametrize("size", [(1, 1), (3, 5), (8, 16), (7, 31)])
@pytest.mark.parametrize("share", [0.3, 0.8, 1.0])
@pytest.mark.parametrize("integers", [True, False])
def test_without_zeros_the_values_are_the_same(size: tuple[int, int], share: float, integers: bool) -> None:
    random = np.random.default_rng(1)
    values = np.where(random.random(size) < share, 0, random.normal(size=size)).astype(np.float32)
    dense = encode.int8("w", values, 1) if integers else encode.plain("w", values)
    encoding, stored = encode.without_zeros("w", *dense)
    if values.size > 100:
        assert isinstance(encoding, Sparse)
        assert nbytes_of(encoding) < nbytes_of(dense[0])
    np.testing.assert_array_equal(decoded(encoding, stored), decoded(*dense))


def test_what_has_no_zeros_stays_dense() -> None:
    dense = encode.int8("w", np.ones((16, 16), np.float32), 1)
    assert encode.without_zeros("w", *dense) == dense


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_rounded_once(dtype: str) -> None:
    values = np.linspace(-3, 3, 20, dtype=np.float32).reshape(4, 5)
    encoding, stored = encode.plain("w", values, dtype)
    assert isinstance(encoding, Plain)
    assert nbytes_of(encoding) == 40
    found = decoded(encoding, stored)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, values.astype(jnp.dtype(dtype)).astype(np.float32))


def test_what_half_precision_cannot_hold_is_refused() -> None:
    with pytest.raises(ModelError, match=r"w has values up to 7e\+04, which float16 cannot hold; use bfloat16"):
        encode.plain("w", np.array([[7e4]], np.float32), "float16")


@pytest.mark.parametrize(("rank", "integers", "within"), [(3, False, 1e-5), (3, True, 0.05), (0.9999, False, 0.02)])
def test_a_matrix_of_a_low_rank_is_found_again(rank: float, integers: bool, within: float) -> None:
    random = np.random.default_rng(2)
    values = (random.normal(size=(32, 3)) @ random.normal(size=(3, 24))).astype(np.float32).reshape(4, 8, 24)
    made = encode.low_rank("w", values, rank, None, integers=integers)
    assert made is not None
    encoding, stored = made
    assert isinstance(encoding, LowRank)
    assert encoding.rank == 3
    assert np.linalg.norm(decoded(encoding, stored) - values) < within * np.linalg.norm(values)


def test_a_rank_that_saves_nothing_is_not_used() -> None:
    assert encode.low_rank("w", np.eye(8, dtype=np.float32), 4, None, integers=False) is None
    assert encode.low_rank("w", np.eye(8, dtype=np.float32), 0.99, None, integers=False) is None


def test_the_smallest_weights_are_pruned_and_of_equals_the_first() -> None:
    values = np.array([[3.0, -1.0, 1.0], [0.5, 1.0, -4.0]], np.float32)
    np.testing.assert_array_equal(encode.pruned(values, 0.5), [[3, 0, 0], [0, 1, -4]])


def test_narrow_floats_become_integers_too() -> None:
    values = np.array([[1.0, 0.5], [-0.25, 2.0]], ml_dtypes.bfloat16)
    encoding, stored = encode.int8("w", values, 1)
    assert decoded(encoding, stored).dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(decoded(encoding, stored)[[0, 1], [0, 1]], values[[0, 1], [0, 1]])
