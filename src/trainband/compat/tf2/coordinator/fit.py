"""`Model.fit` on a coordinator: each step is a closure, and epochs end when all of theirs have run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import jax
import numpy as np

from trainband.compat.tf2.coordinator.cluster import Cluster
from trainband.compat.tf2.distribute.input import InputContext
from trainband.keras.keras_internals import JAXTrainer, keras, train_validation_split


def fit_on_coordinator(
    model: Any,
    cluster: Cluster,
    x: Any,
    y: Any = None,
    batch_size: int | None = None,
    epochs: int = 1,
    verbose: Any = "auto",
    callbacks: Any = None,
    validation_split: float = 0.0,
    validation_data: Any = None,
    shuffle: Any = True,
    class_weight: Any = None,
    sample_weight: Any = None,
    initial_epoch: int = 0,
    steps_per_epoch: int | None = None,
    validation_steps: int | None = None,
    validation_batch_size: int | None = None,
    validation_freq: Any = 1,
) -> Any:
    """Trains a compiled model on the workers of a cluster. Returns Keras's `History`.

    Each worker has all of the data, in its own order, as in TensorFlow. A step is the model's `train_step` of a batch.
    The validation runs in the coordinator, on the variables as they are then.

    Args:
      x: a dataset of batches, a `DatasetCreator` or a function of an `InputContext` that gives one, or arrays.
      y, sample_weight, batch_size, shuffle, validation_split, class_weight: for arrays.
      steps_per_epoch: over all workers; can be left out for data that has a length.
      callbacks, verbose: as Keras has them. With a callback of the script's own that is called after each batch, each
        step is waited for; else the coordinator schedules an epoch and waits at its end.

    Raises:
      ValueError: nothing says how long an epoch is.
    """
    if not model.compiled:
        raise ValueError("You must call `compile()` before calling `fit()`.")
    if class_weight is not None:
        raise NotImplementedError(
            "`class_weight` is not supported by ParameterServerStrategy: give each batch a third part, its weights."
        )
    if validation_split and validation_data is None:
        (x, y, sample_weight), validation_data = train_validation_split(
            (x, y, sample_weight), validation_split=validation_split
        )
    make = _datasets(x, y, sample_weight, batch_size, shuffle=bool(shuffle))
    steps = steps_per_epoch or _length(x, batch_size)
    if steps is None:
        raise ValueError(
            "When using ParameterServerStrategy with data that has no length of its own, such as a "
            "`tf.keras.utils.experimental.DatasetCreator`, the argument `steps_per_epoch` must be given to `Model.fit`."
        )
    iterator = iter(cluster.datasets(make))
    if not isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks = keras.callbacks.CallbackList(
            callbacks,
            add_history=True,
            add_progbar=verbose != 0,
            verbose=2 if verbose == "auto" else verbose,
            epochs=epochs,
            steps=steps,
            model=model,
        )
    train = _step_of(model)
    looks = any(map(_looks_at_batches, callbacks.callbacks))
    model.stop_training = False
    logs: dict[str, Any] = {}
    callbacks.on_train_begin()
    begin = getattr(model, "_initial_epoch", None) or initial_epoch  # as BackupAndRestore says
    for epoch in range(begin, epochs):
        model.reset_metrics()
        callbacks.on_epoch_begin(epoch)
        for step in range(steps):
            callbacks.on_train_batch_begin(step)
            made = cluster.schedule(train, (iterator,), {})
            if looks:
                made.get()
            callbacks.on_train_batch_end(step, _numbers(model.get_metrics_result()) if looks else None)
            if model.stop_training:
                break
        cluster.join()
        logs = _numbers(model.get_metrics_result())
        if validation_data is not None and _is_due(epoch + 1, validation_freq):
            found = _evaluated(model, validation_data, validation_steps, validation_batch_size)
            logs.update((f"val_{name}", value) for name, value in found.items())
        callbacks.on_epoch_end(epoch, logs)
        if model.stop_training:
            break
    callbacks.on_train_end(logs)
    return model.history


@contextmanager
def models_fit_on(cluster: Cluster) -> Iterator[None]:
    """A context in which every Keras model that is made is trained by the workers of a cluster.

    Keras calls the `__init__` of its trainer for each model and tells nobody: so that is what is extended meanwhile.
    """
    init = JAXTrainer.__init__

    def init_and_attach(self: Any) -> None:
        init(self)
        # Past Keras's own __setattr__, which looks into everything for variables to track.
        object.__setattr__(self, "fit", partial(fit_on_coordinator, self, cluster))

    JAXTrainer.__init__ = init_and_attach
    try:
        yield
    finally:
        JAXTrainer.__init__ = init


def _looks_at_batches(callback: Any) -> bool:
    """Whether a callback of the script's own is called after each batch."""
    methods = (getattr(callback, name) for name in ("on_train_batch_end", "on_batch_end"))
    return any(not (getattr(method, "__module__", None) or "").startswith("keras.") for method in methods)


def _step_of(model: Any) -> Callable[[Iterator[Any]], None]:
    def train_step(iterator: Iterator[Any]) -> None:
        model.train_step(next(iterator))

    return train_step


def _datasets(x: Any, y: Any, sample_weight: Any, batch_size: int | None, *, shuffle: bool) -> Callable[[], Any]:
    """What gives a worker its data."""
    if _is_dataset(x):
        return lambda: x.repeat() if hasattr(x, "repeat") else x
    if callable(x):
        return lambda: x(InputContext(1, 0, 1))
    arrays = tuple(one for one in (x, y, sample_weight) if one is not None)
    return lambda: _batches(arrays, batch_size or 32, shuffle=shuffle)


def _batches(arrays: Sequence[Any], batch_size: int, *, shuffle: bool) -> Iterator[Any]:
    """Batches of rows, in another order each time if so wanted, without end."""
    own = jax.tree.map(np.asarray, tuple(arrays))
    count = len(jax.tree.leaves(own)[0])
    order = np.random.default_rng()
    while True:
        rows = order.permutation(count) if shuffle else np.arange(count)
        for start in range(0, count - batch_size + 1 or 1, batch_size):
            chosen = rows[start : start + batch_size]
            yield jax.tree.map(lambda one, chosen=chosen: one[chosen], own)


def _is_dataset(x: Any) -> bool:
    return hasattr(x, "element_spec")


def _length(x: Any, batch_size: int | None) -> int | None:
    """How many batches there are; `None` where that is not known."""
    if _is_dataset(x):
        count = int(x.cardinality())
        return count if count > 0 else None
    if callable(x):
        return None
    return max(1, len(jax.tree.leaves(x)[0]) // (batch_size or 32))


def _is_due(epoch: int, frequency: Any) -> bool:
    return epoch % frequency == 0 if isinstance(frequency, int) else epoch in frequency


def _evaluated(model: Any, data: Any, steps: int | None, batch_size: int | None) -> dict[str, Any]:
    if callable(data) and not _is_dataset(data):
        data = data(InputContext(1, 0, 1))
    parts = {} if _is_dataset(data) else dict(zip(("x", "y", "sample_weight"), data, strict=False))
    given = {**parts, "batch_size": batch_size} if parts else {"x": data}
    return _numbers(model.evaluate(**given, steps=steps, verbose=0, return_dict=True))


def _numbers(logs: Any) -> dict[str, Any]:
    return {name: float(value) if np.ndim(value) == 0 else np.asarray(value) for name, value in logs.items()}
