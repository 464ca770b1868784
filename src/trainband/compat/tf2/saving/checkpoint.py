"""`tf.train.Checkpoint`: the variables in objects as files, and back, also for variables that are made later."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from trainband.compat.checkpoints.files import latest_checkpoint, update_checkpoint_state
from trainband.compat.tf2.eager import tracking
from trainband.compat.tf2.eager.variable import Variable
from trainband.compat.tf2.saving.snapshot import Restoration, Snapshot, directory_of, path_of, write
from trainband.compat.tf2.saving.trackable import Tracked, children, is_iterator, is_trackable

_log = logging.getLogger(__name__)


class CheckpointOptions:
    """How a checkpoint is written. This changes nothing: each is one file."""

    def __init__(self, *_: Any, **settings: Any) -> None:
        self.__dict__.update(settings)


class Status:
    """What has become of a restoration.

    Args:
      restoration: the restoration; `None` if there was nothing to restore.
    """

    def __init__(self, restoration: Restoration | None) -> None:
        self._restoration = restoration

    def expect_partial(self) -> Status:
        """Says that not everything need be restored."""
        return self

    def assert_consumed(self) -> Status:
        """Demands that all values of the file, and all variables, have found each other.

        Raises:
          AssertionError: they have not.
        """
        restoration = self._looked()
        self.assert_existing_objects_matched()
        if left := restoration.left():
            shown = ", ".join(left[:5])
            raise AssertionError(
                f"Some objects had attributes which were not restored: {len(left)} values of the checkpoint belong to "
                f"no Python object: {shown}{', ...' if len(left) > 5 else ''}"
            )
        return self

    def assert_existing_objects_matched(self) -> Status:
        """Demands that all variables have got values.

        Raises:
          AssertionError: one has not.
        """
        if without := self._looked().without():
            shown = ", ".join(without[:5])
            raise AssertionError(
                f"No checkpoint values for {len(without)} Python objects: {shown}{', ...' if len(without) > 5 else ''}"
            )
        return self

    def assert_nontrivial_match(self) -> Status:
        """Demands that a variable has got a value.

        Raises:
          AssertionError: none has.
        """
        if not self._looked().count:
            raise AssertionError("Nothing except the root object matched a checkpointed value.")
        return self

    def initialize_or_restore(self, session: Any = None) -> None:
        """Does nothing: variables have their values."""
        del session

    run_restore_ops = initialize_or_restore

    def _looked(self) -> Restoration:
        if self._restoration is None:
            raise AssertionError("No checkpoint specified (save_path=None); nothing is being restored.")
        self._restoration.look_again()
        return self._restoration


class Checkpoint(Tracked):
    """Objects whose variables are saved together.

    Args:
      root: an object; what is in it belongs to the checkpoint.
      kwargs: objects, by the names that they have in the files.
    """

    def __init__(self, root: Any = None, **kwargs: Any) -> None:
        self._root = root
        self._saver: Restoration | None = None
        self._counter: Variable | None = None
        self._own: dict[str, Any] = {}
        if root is not None and not is_trackable(root):
            raise TypeError(_refusal("root", root, "`Checkpoint`"))
        for name, value in kwargs.items():
            setattr(self, name, value() if _is_reference(value) else value)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name.startswith("_"):
            return
        if is_iterator(value):
            _log.warning(
                "Checkpoint(%s=...): the position in the data is not saved; it starts from the beginning", name
            )
        elif is_trackable(value):
            self._own[name] = value
            tracking.changed()
        else:
            raise ValueError(_refusal(name, value, "`Checkpoint`"))

    def tracked(self) -> Iterator[tuple[str, Any]]:
        """What is in it, by name."""
        if self._root is not None:
            yield from children(self._root)
        yield from self._own.items()
        if self._counter is not None:
            yield "save_counter", self._counter

    @property
    def save_counter(self) -> Variable:
        """How often it has been saved."""
        if self._counter is None:
            self._counter = Variable(0, trainable=False, dtype="int64", name="save_counter")
            tracking.changed()
        return self._counter

    def write(self, file_prefix: Any, options: Any = None) -> str:
        """Write a file of this name, without counting. Returns the name."""
        del options
        prefix = path_of(file_prefix)
        write(self, prefix)
        return prefix

    def save(self, file_prefix: Any, options: Any = None) -> str:
        """Write a file of this name and the next number. Returns the name with the number."""
        self.save_counter.assign_add(1)
        path = self.write(f"{path_of(file_prefix)}-{int(self.save_counter)}", options)
        update_checkpoint_state(str(directory_of(path)), path, [path])
        return path

    def read(self, save_path: Any, options: Any = None) -> Status:
        """Give variables the values in a file.

        Raises:
          NotFoundError: there is none of this name.
          ValueError: a variable has another shape than its value.
        """
        del options
        self._saver = Restoration(self, Snapshot(path_of(save_path)))
        return Status(self._saver)

    def restore(self, save_path: Any, options: Any = None) -> Status:
        """Like `read`, and the number of the last file with it. `None` restores nothing.

        Raises:
          NotFoundError: there is none of this name.
          ValueError: a variable has another shape than its value.
        """
        if save_path is None:
            return Status(None)
        status = self.read(latest_checkpoint(save_path) or save_path, options)
        _ = self.save_counter
        return status

    def sync(self) -> None:
        """Does nothing: files are written at once."""


def _is_reference(value: Any) -> bool:
    import weakref

    return isinstance(value, weakref.ref)


def _refusal(name: str, value: Any, who: str) -> str:
    return (
        f"{who} was expecting {name} to be a trackable object (an object derived from `Trackable`), got {value!r}. If "
        "you believe this object should be trackable (i.e. it is part of the TensorFlow Python API and manages state), "
        "please open an issue."
    ).replace(", please open an issue", "")
