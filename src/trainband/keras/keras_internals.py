"""Private parts of Keras that trainband uses. One file, so that it is found when Keras changes.

Keras has no public way to replace the step of `fit`, or to split its data among workers. All of this is the same in
Keras 3.10 to 3.15; a test checks the installed version.
"""

from __future__ import annotations

import sys
import warnings
from types import ModuleType
from typing import Any

from trainband.errors import ModelError

SWITCH = (
    "set the environment variable KERAS_BACKEND=jax before Python starts (or os.environ['KERAS_BACKEND'] = 'jax' "
    'before the first `import keras`), or "backend": "jax" in ~/.keras/keras.json'
)
"""How to make Keras compute with JAX."""


def checked_keras() -> ModuleType:
    """Returns Keras, if it is installed and computes with JAX.

    Raises:
      ModelError: it is not installed, is Keras 2, or has another backend.
    """
    try:
        import keras
    except ModuleNotFoundError as exc:
        if exc.name == "keras":
            raise ModelError(
                "training a Keras model needs Keras, which is not installed: pip install 'trainband[keras]'."
            ) from exc
        raise ModelError(f"Keras's backend needs {exc.name}, which is not installed; {SWITCH}.") from exc
    version = str(keras.__version__)
    if int(version.split(".")[0]) < 3:
        raise ModelError(
            f"trainband trains models of Keras 3, but Keras {version} is installed: pip install 'keras>=3.10'."
        )
    if keras.backend.backend() != "jax":
        raise ModelError(f"Keras computes with {keras.backend.backend()} here, but trainband needs JAX; {SWITCH}.")
    found: ModuleType = keras
    return found


def is_loaded() -> bool:
    """Whether the program has imported Keras."""
    return "keras" in sys.modules


keras = checked_keras()

from keras.src.backend.common.stateless_scope import in_stateless_scope  # noqa: E402 - see the next
from keras.src.backend.jax.trainer import JAXTrainer  # noqa: E402 - only where Keras computes with JAX
from keras.src.trainers.data_adapters import data_adapter_utils, get_data_adapter  # noqa: E402
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter, can_convert_arrays  # noqa: E402
from keras.src.trainers.data_adapters.array_slicing import (  # noqa: E402
    convert_to_sliceable,
    train_validation_split,
)
from keras.src.trainers.data_adapters.data_adapter import DataAdapter  # noqa: E402
from keras.src.trainers.data_adapters.generator_data_adapter import GeneratorDataAdapter  # noqa: E402
from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter  # noqa: E402

NAMES = (
    "keras.src.backend.common.stateless_scope.in_stateless_scope",
    "keras.src.backend.jax.trainer.JAXTrainer.make_train_function",
    "keras.src.backend.jax.trainer.JAXTrainer.jax_state_sync",
    "keras.src.backend.jax.trainer.JAXTrainer.compute_loss_and_updates",
    "keras.src.backend.jax.trainer.JAXTrainer._update_metrics_variables",
    "keras.src.trainers.data_adapters.get_data_adapter",
    "keras.src.trainers.data_adapters.data_adapter_utils.unpack_x_y_sample_weight",
    "keras.src.trainers.data_adapters.array_data_adapter.ArrayDataAdapter",
    "keras.src.trainers.data_adapters.array_data_adapter.can_convert_arrays",
    "keras.src.trainers.data_adapters.array_slicing.convert_to_sliceable",
    "keras.src.trainers.data_adapters.array_slicing.train_validation_split",
    "keras.src.trainers.data_adapters.data_adapter.DataAdapter",
    "keras.src.trainers.data_adapters.generator_data_adapter.GeneratorDataAdapter",
    "keras.src.trainers.data_adapters.py_dataset_adapter.PyDatasetAdapter",
    "keras.Model._flatten_layers",
)
"""Every private name of Keras that trainband needs, except for the attributes of `OF_INSTANCES`."""

OF_INSTANCES = {"optimizer": ("_iterations", "_learning_rate"), "model": ("_compile_loss", "_compile_metrics")}
"""Attributes of a compiled model and of its optimizer."""

__all__ = [
    "NAMES",
    "OF_INSTANCES",
    "ArrayDataAdapter",
    "DataAdapter",
    "GeneratorDataAdapter",
    "JAXTrainer",
    "PyDatasetAdapter",
    "can_convert_arrays",
    "compiled_with",
    "config_of",
    "convert_to_sliceable",
    "get_data_adapter",
    "in_stateless_scope",
    "iterations",
    "keras",
    "layers_of",
    "learning_rate",
    "losses_and_updates",
    "metrics_after",
    "train_validation_split",
    "unpacked",
]


def config_of(optimizer: Any) -> dict[str, Any]:
    """Returns an optimizer's config, without NumPy's warnings about how Keras reads the rate."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "__array__ implementation doesn't accept a copy", DeprecationWarning)
        found: dict[str, Any] = optimizer.get_config()
    return found


def iterations(optimizer: Any) -> Any:
    """Returns the variable that counts an optimizer's updates; its public property may be a quotient of it."""
    return optimizer._iterations  # noqa: SLF001


def learning_rate(optimizer: Any) -> Any:
    """Returns the variable that holds an optimizer's rate; `None` if a schedule computes it, as the property would."""
    variable = optimizer._learning_rate  # noqa: SLF001
    return variable if isinstance(variable, keras.Variable) else None


def compiled_with(model: Any) -> tuple[Any, Any]:
    """Returns the loss and metrics made by compile(), which may be called again."""
    return model._compile_loss, model._compile_metrics  # noqa: SLF001


def layers_of(model: Any) -> Any:
    """Returns the model's own walk over its parts."""
    return model._flatten_layers()  # noqa: SLF001


def unpacked(batch: Any) -> tuple[Any, Any, Any]:
    """Splits a batch of Keras's data adapters into (x, y, sample_weight)."""
    found: tuple[Any, Any, Any] = data_adapter_utils.unpack_x_y_sample_weight(batch)
    return found


def losses_and_updates(
    model: Any, trained: list[Any], others: list[Any], metrics: list[Any], batch: tuple[Any, Any, Any]
) -> tuple[Any, Any, Any, list[Any], list[Any]]:
    """(scaled loss, loss, y_pred, new non-trainable values, new metric values) of a batch in training; traceable."""
    x, y, sample_weight = batch
    loss, (unscaled, y_pred, others, metrics) = model.compute_loss_and_updates(
        trained, others, metrics, x, y, sample_weight, training=True, optimizer_variables=[]
    )
    return loss, unscaled, y_pred, others, metrics


def metrics_after(
    model: Any, metrics: list[Any], loss: Any, y_pred: Any, batch: tuple[Any, Any, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """(the metrics' values after a batch, the logs), by the model's own `compute_metrics`; traceable."""
    x, y, sample_weight = batch
    logs, found = model._update_metrics_variables(metrics, loss, x, y, y_pred, sample_weight)  # noqa: SLF001
    return list(found), dict(logs)
