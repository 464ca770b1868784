"""HDF5 files of weights from untrusted sources, opened only after a check that they hold their own data.

HDF5 files can refer to others (external links, external storage, virtual datasets), whose content a reader would
return, and can describe an array of any size in a few bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

from trainband.errors import DataError
from trainband.runtime.regular_files import UnusableFile, fixed_path

MOST_OBJECTS = 1_000_000
SMALL_BYTES = 64 << 20
"""An array of this size may take any number of bytes in the file; a larger one at least a thousandth of its size."""
_MOST_RATIO = 1000


@contextmanager
def opened_hdf5(path: Path) -> Iterator[Any]:
    """Opens a file that contains all its data, as `h5py.File` for reading.

    Raises:
      OSError: the file system fails.
      DataError: it is not an HDF5 file, refers to other files, or has arrays that are not in it.
    """
    with ExitStack() as stack:
        try:
            fixed = stack.enter_context(fixed_path(path))
        except UnusableFile as exc:
            raise DataError(f"{path} cannot be read: {exc.strerror}.") from exc
        yield stack.enter_context(checked_hdf5(Path(fixed), str(path)))


@contextmanager
def checked_hdf5(opened: Path | IO[bytes], where: str) -> Iterator[Any]:
    """Like `opened_hdf5`, for an open file or a path from `fixed_path`. `where`: its name in errors."""
    import h5py

    try:
        file = h5py.File(opened, "r")
    except (OSError, ValueError, RuntimeError) as exc:
        raise DataError(f"{where} is not an HDF5 file: {exc}.") from exc
    with file:
        try:
            _check(file, where)
        except (KeyError, OSError, RuntimeError) as exc:
            raise DataError(f"{where} is damaged: {exc}.") from exc
        yield file


def _check(file: Any, where: str) -> None:
    import h5py

    seen: set[int] = set()
    waiting: list[Any] = [file]
    while waiting:
        group = waiting.pop()
        address = h5py.h5o.get_info(group.id).addr
        if address in seen:
            continue
        seen.add(address)
        if len(seen) > MOST_OBJECTS:
            raise DataError(f"{where} has more than {MOST_OBJECTS:,} groups.")
        for name in group:
            link = group.get(name, getlink=True)
            if not isinstance(link, h5py.HardLink):
                raise DataError(
                    f"{where} refers to another file: {name!r} in {group.name} is a link. Store the weights in the "
                    "file itself."
                )
            one = group[name]
            if isinstance(one, h5py.Group):
                waiting.append(one)
            elif isinstance(one, h5py.Dataset):
                _check_dataset(one, where)


def _check_dataset(one: Any, where: str) -> None:
    if one.external or one.is_virtual:
        raise DataError(
            f"{where} refers to another file for the values of {one.name}. Store the weights in the file itself."
        )
    nbytes = one.nbytes if one.shape is not None else 0
    if nbytes > max(SMALL_BYTES, _MOST_RATIO * one.id.get_storage_size()):
        raise DataError(f"{where} claims {nbytes:,} bytes for {one.name}, which it does not contain.")
