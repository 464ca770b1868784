"""`tf.train.CheckpointManager`: a directory of checkpoints, of which the newest are kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from trainband.compat.checkpoints.files import (
    checkpoint_exists,
    get_checkpoint_mtimes,
    get_checkpoint_state,
    latest_checkpoint,
    remove_checkpoint,
    update_checkpoint_state,
)
from trainband.compat.tf2.saving.checkpoint import Checkpoint
from trainband.compat.tf2.saving.snapshot import path_of


def checkpoints_iterator(
    checkpoint_dir: Any,
    min_interval_secs: float = 0,
    timeout: float | None = None,
    timeout_fn: Callable[[], bool] | None = None,
) -> Iterator[str]:
    """Yield the newest checkpoint of a directory, each time that there is another.

    Args:
      min_interval_secs: the least time between two.
      timeout: seconds to wait for the next; then the iteration ends, unless `timeout_fn` says that it goes on.
    """
    last: str | None = None
    while True:
        began = time.monotonic()
        while (newest := latest_checkpoint(checkpoint_dir)) in (None, last):
            if timeout is not None and time.monotonic() - began > timeout:
                break
            time.sleep(0.2)
        if newest is None or newest == last:
            if timeout_fn is None or timeout_fn():
                return
            continue
        yield newest
        last = newest
        time.sleep(max(0.0, min_interval_secs - (time.monotonic() - began)))


class CheckpointManager:
    """Keeps the checkpoints of a directory.

    Args:
      checkpoint: what is saved.
      max_to_keep: how many checkpoints are kept; all, if `None`.
      keep_checkpoint_every_n_hours: at which distance some of the others are kept for good.
      checkpoint_name: how the files' names begin.
      step_counter: a variable whose value numbers the files, in place of the number of times.
      checkpoint_interval: how far the counter must have come for `save` to write again.
      init_fn: called by `restore_or_initialize` if there is no checkpoint.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        directory: Any,
        max_to_keep: int | None,
        keep_checkpoint_every_n_hours: float | None = None,
        checkpoint_name: str = "ckpt",
        step_counter: Any = None,
        checkpoint_interval: int | None = None,
        init_fn: Callable[[], Any] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if max_to_keep is not None and max_to_keep <= 0:
            raise ValueError(f"Expected a positive integer or `None` for `max_to_keep`, got {max_to_keep}.")
        if checkpoint_interval is not None and step_counter is None:
            raise ValueError("`step_counter` should be passed if `checkpoint_interval` is not None.")
        self._checkpoint = checkpoint
        self._directory = path_of(directory)
        self._most = max_to_keep
        self._hours = keep_checkpoint_every_n_hours
        self._prefix = str(Path(self._directory) / checkpoint_name)
        self._counter = step_counter
        self._interval = checkpoint_interval
        self._saved_at: int | None = None
        self._init = init_fn
        self._clock = clock
        self._kept_at = clock()
        self._times: dict[str, float] = {}
        state = get_checkpoint_state(self._directory)
        for path in state.all_model_checkpoint_paths if state is not None else []:
            if checkpoint_exists(path):
                self._times[path] = get_checkpoint_mtimes([path])[0]
        self._latest = state.model_checkpoint_path if state is not None else None

    @property
    def directory(self) -> str:
        """The directory."""
        return self._directory

    @property
    def checkpoint(self) -> Checkpoint:
        """What is saved."""
        return self._checkpoint

    @property
    def checkpoint_interval(self) -> int | None:
        """How far the counter must have come for `save` to write again."""
        return self._interval

    @property
    def latest_checkpoint(self) -> str | None:
        """The newest, for `restore`; `None` if there is none."""
        return self._latest

    @property
    def checkpoints(self) -> list[str]:
        """Those that are kept, the oldest first; without those that are kept for good."""
        return list(self._times)

    def save(self, checkpoint_number: Any = None, check_interval: bool = True, options: Any = None) -> str | None:
        """Write a checkpoint, and delete those that are too many.

        Returns:
          its name; `None` if the interval has not passed.
        """
        if self._interval is not None and check_interval and not self._is_due():
            return None
        if checkpoint_number is not None:
            number = int(checkpoint_number)
        elif self._counter is not None:
            number = int(self._counter)
        else:
            number = int(self._checkpoint.save_counter) + 1
        self._checkpoint.save_counter.assign_add(1)
        path = self._checkpoint.write(f"{self._prefix}-{number}", options)
        if self._counter is not None:
            self._saved_at = int(self._counter)
        self._times.pop(path, None)
        self._times[path] = self._clock()
        self._latest = path
        self._delete()
        update_checkpoint_state(self._directory, path, self.checkpoints)
        return path

    def _is_due(self) -> bool:
        assert self._interval is not None
        return self._saved_at is None or int(self._counter) >= self._saved_at + self._interval

    def _delete(self) -> None:
        while self._most is not None and len(self._times) > self._most:
            oldest = next(iter(self._times))
            written = self._times.pop(oldest)
            if self._hours and written - self._hours * 3600 >= self._kept_at:
                self._kept_at = written
            else:
                remove_checkpoint(oldest)

    def restore_or_initialize(self) -> str | None:
        """Restore the newest checkpoint, or call `init_fn` if there is none. Returns the checkpoint's name."""
        if self._latest is not None:
            self._checkpoint.restore(self._latest)
            if self._counter is not None:
                self._saved_at = int(self._counter)
            return self._latest
        if self._init is not None:
            self._init()
        return None

    def sync(self) -> None:
        """Does nothing: files are written at once."""
