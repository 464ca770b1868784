"""FollowUp: what a training run of a job does with its own variables once the ps have made the update.

A script that trains a local model copies the new values of the shared one after it has pushed. The copy has to wait for
the ps, so the run is split: the first part is exchanged with the ps, and the second runs in this process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trainband.compat.tf1.graphs.graph import Operation, Tensor
from trainband.compat.tf1.graphs.lowering import Computation
from trainband.compat.tf1.sessions.job_rules import adds, applications, is_shared
from trainband.compat.tf1.sessions.slots import is_slot

Found = tuple[Sequence[Any], Sequence[Any]]
"""The values of fetches, and of late variables."""


@dataclass(frozen=True, eq=False, slots=True)
class FollowUp:
    """A computation in two parts.

    Attributes:
      whole: the computation.
      links: what the second part needs of the first one; the last fetches of the first part, and fed to the second.
    """

    whole: Computation
    first: Computation
    second: Computation
    links: tuple[Tensor, ...]

    def feeds(self, found: Found, feeds: Sequence[Any]) -> list[Any]:
        """What is fed to the second part."""
        values = found[0][len(found[0]) - len(self.links) :]
        return [*values, *feeds]

    def joined(self, first: Found, second: Found) -> Found:
        """What the whole gives."""
        values = dict(zip(self.first.fetches, first[0], strict=True))
        values |= dict(zip(self.second.fetches, second[0], strict=True))
        late = dict(zip(self.first.late, first[1], strict=True)) | dict(zip(self.second.late, second[1], strict=True))
        return [values[one] for one in self.whole.fetches], [late[name] for name in self.whole.late]


def follow_up(computation: Computation) -> FollowUp | None:
    """Split a computation that copies shared variables to own ones after an update; `None` for any other."""
    needed, fed = computation.schedule.needed, set(computation.fed)
    pushes: set[Operation] = {*applications(needed), *(op for op in needed if adds(op))}
    after: set[Operation] = set(pushes)
    copies: set[Operation] = set()
    for op in sorted(needed, key=lambda one: one.number):  # what an operation needs was recorded before it
        before = {*(tensor.op for tensor in op.inputs if tensor not in fed), *op.control_inputs}
        if op in pushes and before & copies:
            return None
        if before & after:
            after.add(op)
            reads = op.type in ("Identity", "VariableV2") and any(is_shared(v) and not is_slot(v) for v in op.reads)
            if op not in pushes and (reads or before & copies):
                copies.add(op)
    if not any(op.writes for op in copies) or any(op.early or any(map(is_shared, op.writes)) for op in copies):
        return None
    rest = [op for op in needed if op not in copies]
    inputs = dict.fromkeys(tensor for op in copies for tensor in op.inputs)
    links = tuple(tensor for tensor in inputs if tensor.op not in copies and tensor not in fed)
    late = [name for name in computation.late if any(name == v.op_name for op in copies for v in op.writes)]
    variables = {**computation.reads, **computation.writes}
    first = Computation(
        [*(one for one in computation.fetches if one.op not in copies and one not in links), *links, *rest],
        computation.fed,
        late=[name for name in computation.late if name not in late],
        late_variables={name: variables[name] for name in computation.late if name not in late},
    )
    second = Computation(
        [*(one for one in computation.fetches if one.op in copies), *copies],
        [*links, *computation.fed],
        late=late,
        late_variables={name: variables[name] for name in late},
        done=rest,
    )
    return FollowUp(computation, first, second, links)
