"""`tf.gfile` on the local file system, and functions that describe the machine."""

from __future__ import annotations

import glob
import shutil
import tempfile
from pathlib import Path
from typing import IO, Any

import jax

from trainband.compat.tf1.graphs.errors import NotFoundError


def Exists(filename: Any) -> bool:  # noqa: N802 - TensorFlow's names
    """Whether a file or directory exists."""
    return Path(str(filename)).exists()


def MakeDirs(dirname: Any) -> None:  # noqa: N802
    """Make a directory and its parents."""
    Path(str(dirname)).mkdir(parents=True, exist_ok=True)


def MkDir(dirname: Any) -> None:  # noqa: N802
    """Makes a directory."""
    Path(str(dirname)).mkdir()


def DeleteRecursively(dirname: Any) -> None:  # noqa: N802
    """Remove a directory and its contents.

    Raises:
      NotFoundError: there is none.
    """
    if not Path(str(dirname)).exists():
        raise NotFoundError(None, None, f"{dirname}; No such file or directory")
    shutil.rmtree(str(dirname))


def Remove(filename: Any) -> None:  # noqa: N802
    """Removes a file."""
    Path(str(filename)).unlink()


def IsDirectory(dirname: Any) -> bool:  # noqa: N802
    """Whether there is such a directory."""
    return Path(str(dirname)).is_dir()


def ListDirectory(dirname: Any) -> list[str]:  # noqa: N802
    """The names in a directory."""
    return sorted(path.name for path in Path(str(dirname)).iterdir())


def Glob(filename: Any) -> list[str]:  # noqa: N802
    """The files that a pattern matches."""
    return sorted(glob.glob(str(filename)))  # noqa: PTH207 - the pattern may begin anywhere


def Rename(oldname: Any, newname: Any, overwrite: bool = False) -> None:  # noqa: N802
    """Gives a file another name."""
    if not overwrite and Path(str(newname)).exists():
        raise FileExistsError(str(newname))
    Path(str(oldname)).replace(str(newname))


def Copy(oldpath: Any, newpath: Any, overwrite: bool = False) -> None:  # noqa: N802
    """Copies a file."""
    if not overwrite and Path(str(newpath)).exists():
        raise FileExistsError(str(newpath))
    shutil.copy(str(oldpath), str(newpath))


def GFile(name: Any, mode: str = "r") -> IO[Any]:  # noqa: N802
    """An open file."""
    return Path(str(name)).open(mode)


def write_graph(graph_or_graph_def: Any, logdir: Any, name: str, as_text: bool = True) -> str:
    """Write the names and types of a graph's operations, one per line. TensorFlow's format is not supported."""
    del as_text
    directory = Path(str(logdir))
    directory.mkdir(parents=True, exist_ok=True)
    lines = [f"{op.name} {op.type}" for op in getattr(graph_or_graph_def, "operations", [])]
    path = directory / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def is_gpu_available(cuda_only: bool = False, min_cuda_compute_capability: Any = None) -> bool:
    """Whether JAX sees a GPU."""
    del cuda_only, min_cuda_compute_capability
    return any(device.platform in ("gpu", "cuda", "rocm") for device in jax.local_devices())


def gpu_device_name() -> str:
    """Return the name of the first GPU, or an empty string."""
    return "/device:GPU:0" if is_gpu_available() else ""


def is_built_with_cuda() -> bool:
    """Whether JAX sees a GPU."""
    return is_gpu_available()


def get_temp_dir() -> str:
    """A directory for temporary files."""
    return tempfile.gettempdir()
