"""Ending: why a training in step ends, as the processes tell one another."""

from __future__ import annotations

from trainband.strategies.base import FINISHED, USED_UP
from trainband.strategies.together import Together


class Ending:
    """The reasons for which processes can go no further, of one training after the other.

    Args:
      together: the processes.
    """

    def __init__(self, together: Together) -> None:
        self._together = together
        self.key = ""
        """Where the words of this training are."""
        self._has_told = False

    def begin(self, training: int) -> None:
        """Begins a training, which has this number."""
        self.key = f"ended/{training}"
        self._has_told = False

    def tell(self, reason: str, call: int, step: int = 0) -> None:
        """Leaves the reason why a call ends the training for all, with this step of it; once."""
        if not self._has_told:
            self._has_told = True
            self._together.tell(f"{self.key}/{self._together.index}", [call, step, reason])

    @property
    def own(self) -> str:
        """How the others know of the end of this process's batches."""
        return f"{self._together.task}: {USED_UP}"

    def why(self) -> str:
        """Of those that have ended the training, the reason of the one that was the first."""
        found = []
        for index in range(self._together.count):
            word = self._together.look(f"{self.key}/{index}")
            if word is not None:
                call, step, reason = word
                found.append((call, step, index, reason))
        if not found:
            return "another worker has ended the training"
        *_, index, reason = min(found)
        return FINISHED if reason == FINISHED else f"{self._together.name(index)}: {reason}"
