"""A directory that appears whole or not at all, in the place of an earlier one of its kind if that is asked for."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainband.checkpoint.disk import put_in_place, sync_directory
from trainband.errors import YourError


@contextmanager
def new_directory(out: Path, *, mark: str, what: str, force: bool) -> Iterator[Path]:
    """Gives an empty directory to write into, which is put at `out` when the block ends without an error.

    Args:
      out: where.
      mark: a file that every directory of this kind has.
      what: the kind, in words.
      force: whether an earlier one at `out` is replaced.

    Raises:
      YourError: `out` cannot be made, or is there already, or is something else.
    """
    if not out.name or not out.parent.is_dir():
        raise YourError(f"There is no directory {out.parent} to write {out.name or out} into; make it first.")
    if out.exists() or out.is_symlink():
        if not force:
            raise YourError(f"{out} is there already; write to another path, or replace it with --force.")
        if not (out / mark).is_file():  # a mistyped path must not cost a directory of something else
            raise YourError(f"{out} is not {what} and is not replaced by one; write to another path.")
    temporary = out.with_name(f".{out.name}.{secrets.token_hex(4)}.tmp")
    made = temporary / out.name
    try:
        made.mkdir(parents=True)
        yield made
        put_in_place(made, out)
        sync_directory(out.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
