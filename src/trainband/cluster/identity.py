"""The identity of a task, and what it permits."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from trainband.errors import ClusterError


class Role(StrEnum):
    """A set of permissions of a task."""

    PS = "ps"
    """Invite a standby and send it a shard's records."""
    WORKER = "worker"
    """Join, push and pull; and act as chief while the job has chosen it."""
    OBSERVER = "observer"
    """Read the status and the variables."""
    ADMIN = "admin"
    """End the job."""


_ROLES = {
    "ps": frozenset({Role.PS, Role.OBSERVER}),
    "worker": frozenset({Role.WORKER, Role.OBSERVER}),
    "chief": frozenset({Role.WORKER, Role.OBSERVER}),
    "evaluator": frozenset({Role.OBSERVER}),
    "observer": frozenset({Role.OBSERVER}),
    "admin": frozenset({Role.ADMIN, Role.OBSERVER}),
}
JOBS = tuple(_ROLES)
"""The jobs that an identity may name: those of a cluster, and two for its operators."""
_NAME = re.compile(rf"({'|'.join(JOBS)})(?::(0|[1-9][0-9]{{0,8}}))?")


@dataclass(frozen=True, slots=True)
class Identity:
    """One process, as it is known to others.

    Attributes:
      name: a task, such as `worker:1`; a job, such as `observer` or `admin`. In a certificate, the name of a job
        without an index stands for every task of that job, such as elastic workers, whose indices are not known
        in advance.
      incarnation: random, one for each life of the process; empty if it does not matter.

    Raises:
      ClusterError: the job is unknown, or the index is invalid.
    """

    name: str
    incarnation: str = ""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ClusterError(
                f"{self.name[:80]!r} is not the name of a task; write one of {', '.join(JOBS)}, with its index if it "
                "has one, such as worker:0."
            )

    @property
    def job(self) -> str:
        """The job of the task."""
        return self.name.partition(":")[0]

    @property
    def roles(self) -> frozenset[Role]:
        """Its permissions."""
        return _ROLES[self.job]

    def covers(self, name: str) -> bool:
        """Whether a certificate for this identity lets its owner call itself `name`; always for `observer`."""
        return name in (self.name, "observer") or (":" not in self.name and name.partition(":")[0] == self.name)


OBSERVER = Identity("observer")
"""A caller that only reads."""
