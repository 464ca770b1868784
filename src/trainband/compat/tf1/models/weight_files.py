"""Files of a model's variables: HDF5 in Keras's layout where the name says so, else safetensors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from trainband.checkpoint.hdf5 import opened_hdf5
from trainband.compat.tf1.models import architecture, phase
from trainband.model.weights_file import write_weights
from trainband.runtime.regular_files import fixed_path

_HDF5 = (".h5", ".hdf5", ".keras")
_SUFFIX = ".safetensors"


def save(model: Any, path: str, overwrite: bool = True, form: str | None = None) -> None:
    """Writes the values of a model's variables.

    Raises:
      FileExistsError: there is a file already, and it must not be overwritten.
    """
    is_hdf5 = form in ("h5", "hdf5", "keras") or (form is None and path.endswith(_HDF5))
    target = Path(path if is_hdf5 else path + _SUFFIX)
    if target.exists() and not overwrite:
        raise FileExistsError(f"{target} exists already.")
    target.parent.mkdir(parents=True, exist_ok=True)
    if is_hdf5:
        with _opened(target, "w") as file:
            _write(file, model)
        return
    values = {name: np.ascontiguousarray(value) for name, value in zip(_names(model), model.get_weights(), strict=True)}
    write_weights(target, values)


def load(model: Any, path: str, by_name: bool = False) -> None:
    """Reads the values of a model's variables.

    Raises:
      ValueError: the file is of another model, or the model has no variables yet.
    """
    variables = model.weights
    if not variables:
        raise ValueError(
            "Unable to load weights into a model which has not created its variables yet. Call the model first, or "
            "give its first layer an input_shape."
        )
    if Path(path).is_file() and not path.endswith(_SUFFIX):
        with _opened(Path(path), "r") as file:
            _read(file.get("model_weights", file), model, by_name)
        return
    with fixed_path(path if path.endswith(_SUFFIX) else path + _SUFFIX) as fixed:
        there = load_file(fixed)
    names = _names(model)
    if by_name:
        known = [(one, name) for one, name in zip(variables, names, strict=True) if name in there]
        _give([one for one, _ in known], [there[name] for _, name in known])
        return
    if set(there) != set(names):
        raise ValueError(f"{path} has the variables {sorted(there)}, but the model has {sorted(names)}.")
    model.set_weights([there[name] for name in names])


def _opened(path: Path, mode: str) -> Any:
    try:
        import h5py
    except ImportError as exc:
        raise ImportError(
            f"{path} is an HDF5 file, which needs h5py: pip install h5py. Without it, choose a name that does not end "
            f"in {' or '.join(_HDF5)}."
        ) from exc
    return opened_hdf5(path) if mode == "r" else h5py.File(path, mode)


def _names(model: Any) -> list[str]:
    """A name for each variable that does not depend on the numbers of a graph's layers: layer, place, name."""
    found = []
    for one in model.weights:
        name = one.op_name
        while name in found:
            name += "_"
        found.append(name)
    return found


def _write(file: Any, model: Any) -> None:
    layers = model.layers
    file.attrs["layer_names"] = [layer.name.encode() for layer in layers]
    file.attrs["backend"] = b"tensorflow"
    for layer in layers:
        group = file.create_group(layer.name)
        names = [one.name for one in layer.weights]
        group.attrs["weight_names"] = [name.encode() for name in names]
        for name, value in zip(names, layer.get_weights() if names else [], strict=True):
            group.create_dataset(name, data=value)


def _text(names: Sequence[Any]) -> list[str]:
    return [name.decode() if isinstance(name, bytes) else str(name) for name in names]


def _read(file: Any, model: Any, by_name: bool) -> None:
    there = [(name, file[name]) for name in _text(file.attrs["layer_names"])]
    stored = [(name, group) for name, group in there if len(group.attrs["weight_names"])]
    layers = [layer for layer in model.layers if layer.weights]
    if by_name:
        by = {layer.name: layer for layer in layers}
        pairs = [(by[name], group) for name, group in stored if name in by]
    elif len(stored) != len(layers):
        raise ValueError(
            f"You are trying to load a weight file containing {len(stored)} layers into a model with {len(layers)} "
            f"layers."
        )
    else:
        pairs = [(layer, group) for layer, (_, group) in zip(layers, stored, strict=True)]
    for layer, group in pairs:
        layer.set_weights([np.asarray(group[name]) for name in _text(group.attrs["weight_names"])])


def _give(variables: Sequence[Any], values: Sequence[Any]) -> None:
    if variables:
        feeds = {one.initializer.inputs[0]: value for one, value in zip(variables, values, strict=True)}
        phase.current_session().run([one.initializer for one in variables], feeds)


# --- whole models


def save_model(model: Any, path: Any, overwrite: bool = True, include_optimizer: bool = True) -> None:
    """Writes a model's layers and the values of its variables as HDF5.

    Raises:
      FileExistsError: there is a file already, and it must not be overwritten.
    """
    del include_optimizer
    target = Path(str(path))
    if target.exists() and not overwrite:
        raise FileExistsError(f"{target} exists already.")
    description = architecture.to_json(model)
    target.parent.mkdir(parents=True, exist_ok=True)
    with _opened(target, "w") as file:
        file.attrs["trainband_model"] = description.encode()
        _write(file.create_group("model_weights"), model)


def load_model(filepath: Any, custom_objects: Any = None, compile: bool = True) -> Any:  # noqa: A002 - Keras's name
    """Reads a model that `save_model` wrote; it must be compiled again to be trained.

    Raises:
      ValueError: another program wrote the file.
    """
    del compile
    with _opened(Path(str(filepath)), "r") as file:
        text = file.attrs.get("trainband_model")
        if text is None:
            raise ValueError(
                f"{filepath} does not describe its layers as trainband does: make the model, and use load_weights."
            )
        try:
            model = architecture.from_json(text.decode() if isinstance(text, bytes) else text, custom_objects)
        except (LookupError, TypeError, AttributeError, RecursionError) as exc:
            raise ValueError(f"{filepath} does not describe a model ({type(exc).__name__}: {exc}).") from exc
        _read(file["model_weights"], model, False)
    return model
