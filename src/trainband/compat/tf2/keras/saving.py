"""Saving and loading of models and weights under any name, as TensorFlow has it, in Keras's own formats."""

from __future__ import annotations

import functools
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from trainband.checkpoint.hdf5 import opened_hdf5
from trainband.compat.checkpoints.files import checkpoint_exists
from trainband.compat.tf2.keras.inside import keras, losses_module, metrics_module
from trainband.compat.tf2.saving.checkpoint import Checkpoint
from trainband.keras.model_files import check_model_file
from trainband.runtime.regular_files import regular_file, write_regular

_log = logging.getLogger(__name__)
_HDF5 = (".h5", ".hdf5")
_WHOLE = (".keras", *_HDF5)
_INSIDE = "keras_archive"
"""Where an HDF5 file also has the model in Keras's own format, which keeps all of how it was compiled."""
_MODEL = "model.keras"
"""The file of a model that was saved as a directory."""
_WEIGHTS = ".weights.h5"
_UNUSED = ("include_optimizer", "signatures", "options", "save_traces", "zipped")


class LoadStatus:
    """What `load_weights` returns: all that was asked for has been loaded."""

    def expect_partial(self) -> LoadStatus:
        """Itself."""
        return self

    assert_consumed = assert_existing_objects_matched = assert_nontrivial_match = expect_partial


