"""EndOfTraining: why a training ends that several processes compute in step, as they tell one another."""

from __future__ import annotations

from trainband.spmd.process_group import Group
from trainband.spmd.report import FINISHED, USED_UP


class EndOfTraining:
    """The reasons for which processes can go no further, of one training after the other.

    Args:
      group: the processes.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self.key = ""
        """Where the reasons of this training are."""
        self._has_told = False

    def begin(self, training: int) -> None:
        """Begins a training, which has this number."""
        self.key = f"ended/{training}"
        self._has_told = False

    def tell(self, reason: str, call: int, step: int = 0) -> None:
        """Leaves the reason why a call ends the training for all, with this step of it; once."""
        if not self._has_told:
            self._has_told = True
            self._group.publish(f"{self.key}/{self._group.index}", [call, step, reason])

    @property
    def own(self) -> str:
        """How the others know of the end of this process's batches."""
        return f"{self._group.task}: {USED_UP}"

    def why(self) -> str:
        """Of those that have ended the training, the reason of the one that was the first."""
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
