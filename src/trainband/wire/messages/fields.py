"""The types of the fields of records, with bounds that decoding enforces.

msgspec cannot require a finite float, so code that needs a finite number checks it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta

from trainband.runtime.formatting import PLAIN, one_line
from trainband.wire.limits import LIMITS

ELASTIC_BASE = 100_000
"""Added to an elastic worker's index to get its number; above the numbers of all planned workers."""

UNLIMITED = 1 << 62
"""A last version from here on means that the number of updates is not limited."""

# \A and \Z, because $ allows a trailing newline.
_INDEX = r":(0|[1-9][0-9]{0,5})\Z"

WorkerNumber = Annotated[int, Meta(ge=0, le=ELASTIC_BASE + LIMITS.worker_index)]
"""Number of a worker; differs on each ps if a client has yet to fill it in."""
WorkerIndex = Annotated[int, Meta(ge=0, le=LIMITS.worker_index)]
PsNumber = Annotated[int, Meta(ge=0, lt=LIMITS.tasks)]
"""Number of a ps or a shard."""
PsOrNobody = Annotated[int, Meta(ge=-1, lt=LIMITS.tasks)]
TaskName = Annotated[str, Meta(pattern=r"\A(chief|worker)" + _INDEX)]
"""Name of a worker; only workers join."""
PeerName = Annotated[str, Meta(pattern=r"\A(chief|worker|ps|evaluator)" + _INDEX)]
PeerNames = Annotated[tuple[PeerName, ...], Meta(max_length=LIMITS.tasks + LIMITS.elastic_workers)]

Incarnation = Annotated[str, Meta(pattern=rf"\A[ -~]{{1,{LIMITS.token_length}}}\Z")]
"""Id of one process."""
Token = Annotated[str, Meta(pattern=rf"\A[ -~]{{0,{LIMITS.token_length}}}\Z")]
"""Another random id: of a job, a lineage, an order; empty for none. Also a digest."""
Host = Annotated[str, Meta(pattern=rf"\A{PLAIN}{{0,{LIMITS.host_length}}}\Z")]
Path = Annotated[str, Meta(pattern=rf"\A{PLAIN}{{1,{LIMITS.path_length}}}\Z")]
Name = Annotated[str, Meta(pattern=rf"\A{PLAIN}{{1,{LIMITS.name_length}}}\Z")]
"""Name of a variable or a data source."""
Word = Annotated[str, Meta(pattern=rf"\A{PLAIN}{{0,{LIMITS.host_length}}}\Z")]
"""A short text without control characters: a version, a dtype, a compiler."""

if TYPE_CHECKING:
    Text = str
else:

    class _AnyStr(type):
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, str)

    class Text(metaclass=_AnyStr):
        """A message for people. `received` turns anything received into one printable line.

        msgspec does not know this type, so it calls `received` to create the value, which is a str.
        """


def received(kind: type, value: Any) -> Any:
    """Decodes a field of a type unknown to msgspec; `Text` is the only one.

    Raises:
      ValueError: it is not a text, or too long.
    """
    if kind is not Text:
        raise NotImplementedError(kind)
    if not isinstance(value, str) or len(value) > LIMITS.text_length:
        raise ValueError(f"Expected `str` of length <= {LIMITS.text_length}")
    return one_line(value)


Count = Annotated[int, Meta(ge=0, le=1 << 62)]
ProcessId = Annotated[int, Meta(ge=0, le=(1 << 32) - 1)]
Version = Annotated[int, Meta(ge=0, le=UNLIMITED)]
Sequence = Annotated[int, Meta(ge=0, le=1 << 62)]
Examples = Annotated[int, Meta(ge=0, le=1 << 48)]
Seconds = Annotated[float, Meta(ge=0, le=1e12)]
"""Any duration; the bounds also exclude values that are not finite."""
StepSeconds = Annotated[tuple[Seconds, ...], Meta(max_length=8)]
MemoryParts = Annotated[tuple[Count, ...], Meta(max_length=8)]
Fit = Annotated[int, Meta(ge=0, le=LIMITS.fit)]
TermNumber = Annotated[int, Meta(ge=0, le=1 << 53)]
Position = Annotated[int, Meta(ge=0, le=1 << 62)]
StateLeaf = Annotated[int, Meta(ge=0, lt=LIMITS.state_leaves)]
SliceNumbers = Annotated[tuple[Annotated[int, Meta(ge=0, lt=LIMITS.slices)], ...], Meta(max_length=LIMITS.slices)]
"""Slices of one shard, by position in its layout."""
Trainings = Annotated[tuple[Version, ...], Meta(max_length=LIMITS.trainings)]

Dimension = Annotated[int, Meta(ge=0, le=LIMITS.elements)]
Shape = Annotated[tuple[Dimension, ...], Meta(max_length=LIMITS.dimensions)]
Setting = Word | int | float | bool | None
RuleSettings = Annotated[dict[Word, Setting], Meta(max_length=LIMITS.rule_settings)]
UpdateText = Annotated[str, Meta(max_length=LIMITS.update_text_length)]
Program = Annotated[bytes, Meta(max_length=LIMITS.program_bytes)]
WorkerStateData = Annotated[bytes, Meta(max_length=LIMITS.worker_state_bytes)]
WorkerStates = Annotated[dict[WorkerNumber, WorkerStateData], Meta(max_length=LIMITS.tasks)]
"""Worker states by worker number."""
SourceRecord = Annotated[str, Meta(max_length=256 << 20)]
SourceRecords = Annotated[dict[Name, SourceRecord], Meta(max_length=LIMITS.sources)]
"""Records by name of their data source."""
