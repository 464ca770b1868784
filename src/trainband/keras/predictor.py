"""A Keras model for export, compression and serving."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from trainband.errors import ModelError, ModelMismatch
from trainband.export import ExportReport, Options, export_program
from trainband.export.targets.base import NO_OPTIONS
from trainband.keras.function import FROZEN, digest_of, named, seed_generators
from trainband.keras.keras_internals import keras
from trainband.keras.model_files import check_model_file
from trainband.model.inference import InferenceProgram, Tensors
from trainband.model.predictor import Predictor
from trainband.model.signature import BATCH, TensorSpec
from trainband.model.variables import PyTree
from trainband.runtime.overrides import override

_PARAMS, _STATE = "params/", "model_state/"


def _is_of_training(name: str) -> bool:
    """Whether a checkpoint's tensor is only for training: the digest of frozen weights, or a random stream."""
    return name == f"{_STATE}{FROZEN}" or name.rpartition("/")[2] == "seed_generator_state"


class KerasPredictor(Predictor):
    """The predictor of a Keras model: its function with `training=False`, with weights named as in its jobs.

    A checkpoint holds the values that training changes. Others, such as the weights of frozen layers, are the model's
    own; without a checkpoint, all are.

    Args:
      model: built.
      example: a batch to trace and try it with: an array, or a dict by the names of the inputs. Without one,
        random numbers in the shapes of its inputs.

    Raises:
      ModelError: the model is not built.
    """

    def __init__(self, model: Any, example: PyTree = None) -> None:
        if not isinstance(model, keras.Model):
            raise ModelError(f"KerasPredictor needs a Keras model, got {model!r}.")
        if not model.built:
            raise ModelError(f"the Keras model {model.name} has no weights yet: call it once, or give it an Input.")
        self.model = model
        self._trained = named(model.trainable_variables)
        # Random streams are not drawn from here: they stay unchanged, and are not weights.
        streams = {id(generator.state) for generator in seed_generators(model)}
        self._state = {
            name: variable
            for name, variable in named(model.non_trainable_variables).items()
            if id(variable) not in streams
        }
        super().__init__(
            self._function(),
            example=example,
            init=lambda _: _values(self._trained),
            init_state=lambda _: _values(self._state),
        )

    @override
    def program(
        self,
        weights: Mapping[str, NDArray[Any]] | None = None,
        *,
        example: PyTree = None,
        inputs: tuple[TensorSpec, ...] = (),
        batch: int | None = None,
        source: str = "",
        global_step: int = 0,
        shapes: Mapping[str, Any] | None = None,
        decode: Callable[[Tensors], Mapping[str, Any]] | None = None,
    ) -> InferenceProgram:
        own = {f"{_PARAMS}{name}": variable for name, variable in self._trained.items()}
        kept = {f"{_STATE}{name}": variable for name, variable in self._state.items()}
        given = weights if shapes is None else shapes
        if weights is None:
            weights, given, source = {}, {}, source or f"the Keras model {self.name}"
            kept |= own
        elif missing := sorted(own.keys() - given.keys()):  # type: ignore[union-attr]
            raise ModelMismatch(
                f"{source or 'what is given'} is of another model: it lacks {missing[0]} of {self.name}. Keras "
                "numbers unnamed layers in the order in which a process makes them; give each a name."
            )
        assert given is not None
        self._check_frozen(given, source)
        extra = {name: np.asarray(variable.value) for name, variable in kept.items() if name not in given}
        stored = {name: leaf for name, leaf in weights.items() if not _is_of_training(name)}

        def decoded(tensors: Tensors) -> dict[str, Any]:
            assert decode is not None
            found = decode({name: tensors[name] for name in stored})
            used = {name: leaf for name, leaf in found.items() if not _is_of_training(name)}
            return used | {name: tensors[name] for name in extra}

        example = self.example if example is None else example
        return super().program(
            {**stored, **extra},
            example=example,
            inputs=inputs or (self.inputs() if example is None else ()),
            batch=batch,
            source=source,
            global_step=global_step,
            shapes=None
            if shapes is None
            else {**{name: shape for name, shape in shapes.items() if not _is_of_training(name)}, **extra},
            decode=None if decode is None else decoded,
        )

    def inputs(self) -> tuple[TensorSpec, ...]:
        """The parts of a batch, from the model's own inputs; empty if it has none.

        An axis of open length besides the first is named by its input and index, such as `tokens_1`.
        """
        tensors = getattr(self.model, "inputs", None) or []
        names = _names_of(self.model)
        return tuple(
            TensorSpec(
                name,
                keras.backend.standardize_dtype(tensor.dtype),
                tuple(
                    length if length is not None else BATCH if axis == 0 else f"{name}_{axis}"
                    for axis, length in enumerate(tensor.shape)
                ),
            )
            for name, tensor in zip(names, tensors, strict=True)
        )

    def _function(self) -> Callable[..., Any]:
        model, trained, state = self.model, self._trained, self._state
        names = {id(variable): name for name, variable in state.items()}
        others = list(model.non_trainable_variables)
        outputs = getattr(model, "output_names", None) or []

        def predict(params: Mapping[str, Any], held: Mapping[str, Any], batch: PyTree) -> PyTree:
            values = [held[names[id(var)]] if id(var) in names else jnp.asarray(var.value) for var in others]
            found, _ = model.stateless_call(
                [params[name] for name in trained], values, _arranged(model, batch), training=False
            )
            if isinstance(found, list | tuple) and len(outputs) == len(found) > 1:
                return dict(zip(outputs, found, strict=True))
            return found

        predict.__name__ = model.name
        return predict

    def _check_frozen(self, given: Mapping[str, Any], source: str) -> None:
        """Checks by a checkpoint's digest that the frozen weights are those it was trained with."""
        wanted = given.get(f"{_STATE}{FROZEN}")
        if not isinstance(wanted, np.ndarray):
            return
        frozen = [variable for name, variable in self._state.items() if f"{_STATE}{name}" not in given]
        if not np.array_equal(wanted, digest_of(self.model, frozen)):
            raise ModelMismatch(
                f"{source or 'the checkpoint'} was trained with other values of the frozen weights of {self.name} "
                f"({', '.join(variable.path for variable in frozen[:3])}): load those into the model first."
            )


