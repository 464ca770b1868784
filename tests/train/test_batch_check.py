"""Integers that JAX would cut to 32 bits, and what is no number, are refused wherever a batch comes in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from trainband import Trainer
from trainband.data import Batches, shared
from trainband.errors import DataError
from trainband.model.batch_check import check_batch
from trainband.strategies import Mirrored, OneDevice
from trainband.train import MonitoredSession

FITS = np.array([0, 2**31 - 1, -(2**31), 5])
WIDE = np.array([1, 2, 3, 2**32 + 1])


def lookup(params: Any, batch: Any) -> Any:
    return params["table"][batch["ids"]]


def trainer(strategy: Any = None) -> Trainer:
    return Trainer(
        init=lambda _: {"table": jnp.ones(8)},
        loss=lambda params, batch: lookup(params, batch).mean(),
        optimizer=optax.sgd(0.1),
        strategy=strategy or OneDevice("cpu"),
        console=False,
        say=lambda _: None,
    )


def in_a_loop(one: Trainer, batches: list[Any]) -> None:
    with MonitoredSession(one, console=False) as session:
        for batch in batches:
            session.run(batch)


ENTRIES: dict[str, Callable[[Trainer, list[Any]], object]] = {
    "fit": lambda one, batches: one.fit(batches, steps=3),
    "evaluate": lambda one, batches: one.evaluate(batches),
    "predict": lambda one, batches: one.predict(lookup, batches),
    "session": in_a_loop,
    "shared": lambda one, batches: one.fit(
        shared(2, batch_size=1, load=lambda at: batches[int(at[0])], shuffle=False), steps=2
    ),
    "evaluate_params": lambda one, batches: one.evaluate_params({"table": np.ones(8, np.float32)}, None, batches, 0),
}


@pytest.mark.parametrize("entry", ENTRIES)
def test_ids_that_do_not_fit_are_refused_wherever_a_batch_comes_in(entry: str) -> None:
    ENTRIES[entry](trainer(), [{"ids": FITS % 8}] * 2)
    with pytest.raises(DataError, match=r"array \['ids'\] \(int64\[4\]\) holds 4294967297.*as 1.*jax_enable_x64"):
        ENTRIES[entry](trainer(), [{"ids": FITS % 8}, {"ids": WIDE}])


def test_what_moves_batches_to_devices_does_not_cut_them_first() -> None:
    with trainer(Mirrored(["cpu"])) as one, pytest.raises(DataError, match="4294967297"):
        one.fit([{"ids": WIDE}], steps=1)


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ((FITS, np.array([-(2**31) - 1])), r"array \[1\] .* holds -2147483649, .* int32"),
        ([np.array([2**32], np.uint64)], r"uint64\[1\].* holds 4294967296, .* as 0\. .* uint32"),
        ({"a": {"b": np.int64(2**40)}}, r"array \['a'\]\['b'\] \(int64\[\]\)"),
        (WIDE, r"batch 7: the array \(int64\[4\]\)"),
        ({"name": np.array(["x"])}, r"array \['name'\] \(<U1\[1\]\) holds text"),
        ((FITS, "label"), r"array \[1\] is 'label'"),
        (np.array([b"x"]), "bytes"),
        (np.array([None]), "Python objects"),
        (np.array(["2026-01-01"], "M8[D]"), "dates"),
    ],
)
def test_the_array_is_named(batch: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        check_batch(batch, "batch 7")


def test_what_jax_computes_with_passes() -> None:
    fine = (FITS, np.array([2**32 - 1], np.uint64), np.zeros(0, np.int64), np.float64(1e300), 1, jnp.ones(2), None)
    check_batch(fine, "")
    check_batch((np.zeros(2, jnp.bfloat16), np.zeros(2, bool), np.zeros(2, complex)), "")
    with jax.enable_x64(True):
        check_batch(WIDE, "")


def test_batches_keep_them_where_jax_does() -> None:
    with jax.enable_x64(True):
        (first,) = next(iter(Batches(WIDE, batch_size=4, shuffle=False)))
        check_batch(first, "")
    with pytest.raises(DataError):
        check_batch(first, "")
