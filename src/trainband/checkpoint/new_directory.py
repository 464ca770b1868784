"""A directory that appears whole or not at all, replacing an earlier one of its kind on request."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainband.checkpoint.disk import move_into_place, sync
from trainband.errors import YourError


@contextmanager
def new_directory(out: Path, *, mark: str, what: str, force: bool) -> Iterator[Path]:
    """Yields an empty directory to write into, which is moved to `out` when the block ends without an error.

    Args:
      out: where.
      mark: a file that every directory of this kind has.
      what: the kind, as text.
      force: whether to replace an earlier one at `out`.

    Raises:
      YourError: `out` cannot be created, already exists, or is something else.
    """
    if not out.name or not out.parent.is_dir():
        raise YourError(f"cannot write {out.name or out}: there is no directory {out.parent}; create it first.")
    if out.exists() or out.is_symlink():
        if not force:
            raise YourError(f"{out} already exists; write to another path, or replace it with --force.")
        if not (out / mark).is_file():  # a mistyped path must not destroy an unrelated directory
            raise YourError(f"{out} is not {what}, so it is not replaced; write to another path.")
    temporary = out.with_name(f".{out.name}.{secrets.token_hex(4)}.tmp")
    made = temporary / out.name
    try:
        made.mkdir(parents=True)
        yield made
        move_into_place(made, out)
        sync(out.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
