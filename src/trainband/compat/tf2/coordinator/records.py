"""What the coordinator, the workers and the parameter servers of a script say to each other: the headers of frames.

Each request is answered by one frame, in order, but for `Hello`, `DefineClosure` and `End`, which are not answered.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from trainband.wire.limits import LIMITS
from trainband.wire.messages import fields as f

Id = Annotated[int, Meta(ge=0, le=1 << 53)]
Ids = Annotated[tuple[Id, ...], Meta(max_length=LIMITS.variables)]
Place = Annotated[int, Meta(ge=0, lt=1 << 24)]
"""Which of several arrays."""

ASSIGN, ADD, UPDATE = range(3)
"""Changes of variables: setting values, adding values, or a program that computes new ones."""


GUARD = ""
"""In place of a message: the condition says that the script decides by its values as it did when it was traced."""
OTHERWISE = "Otherwise"
"""The kind of the failure of a closure that decides otherwise than when it was traced: it has changed nothing."""
TAKEN = "Taken"
"""The kind of the failure of a coordinator that has come while another one is connected."""


class Aval(Struct, frozen=True, array_like=True):
    """The shape and dtype of an array."""

    shape: f.Shape
    dtype: f.Word


Avals = Annotated[tuple[Aval, ...], Meta(max_length=LIMITS.variables)]


class Hello(Struct, frozen=True, tag=1, array_like=True):
    """The first frame of a stream. A session that is new ends the one before, with all that was kept for it."""

    session: f.Token
    coordinates: bool = False


class Put(Struct, frozen=True, tag=2, array_like=True):
    """coordinator -> ps, with the values: variables that live there from now on. Answered by `Values` of none."""

    variables: Ids
    avals: Avals


class Define(Struct, frozen=True, tag=3, array_like=True):
    """coordinator -> ps, with its bytes: a program for updates. Answered by `Values` of none."""

    program: Id


class Change(Struct, frozen=True, array_like=True):
    """One change of variables of a ps.

    `program` is that of an update, which takes all the variables and as many arrays as are `given`, and gives new
    values for the first `changed` variables.
    """

    kind: Annotated[int, Meta(ge=ASSIGN, le=UPDATE)]
    variables: Ids
    given: Place
    program: Id = 0
    changed: Place = 0


Changes = Annotated[tuple[Change, ...], Meta(max_length=LIMITS.variables)]


class Commit(Struct, frozen=True, tag=4, array_like=True):
    """-> ps, with what the changes are given: makes them, all at once, and reads. Answered by `Values`."""

    changes: Changes = ()
    read: Ids = ()


class Attach(Struct, frozen=True, tag=5, array_like=True):
    """coordinator -> worker: where the parameter servers are. Answered by `Attached`."""

    addresses: Annotated[tuple[f.Word, ...], Meta(max_length=LIMITS.tasks)]


class PlannedChange(Struct, frozen=True, array_like=True):
    """A change that a closure makes on a ps, of the arrays with these numbers among all that its program gives."""

    ps: f.PsNumber
    change: Change
    arrays: Annotated[tuple[Place, ...], Meta(max_length=LIMITS.variables)]


class DefineClosure(Struct, frozen=True, tag=6, array_like=True):
    """coordinator -> worker, with its bytes: a closure. What is wrong with it, the first run of it is told.

    Its program takes the variables, in the order of `reads`, and the inputs; it gives `results` arrays, a condition for
    each of `messages`, and then what the changes take. `platform` is that of the worker, or `cpu`.
    """

    closure: Id
    platform: f.Word
    reads: Annotated[tuple[tuple[f.PsNumber, Id], ...], Meta(max_length=LIMITS.variables)]
    avals: Avals
    inputs: Avals
    results: Place
    messages: Annotated[tuple[f.Text, ...], Meta(max_length=LIMITS.variables)]
    changes: Annotated[tuple[PlannedChange, ...], Meta(max_length=LIMITS.variables)]


class Run(Struct, frozen=True, tag=7, array_like=True):
    """coordinator -> worker, with the inputs: runs a closure. Answered by `Done` with its results.

    As long as `epoch` stays the same, variables that were read with the last change are new enough.
    """

    closure: Id
    epoch: Id


class End(Struct, frozen=True, tag=8, array_like=True):
    """coordinator -> all: the job has ended. Not answered."""


class Values(Struct, frozen=True, tag=9, array_like=True):
    """ps ->, with the values that were asked for."""


class Done(Struct, frozen=True, tag=10, array_like=True):
    """worker -> coordinator, with the results."""


class Failure(Struct, frozen=True, tag=11, array_like=True):
    """It could not be done: the name of TensorFlow's error, and why; `ps` where one of them did not answer."""

    kind: f.Word
    message: f.Text
    ps: f.PsOrNobody = -1


class Attached(Struct, frozen=True, tag=12, array_like=True):
    """worker -> coordinator: it has reached them, and computes closures on this platform of JAX's."""

    platform: f.Word


ToPs = Hello | Put | Define | Commit | End
"""Messages to a ps."""
FromPs = Values | Failure
"""Messages from a ps."""
ToWorker = Hello | Attach | DefineClosure | Run | End
"""Messages to a worker."""
FromWorker = Done | Failure | Attached
"""Messages from a worker."""