def predictor_of(model: Any, example: PyTree = None) -> KerasPredictor:
    """Returns the predictor of a Keras model; see `KerasPredictor`."""
    return KerasPredictor(model, example)


def predictor_of_file(path: str | Path) -> KerasPredictor:
    """Returns the predictor of a model in a `.keras` file.

    Raises:
      ModelError: Keras cannot load it.
    """
    try:
        check_model_file(Path(path))
        return KerasPredictor(keras.saving.load_model(path, compile=False))
    except (ValueError, TypeError, KeyError, AttributeError, OSError, RuntimeError, MemoryError) as exc:
        reason = (str(exc).strip().splitlines() or [type(exc).__name__])[0]
        raise ModelError(f"Keras {keras.__version__} cannot load {path}: {reason}") from exc


def export(
    model: Any,
    out: str | Path,
    *,
    to: str = "stablehlo",
    example: PyTree = None,
    batch: int | None = None,
    force: bool = False,
    options: Options = NO_OPTIONS,
) -> ExportReport:
    """Exports a Keras model with its current weights.

    Args:
      model: built.
      out: the directory to make.
      to: one of `trainband.export.TARGETS`.
      example: a batch; see `KerasPredictor`.
      batch: number of examples in every call; any number when `None`.
      force: whether to replace an earlier export in `out`.
      options: for some formats only.

    Raises:
      ModelError: the model cannot be exported to this format, or its results differ there.
      YourError: `out` exists, or a library is missing.
    """
    program = KerasPredictor(model, example).program(batch=batch)
    return export_program(program, out, to, force=force, options=options)


def _values(variables: Mapping[str, Any]) -> dict[str, Any]:
    return {name: jnp.zeros(variable.shape, variable.dtype) for name, variable in variables.items()}


def _names_of(model: Any) -> list[str]:
    """Returns the names of a model's inputs; `input`, for a single one without its own name."""
    structure = getattr(model, "input", None) if getattr(model, "inputs", None) else None
    if isinstance(structure, dict):
        return [_identifier(key) for key in sorted(structure)]
    names = [_identifier(tensor.name) for tensor in getattr(model, "inputs", None) or []]
    return ["input"] if len(names) == 1 else names


def _arranged(model: Any, batch: PyTree) -> PyTree:
    """Arranges a batch in the structure of the model's inputs."""
    names = _names_of(model)
    if not isinstance(batch, dict) or not names:
        return batch
    structure = model.input
    if isinstance(structure, dict):
        return {key: batch[_identifier(key)] for key in structure}
    if len(names) == 1:
        (only,) = batch.values()
        return only
    return type(structure)(batch[name] for name in names)


def _identifier(name: str) -> str:
    return "".join(char if char.isalnum() else "_" for char in name)