def _save(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def save(self: Any, filepath: Any, overwrite: bool = True, save_format: str | None = None, **kwargs: Any) -> Any:
        for name in _UNUSED:
            kwargs.pop(name, None)
        path = os.fspath(filepath)
        if path.endswith(_HDF5) or save_format == "h5":
            return _through(path, "whole.h5", lambda file: _save_h5(self, original, file, kwargs))
        if path.endswith(".keras"):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            return original(self, path, overwrite=overwrite, **kwargs)
        if save_format == "keras":
            return _through(path, "whole.keras", lambda file: original(self, file, **kwargs))
        folder = Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        return original(self, str(folder / _MODEL), overwrite=True, **kwargs)

    return save


def _save_h5(model: Any, original: Callable[..., Any], file: str, settings: Any) -> None:
    import h5py

    archive = f"{file}.keras"
    original(model, archive, **settings)
    logger = logging.getLogger("absl")
    before = logger.level
    logger.setLevel(logging.ERROR)  # it advises another format, and that is in the file too
    try:
        original(model, file, **settings)
    except NotImplementedError:  # a class of the script's own
        Path(file).unlink(missing_ok=True)
    finally:
        logger.setLevel(before)
    with h5py.File(file, "a") as whole:
        whole.create_dataset(_INSIDE, data=np.frombuffer(Path(archive).read_bytes(), np.uint8))


def _through(path: str, name: str, write: Callable[[str], Any]) -> None:
    """Writes a file under a name that Keras takes, and gives it the one that is wanted."""
    target = Path(path).absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        file = Path(folder) / name
        write(str(file))
        file.replace(target)


def _save_weights(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def save_weights(
        self: Any, filepath: Any, overwrite: bool = True, save_format: Any = None, options: Any = None, **kwargs: Any
    ) -> Any:
        del options
        path = os.fspath(filepath)
        if path.endswith((_WEIGHTS, ".weights.json")):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            return original(self, path, overwrite=overwrite, **kwargs)
        if path.endswith((".h5", ".hdf5", ".keras")) or save_format == "h5":
            return _through(path, f"file{_WEIGHTS}", lambda file: original(self, file, **kwargs))
        _through(f"{path}{_WEIGHTS}", f"file{_WEIGHTS}", lambda file: original(self, file, **kwargs))
        target = Path(path).absolute()
        # What other programs, and tf.train.latest_checkpoint, look for.
        index = {"format": "weights of Keras 3", "file": f"{target.name}{_WEIGHTS}"}
        write_regular(Path(f"{path}.index"), json.dumps(index).encode())
        state = f'model_checkpoint_path: "{target.name}"\nall_model_checkpoint_paths: "{target.name}"\n'
        write_regular(target.parent / "checkpoint", state.encode())
        return None

    return save_weights


def _load_weights(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def load_weights(self: Any, filepath: Any, by_name: bool = False, skip_mismatch: bool = False, options: Any = None,
                     **kwargs: Any) -> Any:  # fmt: skip
        del options
        path = os.fspath(filepath)
        if not by_name and not _exists(path) and checkpoint_exists(path):  # by TensorFlow or `tf.train.Checkpoint`
            return _restored(self, path)
        optimizer = getattr(self, "optimizer", None)
        if optimizer is not None and not optimizer.built and self.built and self.trainable_variables:
            optimizer.build(self.trainable_variables)  # so that what it keeps is loaded too
        if not self.built and not by_name:
            if not _exists(path):
                raise _not_there(path)
            object.__setattr__(self, "_weights_to_load", path)
            return LoadStatus()
        if by_name:
            kwargs["by_name"] = True

        def load(file: str) -> None:
            check_model_file(Path(file))
            original(self, file, skip_mismatch=skip_mismatch, **kwargs)

        if path.endswith((_WEIGHTS, ".weights.json", ".keras")) and Path(path).exists() and not _is_h5(path, ".keras"):
            load(path)
        elif Path(f"{path}{_WEIGHTS}").is_file():
            load(f"{path}{_WEIGHTS}")
        elif (Path(path) / _MODEL).is_file():
            load(str(Path(path) / _MODEL))
        elif Path(path).is_file():
            if _is_of_keras_2(path) and path.endswith(_HDF5):
                load(path)
            else:
                with tempfile.TemporaryDirectory() as folder:
                    load(str(shutil.copy(path, Path(folder) / f"file{_WEIGHTS}")))
        elif Path(f"{path}.index").is_file():  # TensorFlow has written it
            Checkpoint(self).read(path).expect_partial()
        else:
            raise _not_there(path)
        return LoadStatus()

    return load_weights


def _restored(model: Any, path: str) -> Any:
    """Gives a model what a checkpoint has for it, also where its variables are yet to be made."""
    checkpoint = Checkpoint(model)
    object.__setattr__(model, "_weights_to_come", checkpoint)
    status = checkpoint.read(path)
    if model.built:
        status.assert_nontrivial_match()
    return status


def _exists(path: str) -> bool:
    return any(Path(f"{path}{ending}").exists() for ending in ("", _WEIGHTS, ".index"))


def _is_h5(path: str, ending: str) -> bool:
    if not path.endswith(ending) or not Path(path).is_file():
        return False
    with regular_file(path) as file:
        return file.read(4) == b"\x89HDF"


def _is_of_keras_2(path: str) -> bool:
    with opened_hdf5(Path(path)) as file:
        return "layer_names" in file.attrs or "model_weights" in file


def _not_there(path: str) -> Exception:
    from trainband.compat.tf1.graphs.errors import NotFoundError

    return NotFoundError(None, None, f"load_weights: there are no weights at {path}.")


def load_model(filepath: Any, custom_objects: Any = None, compile: bool = True, **kwargs: Any) -> Any:  # noqa: A002
    """The model that was saved under a name.

    Raises:
      OSError: there is none, or it is one that only TensorFlow reads.
    """
    kwargs.pop("options", None)
    path = os.fspath(filepath)
    inner = Path(path) / _MODEL
    if inner.is_file():
        path = str(inner)
    elif (Path(path) / "saved_model.pb").exists():
        raise OSError(
            f"load_model: {path} is a SavedModel, which only TensorFlow reads; save the model there with "
            "model.save('name.keras') or model.save('name.h5')."
        )
    elif not Path(path).exists():
        raise OSError(f"No file or directory found at {path}")
    elif Path(path).is_file() and not path.endswith(_WHOLE) and not _is_h5(path, ""):
        with tempfile.TemporaryDirectory() as folder:
            file = shutil.copy(path, Path(folder) / _MODEL)
            return _loaded(str(file), custom_objects=custom_objects, compile=compile, **kwargs)
    if _is_h5(path, ""):
        return _load_h5(path, custom_objects, compile, kwargs)
    return _loaded(path, custom_objects=custom_objects, compile=compile, **kwargs)


def _loaded(path: str, **settings: Any) -> Any:
    check_model_file(Path(path))
    return keras.saving.load_model(path, **settings)


def _load_h5(path: str, custom_objects: Any, compile: bool, settings: Any) -> Any:  # noqa: A002
    with opened_hdf5(Path(path)) as whole, tempfile.TemporaryDirectory() as folder:
        if _INSIDE in whole:
            archive = Path(folder) / _MODEL
            archive.write_bytes(whole[_INSIDE][()].tobytes())
            return _loaded(str(archive), custom_objects=custom_objects, compile=compile, **settings)
        file = shutil.copy(path, Path(folder) / "whole.h5")
        try:
            return keras.saving.load_model(str(file), custom_objects=custom_objects, compile=compile, **settings)
        except (TypeError, ValueError):
            if not compile:
                raise
            _log.warning("%s was compiled in a way that cannot be read: call compile() before you train on.", path)
            return keras.saving.load_model(str(file), custom_objects=custom_objects, compile=False, **settings)


def save_model(model: Any, filepath: Any, overwrite: bool = True, **kwargs: Any) -> None:
    """Saves a model under any name."""
    model.save(filepath, overwrite=overwrite, **kwargs)


def _of_names(original: Callable[..., Any]) -> Callable[..., Any]:
    """Keras's `deserialize`, for losses and metrics that were given by names, of which compile() knows more."""

    @functools.wraps(original)
    def deserialize(name: Any, *args: Any, **kwargs: Any) -> Any:
        return name if isinstance(name, str) else original(name, *args, **kwargs)

    return deserialize


def install() -> None:
    """Has models save and load under any name."""
    kind = keras.Model
    kind.save = _save(kind.save)
    kind.save_weights = _save_weights(kind.save_weights)
    kind.load_weights = _load_weights(kind.load_weights)
    for module in (losses_module, metrics_module):
        module.deserialize = _of_names(module.deserialize)
