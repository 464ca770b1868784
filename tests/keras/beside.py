"""A model trained by plain Keras, and another like it by trainband in its place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import keras
import trainband
from keras import layers
from trainband.keras import distribute

SEED = 3

HISTORY = 1e-6
"""How far two histories may be apart, relatively: Keras adds up its metrics in float32, trainband in double."""


def silent(_: str) -> None:
    """What is said is not looked at here."""


def one_device() -> Any:
    return trainband.OneDevice("cpu", say=silent)


def rows(count: int = 64, width: int = 6, classes: int = 3) -> tuple[Any, Any]:
    """float32[count, width] and int32[count], the same each time."""
    random = np.random.RandomState(0)
    x = random.normal(size=(count, width)).astype("float32")
    return x, (x[:, :classes].argmax(1)).astype("int32")


def small(**settings: Any) -> Any:
    """6 numbers to 3 logits, compiled."""
    model = keras.Sequential([layers.Input((6,)), layers.Dense(8, activation="relu"), layers.Dense(3)])
    return compiled(model, **settings)


def compiled(model: Any, **settings: Any) -> Any:
    model.compile(
        **{
            "optimizer": "adam",
            "loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            "metrics": ["accuracy"],
            **settings,
        }
    )
    return model


def trained(
    make: Callable[[], Any], fit: Callable[[Any], Any], strategy: Any = None, settings: Any = None
) -> tuple[Any, dict[str, list[float]]]:
    """(model, history) of a model that is made and trained with the seed; by plain Keras without a strategy."""
    keras.utils.clear_session()  # or the next model would have other names
    keras.utils.set_random_seed(SEED)
    model = make()
    if strategy is not None:
        distribute(model, strategy, **(settings or {}))
    history = fit(model)
    return model, history.history if history is not None else {}


def fits(*data: Any, **settings: Any) -> Callable[[Any], Any]:
    """A call of `fit`."""
    return lambda model: model.fit(*data, **{"batch_size": 16, "epochs": 2, "verbose": 0, **settings})


def values(model: Any) -> dict[str, Any]:
    """All of a model's variables, with those of its optimizer and of its random streams."""
    found = {f"{i} {v.path}": np.asarray(v.value) for i, v in enumerate(model.variables)}
    found |= {f"o{i} {v.path}": np.asarray(v.value) for i, v in enumerate(model.optimizer.variables)}
    return found


def expect_same_history(one: Any, other: Any, rtol: float = HISTORY) -> None:
    assert list(one) == list(other)
    for name in one:
        np.testing.assert_allclose(one[name], other[name], rtol=rtol, atol=1e-7, err_msg=name)


def expect_same(one: Any, other: Any, rtol: float = 0.0, skip: Sequence[str] = ()) -> None:
    """That two models' values are the same; to the bit, if nothing else is said."""
    mine, theirs = (list(values(model).items()) for model in (one, other))
    assert len(mine) == len(theirs)
    assert any(np.ptp(value) for _, value in mine)
    for (name, value), (_, expected) in zip(mine, theirs, strict=True):
        if not any(part in name for part in skip):
            np.testing.assert_allclose(value, expected, rtol=rtol, atol=rtol, err_msg=name)


def expect_as_keras(
    make: Callable[[], Any],
    fit: Callable[[Any], Any],
    rtol: float = 0.0,
    history_rtol: float = HISTORY,
    skip: Sequence[str] = (),
) -> tuple[Any, Any]:
    """That plain Keras and `OneDevice` come to the same; gives both models, plain Keras's first."""
    plain, expected = trained(make, fit)
    ours, history = trained(make, fit, one_device())
    expect_same_history(expected, history, history_rtol)
    expect_same(ours, plain, rtol, skip)
    return plain, ours
