"""Variables that live on parameter servers, as the coordinator has them: placed, read and assigned."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainband.compat.ops.dtypes import as_dtype
from trainband.compat.tf1.graphs.errors import UnavailableError
from trainband.compat.tf2.coordinator import records as r
from trainband.compat.tf2.coordinator.arrays import Reader, aval_of, sendable
from trainband.compat.tf2.coordinator.link import Link
from trainband.compat.tf2.eager.shapes import TensorShape
from trainband.compat.tf2.eager.tensor import Tensor
from trainband.errors import PeerError
from trainband.wire.frame import Bytes
from trainband.wire.transport import Timeouts


@dataclass(frozen=True, slots=True)
class Part:
    """What one ps has of a variable.

    Attributes:
      ps, number: where it is, and what it is called there.
      rows: which rows it has; `None`: it is a copy of the whole.
    """

    ps: int
    number: int
    aval: r.Aval
    rows: tuple[int, int] | None = None

    def of(self, value: Any) -> Any:
        """The part of a value of the whole."""
        return value if self.rows is None else value[self.rows[0] : self.rows[1]]


class Entry:
    """A variable that lives on ps: divided into parts, or as one copy or several."""

    __slots__ = ("known", "parts", "readers", "variable")

    def __init__(self, variable: Any, parts: Sequence[Part]) -> None:
        self.variable = variable
        self.parts = tuple(parts)
        self.readers = [Reader([one.aval], "a ps") for one in parts]
        self.known: tuple[int, Tensor] | None = None
        """The state of the job in which it was read last, and its value there."""

    @property
    def is_divided(self) -> bool:
        """Whether no ps has all of it."""
        return self.parts[0].rows is not None

    @property
    def read_parts(self) -> tuple[Part, ...]:
        """The parts that make up its value."""
        return self.parts if self.is_divided else self.parts[:1]

    @property
    def places(self) -> tuple[int, ...]:
        """The ps that have something of it."""
        return tuple(one.ps for one in self.parts)

    def part_on(self, ps: int) -> Part:
        """The copy that a ps has."""
        return next(one for one in self.parts if one.ps == ps)


class PsVariables:
    """The variables of a coordinator; a `Home`.

    Args:
      links: to the ps, whose streams are open.
      partitioner: into how many parts a variable is divided along each axis, by its shape and dtype.
    """

    def __init__(
        self, links: Sequence[Link], timeouts: Timeouts, partitioner: Callable[..., Sequence[int]] | None = None
    ) -> None:
        self._links = links
        self._partitioner = partitioner
        self._timeouts = timeouts
        self._lock = threading.RLock()
        self._defining = threading.RLock()
        self._entries: dict[int, Entry] = {}
        self._numbers = itertools.count()
        self._next_ps = itertools.cycle(range(len(links)))
        self._programs: dict[tuple[int, bytes], int] = {}
        self.state = 0
        """Another one after whatever may have changed a variable."""
        self.epoch = 0
        """Another one after whatever workers must see of variables at once: see `records.Run`."""

    @property
    def ps(self) -> int:
        """How many ps there are."""
        return len(self._links)

    def changed(self) -> None:
        """Closures may have changed variables."""
        self.state += 1

    def place(self) -> int:
        """The ps for the next variable: one after the other, as in TensorFlow."""
        return next(self._next_ps)

    def rows(self, variable: Any) -> list[tuple[int, int]]:
        """The rows of each part into which the partitioner divides a variable; nothing, where it is not divided."""
        shape, dtype = variable.read_for(None).aval
        if self._partitioner is None or not shape:
            return []
        counts = list(self._partitioner(TensorShape(shape), dtype=as_dtype(dtype)))
        if any(count > 1 for count in counts[1:]):
            raise ValueError(
                f"The partitioner divides a variable of the shape {shape} into {counts} parts: only the first axis can "
                "be divided."
            )
        count = counts[0]
        if count < 2:
            return []
        least, more = divmod(shape[0], count)  # the first parts have one row more, as in TensorFlow
        ends = [(at + 1) * least + min(at + 1, more) for at in range(count)]
        return list(zip([0, *ends[:-1]], ends, strict=True))

    def entry(self, variable: Any) -> Entry | None:
        """What is known of a variable; `None` while it lives in this process."""
        return self._entries.get(id(variable))

    def add(self, variable: Any, places: Sequence[int], rows: Sequence[tuple[int, int] | None] = ()) -> Entry:
        """Moves a variable to ps, with its value: a copy to each, or these rows."""
        value = sendable(variable.read_for(None).array)
        with self._lock:
            parts = []
            for ps, some in zip(places, rows or [None] * len(places), strict=True):
                own = value if some is None else value[some[0] : some[1]]
                part = Part(ps, next(self._numbers), aval_of(own), some)
                self._ask(ps, r.Put((part.number,), (part.aval,)), [own])
                parts.append(part)
            entry = self._entries[id(variable)] = Entry(variable, parts)
        variable.home = self
        return entry

    def define(self, ps: int, data: bytes) -> int:
        """Gives a ps a program. Returns its number."""
        with self._lock:
            number = self._programs.get((ps, data))
            if number is None:
                number = len(self._programs)
                self._ask(ps, r.Define(number), [np.frombuffer(data, np.uint8)])
                self._programs[ps, data] = number
            return number

    def pull(self, variable: Any) -> Tensor:
        """See `Home`.

        Raises:
          UnavailableError: its ps has gone.
        """
        entry = self._entries[id(variable)]
        with self._lock:
            state = self.state
            if entry.known is None or entry.known[0] != state:
                found = [
                    reader(self._ask(part.ps, r.Commit(read=(part.number,))))[0].copy()
                    for part, reader in zip(entry.read_parts, entry.readers, strict=False)
                ]
                entry.known = state, Tensor(found[0] if len(found) == 1 else np.concatenate(found))
            return entry.known[1]

    def push(self, variable: Any, tensor: Tensor) -> None:
        """See `Home`.

        Raises:
          UnavailableError: its ps has gone.
        """
        entry = self._entries[id(variable)]
        value = sendable(tensor.array)
        with self._lock:
            for part in entry.parts:
                self._ask(part.ps, r.Commit((r.Change(r.ASSIGN, (part.number,), 1),)), [sendable(part.of(value))])
            self.state += 1
            self.epoch += 1

    @contextmanager
    def defining(self) -> Iterator[None]:
        """One thread at a time, which traces closures and places variables."""
        with self._defining:
            yield

    def close(self) -> None:
        """Tells the ps that the job has ended."""
        for link in self._links:
            try:
                link.send(r.End())
            except PeerError:
                continue
            finally:
                link.close()

    def _ask(self, ps: int, record: Any, body: Sequence[Any] = ()) -> Sequence[Bytes]:
        link = self._links[ps]
        try:
            return link.ask(record, body, self._timeouts.stall_s).body
        except PeerError as exc:
            raise lost(str(link), str(exc)) from exc


def lost(ps: str, why: str) -> UnavailableError:
    """The error for a ps that has gone, and the variables with it."""
    return UnavailableError(
        None,
        None,
        f"{ps} does not answer, and the variables on it are lost ({why}). Restart the job; it resumes from the last "
        "checkpoint that the script restores.",
    )
