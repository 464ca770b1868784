"""Examined: what a job has to know of a computation before it runs it."""

from __future__ import annotations

from dataclasses import dataclass

from trainband.compat.tf1.graphs.errors import UnimplementedError
from trainband.compat.tf1.graphs.graph import Graph, Operation, Stored
from trainband.compat.tf1.graphs.lowering import Computation
from trainband.compat.tf1.graphs.variable import Variable
from trainband.compat.tf1.sessions.follow_up import FollowUp, follow_up
from trainband.compat.tf1.sessions.job_rules import adds, applications, is_shared


@dataclass(frozen=True, slots=True)
class Examined:
    """What a job has to know of a computation.

    Attributes:
      trains: whether it makes an update; in a graph that trains no shared variable, adding to one is an update, too,
        and so is counting a step.
      shared: the job's variables that it uses.
      own, own_read: the names of this process's own variables that it touches, and those that it reads.
      written: the variables of the job that it changes.
      initialises: whether it gives a first value to every variable that it changes, and reads none of the job's.
      loads: whether such a value is fed, as `Variable.load` does.
      step_fetches, step_late: which of its fetches, and of its late variables, are the global step.
      follow_up: its two parts, if it copies or changes what an update has made.
    """

    trains: bool
    shared: tuple[Stored, ...]
    own: tuple[str, ...]
    own_read: tuple[str, ...]
    written: tuple[Stored, ...]
    initialises: bool
    loads: bool
    step_fetches: tuple[int, ...]
    step_late: tuple[int, ...]
    follow_up: FollowUp | None


def examine(computation: Computation, graph: Graph, step: Variable | None) -> Examined:
    """What a job has to know of a computation.

    Raises:
      UnimplementedError: parameter servers cannot do what it does; see `_check_training`.
    """
    needed, fed = computation.schedule.needed, computation.schedule.fed
    applied = applications(needed)
    every = applications(graph.operations)
    split = follow_up(computation, step)
    _check_whole(applied, every)
    if split is None:
        _check_assigned(needed, applied)
    touched = {**computation.reads, **computation.writes}
    initialises = all("initializes" in op.attributes for op in needed if op.writes)
    return Examined(
        trains=bool(applied) or (not every and any(adds(op) or _counts(op, step) for op in needed)),
        shared=tuple(v for v in touched.values() if is_shared(v)),
        own=tuple(name for name, v in touched.items() if not is_shared(v)),
        own_read=tuple(name for name, v in computation.reads.items() if not is_shared(v)),
        written=tuple(v for v in computation.writes.values() if is_shared(v)),
        initialises=initialises and not any(is_shared(v) for v in computation.reads.values()),
        loads=any(tensor in fed for op in needed if "initializes" in op.attributes for tensor in op.inputs),
        step_fetches=tuple(
            i
            for i, tensor in enumerate(computation.fetches)
            if step is not None and tensor.op.attributes.get("variable") is step
        ),
        step_late=tuple(i for i, name in enumerate(computation.late) if step is not None and name == step.op_name),
        follow_up=split,
    )


def _counts(op: Operation, step: Variable | None) -> bool:
    return step is not None and op.type == "AssignAdd" and op.attributes["variable"] is step


def _check_whole(applied: list[Operation], every: list[Operation]) -> None:
    """Refuses a run of a part of a training operation, or of two training operations of one variable."""
    found: dict[str, str] = {}
    for op in applied:
        application = op.attributes["application"]
        name, call = application.variable.op_name, application.call
        if found.setdefault(name, call) != call:
            raise UnimplementedError(
                None,
                op,
                f"{name} is trained by two training operations of one run; on parameter servers, run them one after "
                "the other",
            )
    here = set(applied)
    calls = set(found.values())
    for op in every:
        if op.attributes["application"].call in calls and op not in here:
            name = op.attributes["application"].variable.op_name
            raise UnimplementedError(
                None,
                applied[0],
                f"a run trains {', '.join(sorted(found))} and not {name}; on parameter servers all variables that a "
                "training operation trains are updated together",
            )


def _check_assigned(needed: list[Operation], applied: list[Operation]) -> None:
    """Refuses a run that assigns a variable before it trains it."""
    trained = {op.attributes["application"].variable.op_name for op in applied}
    for op in needed if applied else ():
        assigned = {variable.op_name for variable in op.writes} & trained
        if assigned and "application" not in op.attributes:
            raise UnimplementedError(
                None,
                op,
                f"{', '.join(assigned)} is assigned and then trained in one run; on parameter servers, run the "
                "assignment before the training operation, by itself",
            )
