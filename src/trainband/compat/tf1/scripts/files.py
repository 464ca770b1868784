"""`tf.gfile` and `tf.io.gfile` on the local file system."""

from __future__ import annotations

import functools
import glob
import inspect
import os
import secrets
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
from trainband.runtime.regular_files import write_regular

_MODES = ("r", "w", "a", "r+", "w+", "a+")


def _path(name: Any) -> Path:
    """Return a path for a string, bytes or path.

    Raises:
      NotFoundError: it is empty.
      UnimplementedError: it is on another file system, such as `gs://`.
    """
    text = os.fsdecode(name).removeprefix("file://")
    if not text:
        raise NotFoundError(None, None, "; No such file or directory")
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
    """A file, opened when it is first read or written: once for each. A context manager."""

    def __init__(self, name: Any, mode: str = "r") -> None:
        if mode.replace("b", "") not in _MODES:
            raise InvalidArgumentError(None, None, "mode is not 'r' or 'w' or 'a' or 'r+' or 'w+' or 'a+'")
        self.name, self.mode = name, mode
        self._reader: IO[bytes] | None = None
        self._writer: IO[bytes] | None = None

    def _reading(self) -> IO[bytes]:
        if self._reader is None:
            if "r" not in self.mode and "+" not in self.mode:
                raise PermissionDeniedError(None, None, "File isn't open for reading")
            self.flush()
            with _as_of_file():
                self._reader = _path(self.name).open("rb")
        return self._reader

    def _writing(self) -> IO[bytes]:
        if self._writer is None:
            if self.mode.replace("b", "") == "r":
                raise PermissionDeniedError(None, None, "File isn't open for writing")
            with _as_of_file():
                self._writer = _path(self.name).open("ab" if "a" in self.mode else "wb")
        return self._writer

    def _given(self, content: bytes) -> Any:
        return content if "b" in self.mode else content.decode()

    def read(self, n: int = -1) -> Any:
        """The next `n` bytes, or all that are left; as text, unless the file is binary."""
        return self._given(self._reading().read(n))

    def readline(self) -> Any:
        """The next line; empty at the end."""
        return self._given(self._reading().readline())

    def readlines(self) -> list[Any]:
        """The lines that are left."""
        return list(map(self._given, self._reading().readlines()))

    def write(self, file_content: Any) -> None:
        """Write text or bytes."""
        self._writing().write(file_content.encode() if isinstance(file_content, str) else file_content)

    def seek(self, offset: int | None = None, whence: int = 0, position: int | None = None) -> None:
        """Go to a place, for reading.

        Raises:
          TypeError: none is given, or two are.
          InvalidArgumentError: there is no such place.
        """
        if (offset is None) == (position is None):
            raise TypeError("seek(): exactly one of offset and position must be given")
        try:
            self._reading().seek(position if offset is None else offset, whence)  # type: ignore[arg-type]
        except (OSError, ValueError) as exc:
            raise InvalidArgumentError(None, None, f"seek({offset}, {whence}): {exc}") from exc

    def tell(self) -> int:
        """The place."""
        return (self._reading() if "r" in self.mode or "+" in self.mode else self._writing()).tell()

    def size(self) -> int:
        """The size of the file."""
        self.flush()
        return Stat(self.name).length

    def seekable(self) -> bool:
        """True."""
        return True

    def flush(self) -> None:
        """Hand over to the system what was written."""
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        if self._writer is None and self._reader is None and self.mode[0] in "wa":
            self._writing()  # which makes an empty file
        for file in (self._reader, self._writer):
            if file is not None:
                file.close()
        self._reader = self._writer = None

    def __enter__(self) -> GFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        for name in ("_reader", "_writer"):
            file = getattr(self, name, None)  # none if the mode was refused
            if file is not None:
                file.close()  # many scripts leave it open

    def __iter__(self) -> Iterator[Any]:
        return map(self._given, self._reading())

    def __next__(self) -> Any:
        return self._given(next(self._reading()))


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


def read_file_to_string(filename: Any, binary_mode: bool = False) -> Any:
    """The contents of a file, as text or bytes."""
    with GFile(filename, "rb" if binary_mode else "r") as file:
        return file.read()


def write_string_to_file(filename: Any, file_content: Any) -> None:
    """Write a file."""
    with GFile(filename, "w") as file:
        file.write(file_content)


def atomic_write_string_to_file(filename: Any, contents: Any, overwrite: bool = True) -> None:
    """Write a file so that nobody sees a part of it.

    Raises:
      AlreadyExistsError: there is a file of that name, which may not be replaced.
    """
    partial = f"{os.fsdecode(filename)}.tmp{secrets.token_hex(8)}"
    write_string_to_file(partial, contents)
    try:
        Rename(partial, filename, overwrite)
    except AlreadyExistsError:
        Remove(partial)
        raise


def write_graph(graph_or_graph_def: Any, logdir: Any, name: str, as_text: bool = True) -> str:
    """Write a graph as a `GraphDef`, as text or binary, and return the path."""
    from google.protobuf import text_format

    directory = Path(str(logdir))
    directory.mkdir(parents=True, exist_ok=True)
    stored = graph_or_graph_def.as_graph_def() if hasattr(graph_or_graph_def, "as_graph_def") else graph_or_graph_def
    path = directory / name
    write_regular(path, text_format.MessageToString(stored).encode() if as_text else stored.SerializeToString())
    return str(path)
