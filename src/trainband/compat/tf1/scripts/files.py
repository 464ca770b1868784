"""`tf.gfile` and `tf.io.gfile` on the local file system."""

from __future__ import annotations

import functools
import glob
import inspect
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from trainband.compat.tf1.graphs.errors import (
    AlreadyExistsError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    UnimplementedError,
    of_file,
)

_MODES = ("r", "w", "a", "r+", "w+", "a+")


def _path(name: Any) -> Path:
    """Return a path for a string, bytes or path.

    Raises:
      UnimplementedError: it is on another file system, such as `gs://`.
    """
    text = os.fsdecode(name).removeprefix("file://")
    scheme, separator, _ = text.partition("://")
    if separator:
        raise UnimplementedError(None, None, f"File system scheme '{scheme}' is not supported (file: '{text}')")
    return Path(text)


@contextmanager
def _as_of_file() -> Iterator[None]:
    """Raise TensorFlow's errors for those of the operating system."""
    try:
        yield
    except OSError as exc:
        raise of_file(exc) from exc


def Exists(filename: Any) -> bool:  # noqa: N802 - TensorFlow's names
    """Whether a file or directory exists."""
    return _path(filename).exists()


def MakeDirs(dirname: Any) -> None:  # noqa: N802
    """Make a directory and its parents, unless it is there."""
    with _as_of_file():
        _path(dirname).mkdir(parents=True, exist_ok=True)


def MkDir(dirname: Any) -> None:  # noqa: N802
    """Make a directory, unless it is there."""
    with _as_of_file():
        _path(dirname).mkdir(exist_ok=True)


def DeleteRecursively(dirname: Any) -> None:  # noqa: N802
    """Remove a directory and its contents.

    Raises:
      NotFoundError: there is none.
    """
    with _as_of_file():
        shutil.rmtree(_path(dirname))


def Remove(filename: Any) -> None:  # noqa: N802
    """Remove a file.

    Raises:
      NotFoundError: there is none.
    """
    with _as_of_file():
        _path(filename).unlink()


def IsDirectory(dirname: Any) -> bool:  # noqa: N802
    """Whether there is such a directory."""
    return _path(dirname).is_dir()


def ListDirectory(dirname: Any) -> list[str]:  # noqa: N802
    """The names in a directory.

    Raises:
      NotFoundError: there is none.
    """
    if not IsDirectory(dirname):
        raise NotFoundError(None, None, f"Could not find directory {_path(dirname)}")
    return sorted(path.name for path in _path(dirname).iterdir())


def Glob(filename: Any) -> list[str]:  # noqa: N802
    """The files that a pattern, or one of several, matches."""
    patterns = [filename] if isinstance(filename, str | bytes | os.PathLike) else filename
    return [one for each in patterns for one in sorted(glob.glob(str(_path(each))))]  # noqa: PTH207 - begins anywhere


def Rename(oldname: Any, newname: Any, overwrite: bool = False) -> None:  # noqa: N802
    """Give a file another name.

    Raises:
      AlreadyExistsError: there is a file of that name, which may not be replaced.
    """
    _refuse(newname, overwrite)
    with _as_of_file():
        _path(oldname).replace(_path(newname))


def Copy(oldpath: Any, newpath: Any, overwrite: bool = False) -> None:  # noqa: N802
    """Copy a file.

    Raises:
      AlreadyExistsError: there is a file of that name, which may not be replaced.
    """
    _refuse(newpath, overwrite)
    with _as_of_file():
        shutil.copyfile(_path(oldpath), _path(newpath))


def _refuse(name: Any, overwrite: bool) -> None:
    if not overwrite and _path(name).exists():
        raise AlreadyExistsError(None, None, "file already exists")


@dataclass(frozen=True, slots=True)
class FileStatistics:
    """What `Stat` returns."""

    length: int
    mtime_nsec: int
    is_directory: bool


def Stat(filename: Any) -> FileStatistics:  # noqa: N802
    """The size of a file, and when it was changed.

    Raises:
      NotFoundError: there is none.
    """
    with _as_of_file():
        found = _path(filename).stat()
    return FileStatistics(found.st_size, found.st_mtime_ns, IsDirectory(filename))


def Walk(top: Any, in_order: bool = True) -> Iterator[tuple[str, list[str], list[str]]]:  # noqa: N802
    """Yield each directory below one, with the names of its directories and files."""
    for directory, inner, files in os.walk(_path(top), topdown=in_order):
        inner.sort()
        yield directory, inner, sorted(files)


