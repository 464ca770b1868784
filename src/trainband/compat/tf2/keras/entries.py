"""`fit`, `evaluate`, `predict` and the calls of one batch: what TensorFlow's take, before Keras's run."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from trainband.compat.tf2.keras.callbacks import of_process
from trainband.compat.tf2.keras.distribution import input_context, replica_adapter, runner, strategy_of
from trainband.compat.tf2.keras.inside import JAXTrainer, keras
from trainband.compat.tf2.keras.layers import load_deferred
from trainband.compat.tf2.keras.sources import (
    DatasetAdapter,
    DatasetCreator,
    arrays,
    check_end,
    is_dataset,
    narrow,
)
from trainband.compat.tf2.keras.steps import Steps, has_own
from trainband.keras.callbacks import Callbacks
from trainband.keras.distributed import MARK
from trainband.keras.keras_internals import get_data_adapter, train_validation_split
from trainband.keras.shares import Share

_OWN = "_own_loop"
"""The attribute of a model whose steps are its own, while Keras's loop runs them."""

_of_keras: dict[str, Callable[..., Any]] = {}
"""Keras's own methods."""

_UNUSED = ("workers", "use_multiprocessing", "max_queue_size")
"""Arguments of Keras 2 that changed how data was read."""


def _share(model: Any) -> Share:
    distributed = getattr(model, MARK, None)
    return Share() if distributed is None else Share.of(distributed.strategy)


def _made(creator: DatasetCreator, model: Any) -> Any:
    return creator(input_context(_share(model)))


def _narrowed(value: Any, narrows: bool) -> Any:
    found = arrays(value)
    return jax.tree.map(lambda one: narrow(one) if isinstance(one, np.ndarray) else one, found) if narrows else found


def _read(model: Any, x: Any, kind: str, class_weight: Any = None) -> Any:
    """A dataset as an adapter of Keras's; anything else as it is, in arrays."""
    narrows = not has_own(model, kind)
    if isinstance(x, DatasetCreator):
        return DatasetAdapter(_made(x, model), class_weight, narrows=narrows)
    if not is_dataset(x):
        return x if hasattr(x, "__next__") or isinstance(x, DatasetAdapter) else _narrowed(x, narrows)
    share = _share(model)
    cuts = kind == "train" and share.alike and share.workers > 1
    return DatasetAdapter(x, class_weight, (share.index, share.workers) if cuts else None, narrows=narrows)


@contextmanager
def _own_steps(model: Any, own: bool) -> Iterator[None]:
    before = getattr(model, _OWN, False)
    object.__setattr__(model, _OWN, own)
    try:
        yield
    finally:
        object.__setattr__(model, _OWN, before)


@contextmanager
def _as_compiled(model: Any) -> Iterator[None]:
    """Trains the layers that were trainable when the model was compiled."""
    is_ours = not hasattr(model, MARK) or strategy_of(model) is not None
    state = (getattr(model, "_compiled_trainable_state", None) or {}) if is_ours else {}
    other = [(layer, layer.trainable) for layer, trains in state.items() if layer.trainable != trains]
    now = [(layer, layer.trainable) for layer in state] if other else []
    for layer, _ in now:
        _set_trainable(layer, state[layer])
    try:
        yield
    finally:
        for layer, trains in now:
            _set_trainable(layer, trains)


def _set_trainable(layer: Any, trains: bool) -> None:
    if layer.trainable != trains:
        layer.trainable = trains


