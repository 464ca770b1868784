"""The types of the fields of records, with their bounds: what decodes is within them.

msgspec knows no finite float: whoever uses a number that must be finite checks that.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from trainband.wire.limits import LIMITS

GUESTS = 100_000
"""The number of the guest worker:0, were it one; over those of all planned workers."""

UNLIMITED = 1 << 62
"""A last version from here on means that no number of updates was asked for."""

# \A and \Z, because $ lets a newline follow; control characters as terminals know them, C1 included.
_PLAIN = r"[^\x00-\x1f\x7f-\x9f]"
_INDEX = r":(0|[1-9][0-9]{0,5})\Z"

WorkerNumber = Annotated[int, Meta(ge=0, le=GUESTS + LIMITS.worker_index)]
"""A worker's, which is another on each ps where a client has yet to fill it in."""
WorkerIndex = Annotated[int, Meta(ge=0, le=LIMITS.worker_index)]
PsNumber = Annotated[int, Meta(ge=0, lt=LIMITS.tasks)]
"""Of a ps or a shard."""
PsOrNobody = Annotated[int, Meta(ge=-1, lt=LIMITS.tasks)]
TaskName = Annotated[str, Meta(pattern=r"\A(chief|worker)" + _INDEX)]
"""A worker's, the only tasks that join."""
PeerName = Annotated[str, Meta(pattern=r"\A(chief|worker|ps|evaluator)" + _INDEX)]
PeerNames = Annotated[tuple[PeerName, ...], Meta(max_length=LIMITS.tasks + LIMITS.guests)]

Incarnation = Annotated[str, Meta(pattern=rf"\A[ -~]{{1,{LIMITS.token_length}}}\Z")]
"""One life of a process."""
Token = Annotated[str, Meta(pattern=rf"\A[ -~]{{0,{LIMITS.token_length}}}\Z")]
"""Anything else that is random: a job, a lineage, an order; empty for none. A digest, too."""
Host = Annotated[str, Meta(pattern=rf"\A{_PLAIN}{{0,{LIMITS.host_length}}}\Z")]
Path = Annotated[str, Meta(pattern=rf"\A{_PLAIN}{{1,{LIMITS.path_length}}}\Z")]
Name = Annotated[str, Meta(pattern=rf"\A{_PLAIN}{{1,{LIMITS.name_length}}}\Z")]
"""Of a variable or a data source."""
Word = Annotated[str, Meta(pattern=rf"\A{_PLAIN}{{0,{LIMITS.host_length}}}\Z")]
"""A short text without control characters: a version, a dtype, a compiler."""
Text = Annotated[str, Meta(max_length=LIMITS.text_length)]
"""A message for people, of one or several lines."""

Count = Annotated[int, Meta(ge=0, le=1 << 62)]
ProcessId = Annotated[int, Meta(ge=0, le=(1 << 32) - 1)]
Version = Annotated[int, Meta(ge=0, le=UNLIMITED)]
Sequence = Annotated[int, Meta(ge=0, le=1 << 62)]
Examples = Annotated[int, Meta(ge=0, le=1 << 48)]
Seconds = Annotated[float, Meta(ge=0, le=1e12)]
"""Of anything; as a bound, it keeps out what is not finite, too."""
StepSeconds = Annotated[tuple[Seconds, ...], Meta(max_length=8)]
Fit = Annotated[int, Meta(ge=0, le=LIMITS.fit)]
TermNumber = Annotated[int, Meta(ge=0, le=1 << 53)]
Position = Annotated[int, Meta(ge=0, le=1 << 62)]
StateLeaf = Annotated[int, Meta(ge=0, lt=LIMITS.state_leaves)]
SliceNumbers = Annotated[tuple[Annotated[int, Meta(ge=0, lt=LIMITS.slices)], ...], Meta(max_length=LIMITS.slices)]
"""Of slices of one shard, in the order of its layout."""
Trainings = Annotated[tuple[Version, ...], Meta(max_length=LIMITS.trainings)]

Dimension = Annotated[int, Meta(ge=0, le=LIMITS.elements)]
Shape = Annotated[tuple[Dimension, ...], Meta(max_length=LIMITS.dimensions)]
Setting = Annotated[str, Meta(max_length=LIMITS.host_length)] | int | float | bool | None
RuleSettings = Annotated[dict[Word, Setting], Meta(max_length=LIMITS.rule_settings)]
UpdateText = Annotated[str, Meta(max_length=LIMITS.update_text_length)]
Program = Annotated[bytes, Meta(max_length=LIMITS.program_bytes)]
WorkerStateData = Annotated[bytes, Meta(max_length=LIMITS.worker_state_bytes)]
WorkerStates = Annotated[dict[WorkerNumber, WorkerStateData], Meta(max_length=LIMITS.tasks)]
"""By the number of the worker."""
SourceRecord = Annotated[str, Meta(max_length=256 << 20)]
SourceRecords = Annotated[dict[Name, SourceRecord], Meta(max_length=LIMITS.sources)]
"""By the name of the data source."""
