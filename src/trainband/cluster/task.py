"""One task of a cluster: a job's name and an index in it."""

from __future__ import annotations

from dataclasses import dataclass

from trainband.errors import ClusterError

JOBS = ("chief", "worker", "ps", "evaluator")
"""The four jobs, in the order in which trainband always lists them."""

_FORMER_NAMES = {"master": "chief", "parameter_server": "ps", "workers": "worker"}


def check_job(job: object, field: str) -> str:
    """Returns `job` if it is one of the four.

    Args:
      field: where the name was given, for the message.

    Raises:
      ClusterError: it is anything else.
    """
    if isinstance(job, str) and job in JOBS:
        return job
    hint = f" ({job!r} is called {_FORMER_NAMES[job]!r} here)" if isinstance(job, str) and job in _FORMER_NAMES else ""
    raise ClusterError(f"{field}: {_shortened(job)} is not a job; the jobs are {', '.join(JOBS)}{hint}.")


def check_index(index: object, field: str) -> int:
    """Returns a task's index, given as an integer or as a string of digits, as in JSON keys and text templates.

    Args:
      field: where the index was given, for the message.

    Raises:
      ClusterError: it is anything else.
    """
    if isinstance(index, str) and index.isascii() and index.isdigit() and len(index) < 10:
        return int(index)
    # A bool is an int in Python, but the index True is surely a mistake.
    if isinstance(index, int) and not isinstance(index, bool) and 0 <= index < 10**9:
        return index
    raise ClusterError(f"{field} must be a non-negative integer of at most 9 digits, got {_shortened(index)}.")


def _shortened(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # an integer with too many digits
        return "a larger one"
    return text if len(text) <= 80 else f"{text[:77]}..."


@dataclass(frozen=True, slots=True)
class Task:
    """A process in a cluster, written `worker:1`.

    Attributes:
      job: one of `JOBS`.
      index: its number in the job, from 0.

    Raises:
      ClusterError: the job is not one of the four, or the index is not a natural number.
    """

    job: str
    index: int

    def __post_init__(self) -> None:
        check_job(self.job, "Task.job")
        object.__setattr__(self, "index", check_index(self.index, "Task.index"))

    def __str__(self) -> str:
        return f"{self.job}:{self.index}"

    @classmethod
    def parse(cls, text: str) -> Task:
        """Reads what `str` writes.

        Raises:
          ClusterError: it does not have the form `job:index`.
        """
        job, colon, index = text.partition(":")
        if not (colon and index.isascii() and index.isdigit()):
            raise ClusterError(f"{text!r} is not a task; write job:index, such as worker:1.")
        return cls(check_job(job, repr(text)), check_index(index, f"the index of {text!r}"))

    @property
    def trains(self) -> bool:
        """Whether it computes gradients, as the tasks of the jobs `chief` and `worker` do."""
        return self.job in ("chief", "worker")
