"""A Keras model as what is exported, compressed and served."""

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
from trainband.keras.inside import keras
from trainband.model.inference import InferenceProgram, Tensors
from trainband.model.predictor import Predictor
from trainband.model.signature import BATCH, TensorSpec
from trainband.model.variables import PyTree
from trainband.runtime.overrides import override

_PARAMS, _STATE = "params/", "model_state/"


def _is_of_training(name: str) -> bool:
    """Whether a tensor of a checkpoint is for training alone: the digest of frozen weights, or a random stream."""
    return name == f"{_STATE}{FROZEN}" or name.rpartition("/")[2] == "seed_generator_state"


class KerasPredictor(Predictor):
    """The predictor of a Keras model: what it computes with `training=False`, by the names of its jobs.

    A checkpoint holds what training changes. What it does not hold, such as the weights of frozen layers, is the
    model's own. Without a checkpoint, all are.

    Args:
      model: built.
      example: a batch to trace it with and to try it on: an array, or a dict by the names of the inputs. Without one,
        random numbers in the shapes of its inputs.

    Raises:
      ModelError: the model is not built.
    """

    def __init__(self, model: Any, example: PyTree = None) -> None:
        if not isinstance(model, keras.Model):
            raise ModelError(f"a KerasPredictor wants a Keras model, got {model!r}.")
        if not model.built:
            raise ModelError(f"the Keras model {model.name} has no weights yet: call it once, or give it an Input.")
        self.model = model
        self._trained = named(model.trainable_variables)
        # Random streams draw nothing here: they stay as they are, and are among nobody's weights.
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
                f"{source or 'what is given'} is of another model: {self.name} has {missing[0]}, and it has not. Keras "
                "numbers layers that have no name in the order in which a process makes them; give each a name."
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
        """What a batch is made of, as the model's own inputs say it; empty if it has none.

        An axis besides the first whose length is open is named by its input and its place, such as `tokens_1`.
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
        """A checkpoint says by a digest which frozen weights it was trained with."""
        wanted = given.get(f"{_STATE}{FROZEN}")
        if not isinstance(wanted, np.ndarray):
            return
        frozen = [variable for name, variable in self._state.items() if f"{_STATE}{name}" not in given]
        if not np.array_equal(wanted, digest_of(self.model, frozen)):
            raise ModelMismatch(
                f"{source or 'the checkpoint'} was trained with other values of what {self.name} does not train "
                f"({', '.join(variable.path for variable in frozen[:3])}): load those into the model first."
            )


def predictor_of(model: Any, example: PyTree = None) -> KerasPredictor:
    """What of a Keras model goes out of the door; see `KerasPredictor`."""
    return KerasPredictor(model, example)


def predictor_of_file(path: str | Path) -> KerasPredictor:
    """The same of a model in a `.keras` file.

    Raises:
      ModelError: Keras cannot load it.
    """
    try:
        return KerasPredictor(keras.saving.load_model(path, compile=False))
    except (ValueError, TypeError, OSError) as exc:
        reason = (str(exc).strip().splitlines() or [type(exc).__name__])[0]
        raise ModelError(f"{path} cannot be loaded by Keras {keras.__version__}: {reason}") from exc


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
    """Exports a Keras model with the weights that it has.

    Args:
      model: built.
      out: the directory to make.
      to: one of `trainband.export.TARGETS`.
      example: a batch; see `KerasPredictor`.
      batch: how many examples every call will have; any number when `None`.
      force: whether an earlier export in `out` is replaced.
      options: what only some formats have.

    Raises:
      ModelError: the model cannot be exported to this format, or computes something else there.
      YourError: `out` is there, or a library is missing.
    """
    program = KerasPredictor(model, example).program(batch=batch)
    return export_program(program, out, to, force=force, options=options)


def _values(variables: Mapping[str, Any]) -> dict[str, Any]:
    return {name: jnp.zeros(variable.shape, variable.dtype) for name, variable in variables.items()}


def _names_of(model: Any) -> list[str]:
    """The names of a model's inputs; `input`, where it has a single one without a name of its own."""
    structure = getattr(model, "input", None) if getattr(model, "inputs", None) else None
    if isinstance(structure, dict):
        return [_identifier(key) for key in sorted(structure)]
    names = [_identifier(tensor.name) for tensor in getattr(model, "inputs", None) or []]
    return ["input"] if len(names) == 1 else names


def _arranged(model: Any, batch: PyTree) -> PyTree:
    """A batch as the model wants it: in the structure that its inputs have."""
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