def _fit(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def fit(self: Any, x: Any = None, y: Any = None, batch_size: Any = None, epochs: int = 1, verbose: Any = "auto",
            callbacks: Any = None, **kwargs: Any) -> Any:  # fmt: skip
        for name in _UNUSED:
            kwargs.pop(name, None)
        names = ("validation_split", "validation_data", "shuffle", "class_weight", "sample_weight")
        split, validation, shuffle, class_weight, weights = (kwargs.pop(name, None) for name in names)
        shuffle = True if shuffle is None else shuffle
        if is_dataset(x):
            check_end(x, kwargs.get("steps_per_epoch"), "fit", "steps_per_epoch")
            if y is not None:
                raise ValueError("`y` argument is not supported when using dataset as input.")
            if split:
                raise ValueError("`validation_split` is only supported for Tensors or NumPy arrays, found a dataset.")
        elif isinstance(x, DatasetCreator) and not kwargs.get("steps_per_epoch"):
            raise ValueError(
                "When using a `tf.keras.utils.experimental.DatasetCreator`, `steps_per_epoch`, `validation_steps`, "
                "`steps`, or `pss_evaluation_shards` argument must be provided in `Model.fit`, `Model.evaluate`, or "
                "`Model.predict`."
            )
        own = has_own(self, "train")
        adapter = None
        if own and strategy_of(self) is not None and not split:
            x = adapter = replica_adapter(self, x, y, weights, batch_size, shuffle)
            y = weights = None
        else:
            x = _read(self, x, "train", class_weight)
        if isinstance(x, DatasetAdapter):
            class_weight, shuffle = None, False
        y, weights = _narrowed(y, not own), arrays(weights)
        if split and validation is None:
            (x, y, weights), validation = train_validation_split((x, y, weights), validation_split=split)
        if is_dataset(validation) or isinstance(validation, DatasetCreator):
            check_end(validation, kwargs.get("validation_steps"), "fit", "validation_steps")
            validation = (_read(self, validation, "test"),)
        elif validation is not None and not hasattr(validation, "__getitem__"):
            validation = (validation,)
        elif isinstance(validation, tuple | list):
            validation = _narrowed(tuple(validation), not has_own(self, "test"))
        if own and not isinstance(callbacks, keras.callbacks.CallbackList):
            x = get_data_adapter(
                x, y, sample_weight=weights, batch_size=batch_size, steps_per_epoch=kwargs.get("steps_per_epoch"),
                shuffle=shuffle, class_weight=class_weight,
            )  # fmt: skip
            y = weights = class_weight = None
            callbacks = Callbacks(
                of_process(callbacks, getattr(strategy_of(self), "process", 0)),
                add_history=True,
                add_progbar=verbose != 0,
                verbose=verbose,
                epochs=epochs,
                steps=kwargs.get("steps_per_epoch") or x.num_batches,
                model=self,
            )
        run = functools.partial(_of_keras["fit"], self) if own else functools.partial(original, self)
        if own:
            if not isinstance(self.train_function, Steps):
                self.train_function = Steps(self, "train")
            self.train_function.run = None if adapter is None else runner(self, adapter)
        with _own_steps(self, own), _as_compiled(self):
            return run(
                x=x, y=y, batch_size=batch_size, epochs=epochs, verbose=verbose, callbacks=callbacks,
                validation_data=validation, shuffle=shuffle, class_weight=class_weight, sample_weight=weights, **kwargs,
            )  # fmt: skip

    return fit


def _evaluate(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def evaluate(self: Any, x: Any = None, y: Any = None, batch_size: Any = None, verbose: Any = "auto",
                 sample_weight: Any = None, **kwargs: Any) -> Any:  # fmt: skip
        for name in _UNUSED:
            kwargs.pop(name, None)
        if is_dataset(x):
            check_end(x, kwargs.get("steps"), "evaluate", "steps")
        own = has_own(self, "test")
        with _own_steps(self, own):
            return original(
                self, x=_read(self, x, "test"), y=_narrowed(y, not own), batch_size=batch_size, verbose=verbose,
                sample_weight=arrays(sample_weight), **kwargs,
            )  # fmt: skip

    return evaluate


def _predict(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def predict(self: Any, x: Any, batch_size: Any = None, verbose: Any = "auto", steps: Any = None,
                callbacks: Any = None, **kwargs: Any) -> Any:  # fmt: skip
        for name in _UNUSED:
            kwargs.pop(name, None)
        if is_dataset(x):
            check_end(x, steps, "predict", "steps")
        with _own_steps(self, has_own(self, "predict")):
            return original(self, _read(self, x, "predict"), batch_size, verbose, steps, callbacks, **kwargs)

    return predict


def _on_batch(original: Callable[..., Any], kind: str) -> Callable[..., Any]:
    @functools.wraps(original)
    def on_batch(self: Any, x: Any, *args: Any, reset_metrics: bool = True, **kwargs: Any) -> Any:
        del reset_metrics
        given = arrays((x, *args))
        named = {name: arrays(one) if name in ("y", "sample_weight") else one for name, one in kwargs.items()}
        with _own_steps(self, has_own(self, kind)), _as_compiled(self):
            return original(self, *given, **named)

    return on_batch


def _making(original: Callable[..., Any], kind: str) -> Callable[..., Any]:
    """Keras's `make_train_function` and the like."""

    def make(self: Any, force: bool = False) -> Any:
        load_deferred(self)
        if not getattr(self, _OWN, False):
            if isinstance(getattr(self, f"{kind}_function"), Steps):
                setattr(self, f"{kind}_function", None)
            return original(self, force=force)
        if force or not isinstance(getattr(self, f"{kind}_function"), Steps):
            setattr(self, f"{kind}_function", Steps(self, kind))
        return getattr(self, f"{kind}_function")

    return make


def _state(original: Callable[..., Any]) -> Callable[..., Any]:
    def get(self: Any, **which: Any) -> Any:
        return () if getattr(self, _OWN, False) else original(self, **which)

    return get


def _symbolic_build(original: Callable[..., Any]) -> Callable[..., Any]:
    def build(self: Any, *args: Any, **kwargs: Any) -> None:
        if getattr(self, _OWN, False):
            return
        original(self, *args, **kwargs)
        load_deferred(self)

    return build


def _results(original: Callable[..., Any]) -> Callable[..., Any]:
    """What an epoch's logs are: what steps of one's own have returned last."""

    def get(self: Any, logs: Any) -> Any:
        return logs if getattr(self, _OWN, False) and isinstance(logs, dict) else original(self, logs)

    return get


_WRAPPERS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "fit": _fit,
    "evaluate": _evaluate,
    "predict": _predict,
    "train_on_batch": functools.partial(_on_batch, kind="train"),
    "test_on_batch": functools.partial(_on_batch, kind="test"),
    "predict_on_batch": functools.partial(_on_batch, kind="predict"),
}


def of_strategy(model: Any, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """What stands in the place of a model's method where a strategy trains it."""
    wrap = _WRAPPERS.get(name)
    if wrap is None:
        return method
    return functools.partial(wrap(lambda _, *args, **kwargs: method(*args, **kwargs)), model)


def install() -> None:
    """Has Keras's methods take what TensorFlow's take."""
    _of_keras["fit"] = JAXTrainer.fit
    for name, wrap in _WRAPPERS.items():
        setattr(JAXTrainer, name, wrap(getattr(JAXTrainer, name)))
    for kind in ("train", "test", "predict"):
        setattr(JAXTrainer, f"make_{kind}_function", _making(getattr(JAXTrainer, f"make_{kind}_function"), kind))
    JAXTrainer._get_jax_state = _state(JAXTrainer._get_jax_state)  # noqa: SLF001 - see the file `inside`
    JAXTrainer._symbolic_build = _symbolic_build(JAXTrainer._symbolic_build)  # noqa: SLF001
    JAXTrainer._get_metrics_result_or_logs = _results(JAXTrainer._get_metrics_result_or_logs)  # noqa: SLF001
    JAXTrainer.wrap_distributed = of_strategy