class GFile:
    """A file, opened when it is first read or written. A context manager."""

    def __init__(self, name: Any, mode: str = "r") -> None:
        if mode.replace("b", "") not in _MODES:
            raise InvalidArgumentError(None, None, "mode is not 'r' or 'w' or 'a' or 'r+' or 'w+' or 'a+'")
        self.name, self.mode = name, mode
        self._file: IO[Any] | None = None

    def _opened(self, *modes: str) -> IO[Any]:
        if not any(one in self.mode for one in (*modes, "+")):
            doing = "reading" if "r" in modes else "writing"
            raise PermissionDeniedError(None, None, f"File isn't open for {doing}")
        if self._file is None:
            encoding = None if "b" in self.mode else "utf-8"
            with _as_of_file():
                self._file = _path(self.name).open(self.mode, encoding=encoding)
        return self._file

    def read(self, n: int = -1) -> Any:
        """The next `n` characters or bytes, or all that are left."""
        return self._opened("r").read(n)

    def readline(self) -> Any:
        """The next line; empty at the end."""
        return self._opened("r").readline()

    def readlines(self) -> list[Any]:
        """The lines that are left."""
        return self._opened("r").readlines()

    def write(self, file_content: Any) -> None:
        """Write text or bytes."""
        if isinstance(file_content, bytes) and "b" not in self.mode:
            file_content = file_content.decode()
        elif isinstance(file_content, str) and "b" in self.mode:
            file_content = file_content.encode()
        self._opened("w", "a").write(file_content)

    def seek(self, offset: int | None = None, whence: int = 0, position: int | None = None) -> None:
        """Go to a place."""
        self._opened("r").seek(position if offset is None else offset, whence)  # type: ignore[arg-type]

    def tell(self) -> int:
        """The place."""
        return self._opened("r", "w", "a").tell()

    def size(self) -> int:
        """The size of the file."""
        self.flush()
        return Stat(self.name).length

    def seekable(self) -> bool:
        """True."""
        return True

    def flush(self) -> None:
        """Hand over to the system what was written."""
        if self._file is not None and self.mode != "r":
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
        elif "w" in self.mode or "a" in self.mode:
            self._opened("w", "a").close()  # which makes an empty file
        self._file = None

    def __enter__(self) -> GFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        file = getattr(self, "_file", None)  # none if the mode was refused
        if file is not None:
            file.close()  # many scripts leave it open

    def __iter__(self) -> Iterator[Any]:
        return iter(self._opened("r"))

    def __next__(self) -> Any:
        return next(self._opened("r"))


def _renamed(function: Callable[..., Any], names: str) -> Callable[..., Any]:
    """Return a function whose parameters have other names, in their order."""
    own = inspect.signature(function).parameters
    new = dict(zip(names.split(), own, strict=True))

    @functools.wraps(function)
    def renamed(*arguments: Any, **keywords: Any) -> Any:
        return function(*arguments, **{new.get(name, name): value for name, value in keywords.items()})

    shown = [one.replace(name=name) for name, one in zip(new, own.values(), strict=True)]
    renamed.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    return renamed


exists, isdir, listdir = _renamed(Exists, "path"), _renamed(IsDirectory, "path"), _renamed(ListDirectory, "path")
makedirs, mkdir, remove = _renamed(MakeDirs, "path"), _renamed(MkDir, "path"), _renamed(Remove, "path")
rmtree, stat, glob_ = _renamed(DeleteRecursively, "path"), _renamed(Stat, "path"), _renamed(Glob, "pattern")
rename, copy = _renamed(Rename, "src dst overwrite"), _renamed(Copy, "src dst overwrite")


def walk(top: Any, topdown: bool = True, onerror: Any = None) -> Iterable[tuple[str, list[str], list[str]]]:
    """Yield each directory below one, with the names of its directories and files."""
    del onerror
    return Walk(top, topdown)


def write_graph(graph_or_graph_def: Any, logdir: Any, name: str, as_text: bool = True) -> str:
    """Write a graph as a `GraphDef`, as text or binary, and return the path."""
    from google.protobuf import text_format

    directory = Path(str(logdir))
    directory.mkdir(parents=True, exist_ok=True)
    stored = graph_or_graph_def.as_graph_def() if hasattr(graph_or_graph_def, "as_graph_def") else graph_or_graph_def
    path = directory / name
    path.write_bytes(text_format.MessageToString(stored).encode() if as_text else stored.SerializeToString())
    return str(path)
