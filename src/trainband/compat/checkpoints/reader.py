"""What is in a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainband.compat.checkpoints.files import checkpoint_exists, latest_checkpoint, read_checkpoint
from trainband.compat.ops.dtypes import DType, as_dtype
from trainband.compat.tf1.graphs.errors import NotFoundError


class CheckpointReader:
    """The contents of a checkpoint.

    Raises:
      NotFoundError: there is none of this name.
    """

    def __init__(self, filepattern: Any) -> None:
        if not checkpoint_exists(filepattern):
            raise NotFoundError(
                None,
                None,
                f"Unsuccessful TensorSliceReader constructor: Failed to find any matching files for {filepattern}",
            )
        self._path = str(filepattern)
        self._values = read_checkpoint(self._path)

    def get_variable_to_shape_map(self) -> dict[str, list[int]]:
        """The shapes, by name."""
        return {name: list(value.shape) for name, value in self._values.items()}

    def get_variable_to_dtype_map(self) -> dict[str, DType]:
        """The dtypes, by name."""
        return {name: as_dtype(value.dtype) for name, value in self._values.items()}

    def has_tensor(self, tensor_str: str) -> bool:
        """Whether a name is in it."""
        return tensor_str in self._values

    def get_tensor(self, tensor_str: str) -> Any:
        """A value.

        Raises:
          NotFoundError: it is not there.
        """
        if tensor_str not in self._values:
            raise NotFoundError(None, None, f"Key {tensor_str} not found in checkpoint {self._path}")
        return self._values[tensor_str]

    def debug_string(self) -> bytes:
        """A line for each value: its name, dtype and shape."""
        shapes, dtypes = self.get_variable_to_shape_map(), self.get_variable_to_dtype_map()
        lines = (
            f"{name} (DT_{dtypes[name].name.upper().replace('FLOAT32', 'FLOAT')}) {str(shape).replace(' ', '')}"
            for name, shape in sorted(shapes.items())
        )
        return "\n".join(lines).encode()


def load_checkpoint(ckpt_dir_or_file: Any) -> CheckpointReader:
    """What is in a checkpoint, or in the newest of a directory.

    Raises:
      ValueError: the directory has none.
      NotFoundError: there is none of this name.
    """
    path = str(ckpt_dir_or_file)
    if Path(path).is_dir() and not checkpoint_exists(path):
        newest = latest_checkpoint(path)
        if newest is None:
            raise ValueError(f"Couldn't find 'checkpoint' file or checkpoints in given directory {path}")
        path = newest
    return CheckpointReader(path)


def list_variables(ckpt_dir_or_file: Any) -> list[tuple[str, list[int]]]:
    """The names and shapes in a checkpoint, or in the newest of a directory."""
    return sorted(load_checkpoint(ckpt_dir_or_file).get_variable_to_shape_map().items())


def load_variable(ckpt_dir_or_file: Any, name: str) -> Any:
    """One value of a checkpoint, or of the newest of a directory."""
    return load_checkpoint(ckpt_dir_or_file).get_tensor(name.removesuffix(":0"))
