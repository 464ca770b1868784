"""What `tf.keras` uses of Keras that Keras does not promise to keep, in one file, so that it is found."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

from trainband.keras.keras_internals import JAXTrainer, keras

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from keras._tf_keras import keras as old_keras  # Keras 3 under the names that TensorFlow shows

from keras.src import activations as activations_module
from keras.src import backend as backend_module
from keras.src import losses as losses_module
from keras.src import metrics as metrics_module
from keras.src.backend.common.symbolic_scope import SymbolicScope, in_symbolic_scope
from keras.src.callbacks import callback_list
from keras.src.losses.losses import LossFunctionWrapper
from keras.src.metrics.reduction_metrics import MeanMetricWrapper
from keras.src.random import seed_generator as seed_module
from keras.src.trainers.compile_utils import CompileLoss, CompileMetrics
from keras.src.trainers.data_adapters import data_adapter_utils
from keras.src.utils import module_utils as utils_module
from keras.src.utils.python_utils import pythonify_logs

__all__ = [
    "CompileLoss",
    "CompileMetrics",
    "JAXTrainer",
    "LossFunctionWrapper",
    "MeanMetricWrapper",
    "SymbolicScope",
    "activations_module",
    "as_layers_see",
    "backend_module",
    "callback_list",
    "held",
    "hide_tensorflow",
    "in_symbolic_scope",
    "keras",
    "loss_tracker",
    "losses_module",
    "metrics_module",
    "modules",
    "old_keras",
    "on_assignment",
    "own_losses",
    "pythonify_logs",
    "seed_module",
    "set_held",
    "unpack",
    "weights_sample",
]


def held(variable: Any) -> Any:
    """What a variable holds, before it is cast for a layer."""
    return variable._value  # noqa: SLF001


def set_held(variable: Any, value: Any) -> None:
    """Has a variable hold something else."""
    variable._value = value  # noqa: SLF001


def as_layers_see(variable: Any, value: Any) -> Any:
    """A value of a variable, cast for the layer that reads it."""
    return variable._maybe_autocast(value)  # noqa: SLF001


def on_assignment(keeps: Callable[[Any, Any], bool]) -> None:
    """Asks `keeps` of each value that Keras assigns to a variable itself, whether it is kept elsewhere."""
    directly = keras.Variable._direct_assign  # noqa: SLF001

    def assign(self: Any, value: Any) -> None:
        if not keeps(self, value):
            directly(self, value)

    keras.Variable._direct_assign = assign  # noqa: SLF001


def modules(path: str) -> list[ModuleType]:
    """The modules of Keras at `layers`, say: that with the names which TensorFlow shows, and Keras's own."""
    found = []
    for root in (old_keras, keras):
        one: Any = root
        for part in path.split(".") if path else ():
            one = getattr(one, part, None)
        if isinstance(one, ModuleType):
            found.append(one)
    return found


def own_losses(layer: Any) -> list[Any]:
    """The losses that a layer has added itself."""
    found: list[Any] = layer._get_own_losses()  # noqa: SLF001
    return found


def loss_tracker(model: Any) -> Any:
    """The metric that a compiled model keeps of its loss."""
    return model._loss_tracker  # noqa: SLF001


def unpack(data: Any) -> tuple[Any, Any, Any]:
    """(x, y, sample_weight) of a batch."""
    found: tuple[Any, Any, Any] = data_adapter_utils.unpack_x_y_sample_weight(data)
    return found


def weights_sample(y: Any, class_weight: Any) -> Any:
    """The weight of each example, by its class."""
    return data_adapter_utils.class_weight_to_sample_weights(y, class_weight)


def hide_tensorflow() -> None:
    """Keeps Keras from taking the module that stands for TensorFlow in scripts for TensorFlow itself."""
    for name in ("tensorflow", "gfile"):
        getattr(utils_module, name)._available = False  # noqa: SLF001
