"""Arguments and methods that models of Keras 2 had."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from trainband.compat.tf2.eager.function import TensorSpec
from trainband.compat.tf2.keras.inside import JAXTrainer, keras
from trainband.compat.tf2.keras.variables import inside
from trainband.keras.distributed import MARK

_UNUSED = ("experimental_run_tf_function", "sample_weight_mode", "target_tensors", "distribute", "from_serialized",
           "cloning", "pss_evaluation_shards")  # fmt: skip


SCALE = 1024.0
"""By what losses are multiplied in mixed_float16 where a strategy trains a model."""


def _compile(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def compile_(self: Any, *args: Any, **kwargs: Any) -> Any:
        for name in _UNUSED:
            kwargs.pop(name, None)
        steps = kwargs.pop("experimental_steps_per_execution", None)
        if steps is not None:
            kwargs["steps_per_execution"] = steps
        if kwargs.get("steps_per_execution", 1) is None:
            del kwargs["steps_per_execution"]
        if kwargs.get("run_eagerly", False) is None:
            del kwargs["run_eagerly"]
        if kwargs.get("jit_compile", "auto") is None:
            del kwargs["jit_compile"]
        found = original(self, *args, **kwargs)
        if hasattr(self, MARK):
            self.optimizer = without_own_scale(self.optimizer)
        return found

    return compile_


def without_own_scale(optimizer: Any) -> Any:
    """An optimizer whose loss scale stays as it is.

    One that follows the gradients would have to follow those of all processes, which leave out a gradient that is not
    finite by themselves.
    """
    if not isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return optimizer
    inner = optimizer.inner_optimizer
    inner.loss_scale_factor = SCALE
    return inner


def _add_metric(self: Any, value: Any, name: str | None = None, aggregation: str | None = "mean") -> None:
    """Keeps the mean of a value over batches; not in `fit`, whose steps know the metrics that were there before."""
    del aggregation
    if inside():
        return
    known = {one.name: one for one in self._metrics}
    metric = known.get(name)
    if metric is None:
        metric = keras.metrics.Mean(name=name)
        self._tracker.unlock()
        setattr(self, f"_metric_{name}", metric)
    metric.update_state(value)


def _fit_generator(self: Any, generator: Any, steps_per_epoch: Any = None, epochs: int = 1, **kwargs: Any) -> Any:
    return self.fit(generator, steps_per_epoch=steps_per_epoch, epochs=epochs, **kwargs)


def _begun(original: Callable[..., Any]) -> Callable[..., Any]:
    """The `__init__` of models, which programs also call as `super().__init__(self)`."""

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *(args[1:] if args and args[0] is self else args), **kwargs)

    return init


def _save_spec(self: Any, dynamic_batch: bool = True) -> Any:
    """The shapes and dtypes of what the model was called with; `None` before that."""
    shapes = getattr(self, "_build_shapes_dict", None)
    if not self.built or not shapes:
        return None
    shape = next(iter(shapes.values()))
    if not isinstance(shape, tuple):
        return None
    spec = TensorSpec((None if dynamic_batch else shape[0], *shape[1:]), self.compute_dtype, name="input_1")
    return [spec], {}


def install() -> None:
    """Gives Keras's models what those of Keras 2 had."""
    base = JAXTrainer.__mro__[1]  # Keras compares a model's compile with that of this class
    base.compile = _compile(base.compile)
    kind = keras.Model
    kind.__init__ = _begun(kind.__init__)
    kind.fit_generator = _fit_generator
    kind.save_spec = _save_spec
    kind.evaluate_generator = lambda self, generator, steps=None, **kwargs: self.evaluate(
        generator, steps=steps, **kwargs
    )
    kind.predict_generator = lambda self, generator, steps=None, **kwargs: self.predict(
        generator, steps=steps, **kwargs
    )
    keras.Layer.add_metric = _add_metric
    keras.Layer.updates = property(lambda _: [])
    keras.Layer.add_update = lambda self, updates, inputs=None: None  # noqa: ARG005
    kind.state_updates = property(lambda _: [])
