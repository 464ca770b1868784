"""EndOfTraining: why processes that compute in lockstep end a training run, as they tell one another."""

from __future__ import annotations

from trainband.job.reports import FINISHED, USED_UP
from trainband.spmd.process_group import Group


class EndOfTraining:
    """The reasons why processes cannot continue, for one training run after another.

    Args:
      group: the processes.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self.key = ""
        """Where this training's reasons are."""
        self.reached = ""
        """Why the training has ended, once this process knows that it has."""
        self.until = 0
        """How many calls of it all processes make, once known."""
        self._has_published = False

    def start_training(self, training: int) -> None:
        """Begins the training with this number."""
        self.key, self.reached, self.until = f"ended/{training}", "", 0
        self._has_published = False

    def publish(self, reason: str, call: int, step: int = 0) -> None:
        """Publishes, once, why this step of this call ends the training for all."""
        if not self._has_published:
            self._has_published = True
            self._group.publish(f"{self.key}/{self._group.index}", [call, step, reason])

    def reach(self, until: int = 0) -> None:
        """Notes that another process has ended the training, of which all make `until` calls."""
        self.reached, self.until = self.why(), until

    @property
    def own(self) -> str:
        """The others' reason when this process's batches end."""
        return f"{self._group.task}: {USED_UP}"

    def why(self) -> str:
        """Returns the reason of the process that ended the training first."""
        found = []
        for index in range(self._group.count):
            told = self._group.read(f"{self.key}/{index}")
            if told is not None:
                call, step, reason = told
                found.append((call, step, index, reason))
        if not found:
            return "another worker has ended the training"
        *_, index, reason = min(found)
        return FINISHED if reason == FINISHED else f"{self._group.name(index)}: {reason}"
