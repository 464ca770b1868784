"""Trainings: where each training run of a script began, so that a restarted script resumes the right one."""

from __future__ import annotations

from collections.abc import Sequence

from trainband.checkpoint import Manifest


class Trainings:
    """The training runs of a script as far as this task knows them; the chief knows all. Finished ones are replayed."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._resumed: Manifest | None = None
        self.number = 0
        """The number of the training that began last, from 1."""

    @property
    def starts(self) -> tuple[int, ...]:
        """The global step at which each training run began."""
        return tuple(self._starts)

    @property
    def began_at(self) -> int:
        """The global step at which the current training first began."""
        return self._starts[self.number - 1]

    @property
    def is_last(self) -> bool:
        """Whether no checkpoint has a later training run than the current one."""
        return self.number == len(self._starts)

    def resume(self, manifest: Manifest) -> None:
        """Records the checkpoint that the job started from."""
        self._starts = list(manifest.trainings)
        self._resumed = manifest

    def learn(self, starts: Sequence[int]) -> None:
        """Records the job's starts, if they include the current training."""
        if len(starts) >= self.number:
            self._starts = list(starts)

    def start(self, global_step: int) -> None:
        """Counts a training run, which begins at this global step unless it has begun before."""
        if self.number >= len(self._starts):
            self._starts.append(global_step)
        self.number += 1

    def end(self, last_step: int | None) -> int | None:
        """Returns where the current training ends, if it is to end at `last_step`.

        That is where it did end, if a later training run of the script had begun, or if a checkpoint records its end
        and no other end is requested now. One that had used up its batches continues if there are more.
        """
        resumed = self._resumed
        if not self.is_last:
            over_at = self._starts[self.number]
        elif resumed is not None and resumed.complete and self.number == len(resumed.trainings):
            if resumed.used_up or last_step != resumed.last_step:
                return last_step
            over_at = resumed.global_step
        else:
            return last_step
        return over_at if last_step is None else min(last_step, over_at)
