"""Who may ask a ps for what.

The role that a task has proved says which actions it may ask for at all; a worker's own calls it makes for itself and
for no other. Who of the workers has the chief's duties, the job decides: see `JobMembership.require_chief`.
"""

from __future__ import annotations

from collections.abc import Mapping

from trainband.cluster.identity import Role
from trainband.errors import RefusalCode, Refused
from trainband.ps.membership.members import Member
from trainband.runtime.formatting import printable
from trainband.wire.transport import Caller

_READ = frozenset({Role.OBSERVER})
_WORK = frozenset({Role.WORKER})
_REPLICATE = frozenset({Role.PS})

ROLES: Mapping[str, frozenset[Role]] = {
    "status": _READ,
    "state": _READ,
    "layout": _READ,
    "record_steps": _READ,  # it changes nothing of the job, and costs as little as a look
    "recordings": _READ,
    "vacancy": _WORK,
    "invite": _REPLICATE,
    "shutdown": frozenset({Role.ADMIN}),
}
"""The roles, one of which each action takes. What is not listed takes that of a worker."""


def require_role(caller: Caller, action: str) -> None:
    """Raises `Refused` where the caller may not ask for an action."""
    caller.require(ROLES.get(action, _WORK), f"ask for {printable(action, 40)!r}")


def require_member(caller: Caller, member: Member, doing: str) -> None:
    """Raises `Refused` where the caller is not the process that this member is."""
    caller.require_self(member.task, member.incarnation, doing)


def require_primary(caller: Caller, ps: int) -> None:
    """Raises `Refused` where the caller is not the ps that it says it is."""
    caller.require(_REPLICATE, "send a shard's records")
    if caller.identity is not None and caller.identity.name != f"ps:{ps}":
        raise Refused(f"{caller.identity.name} may not send records in the name of ps:{ps}.", RefusalCode.FORBIDDEN)
