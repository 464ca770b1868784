"""FollowUp: what a training run of a job does once the ps have made the update.

A script that trains a local model copies the new values of the shared one after it has pushed; one with a constraint
clips them. Both have to wait for the ps, so the run is split: the first part is exchanged with the ps, and the second
runs in this process, which writes what it assigns to the ps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from trainband.compat.tf1.graphs.graph import Operation, Tensor
from trainband.compat.tf1.graphs.lowering import Computation
from trainband.compat.tf1.graphs.variable import Variable
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


def follow_up(computation: Computation, step: Variable | None) -> FollowUp | None:
    """Split a computation that copies or assigns trained variables after an update; `None` for any other.

    An assignment that the script does not order comes after the update. `step` is the global step that the job counts.
    """
    needed, fed = computation.schedule.needed, set(computation.fed)
    applied = applications(needed)
    trained = {op.attributes["application"].variable.op_name for op in applied}
    pushes: set[Operation] = {*applied, *(op for op in needed if adds(op))}
    in_order = sorted(needed, key=lambda one: one.number)  # what an operation needs was recorded before it

    def before(op: Operation) -> set[Operation]:
        return {*(tensor.op for tensor in op.inputs if tensor not in fed), *op.control_inputs}

    def assigns(op: Operation) -> bool:
        return op not in pushes and any(variable.op_name in trained for variable in op.writes)

    apart = _unordered([op for op in in_order if assigns(op)], pushes, before) if trained else set()
    after: set[Operation] = set(pushes)
    copies: set[Operation] = set(apart)
    for op in in_order:
        if op in pushes and before(op) & copies:
            return None
        if before(op) & copies:
            copies.add(op)
        if before(op) & after:
            after.add(op)
            reads = op.type in ("Identity", "VariableV2") and any(is_shared(v) and not is_slot(v) for v in op.reads)
            if op not in pushes and (reads or assigns(op)):
                copies.add(op)
    written = [variable for op in copies for variable in op.writes]
    if not written or any(op.early for op in copies):
        return None
    if any(map(is_shared, written)) and not any(variable.op_name in trained for variable in written):
        return None  # an average of the variables, say: it is made of the values before, in the same exchange
    # The job counts the step with the update.
    counts = {op for op in copies if op.attributes.get("counts") and op.attributes["variable"] is step}
    if any(tensor.op in counts for tensor in computation.fetches):
        return None
    copies -= counts
    rest = [op for op in needed if op not in copies and op not in counts]
    done = {*((op for op in rest if op in after) if apart else rest), *counts}
    inputs = dict.fromkeys(tensor for op in copies for tensor in op.inputs)
    links = tuple(tensor for tensor in inputs if tensor.op in done and tensor not in fed)
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
        done=done,
    )
    return FollowUp(computation, first, second, links)


def _unordered(
    assignments: Sequence[Operation], pushes: set[Operation], before: Callable[[Operation], set[Operation]]
) -> set[Operation]:
    """Return those assignments that come neither before nor after a push."""
    found = set()
    for assignment in assignments:
        seen: set[Operation] = set()
        waiting = [assignment]
        while waiting:
            op = waiting.pop()
            if op not in seen:
                seen.add(op)
                waiting += before(op)
        if not seen & pushes:
            found.add(assignment)
    return found
