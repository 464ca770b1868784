"""TableRows: a worker's side of tables: ids to rows, and their gradients to the ps.

The rows of a batch come with the params. While one batch is trained on, its feed prepares the next ones: if it has
one ready when a push is sent, the ids of that batch go with the push, and its rows come with the answer. Else they cost
a pull of their own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainband.errors import DataError
from trainband.model.tables import BatchIds, BatchWithIds, BatchWithRows, Tables
from trainband.model.variables import PyTree
from trainband.ps.tables.checks import checked_ids
from trainband.ps.tables.occurrences import summed, unique
from trainband.ps.tables.sharding import shard_of
from trainband.ps.worker.exchange import Exchange, Exchanger
from trainband.ps.worker.shard_link import Blocks
from trainband.rows.table import Table
from trainband.runtime import Lock


@dataclass(frozen=True, slots=True)
class _OfTable:
    """The distinct ids of a batch in one table, those of each ps together.

    Attributes:
      ids: of each ps.
      places: for each id of a feature, in the order given, its place among the distinct ones.
    """

    ids: tuple[NDArray[np.uint64], ...]
    places: Mapping[str, NDArray[np.int32]]


class Lookup:
    """The ids of a batch, and how its rows and their gradients are ordered. Raises DataError for ids beyond a table's.

    Attributes:
      asked: for each ps, the ids in each table.
    """

    def __init__(self, tables: Tables, ids: BatchIds, ps_count: int) -> None:
        self._tables = tables
        self._shapes = {name: array.shape for name, array in ids.of_feature.items()}
        self._of_tables = [
            _distinct(tables.tables[number], {name: ids.of_feature[name] for name in names}, ps_count)
            for number, names in tables.numbers()
        ]
        self.asked: tuple[Blocks, ...] = tuple(tuple(one.ids[ps] for one in self._of_tables) for ps in range(ps_count))

    def rows(self, answers: Sequence[Blocks]) -> dict[str, NDArray[np.float32]]:
        """The rows of each feature, in the shape of its ids and the table's dim; `answers`: as in `Exchange.rows`."""
        found = {}
        for number, one in enumerate(self._of_tables):
            dim = self._tables.tables[number].dim
            parts = [answer[number] for answer in answers]
            rows = (parts[0] if len(parts) == 1 else np.concatenate(parts)).reshape(-1, dim)
            for name, places in one.places.items():
                found[name] = rows.take(places, axis=0).reshape(*self._shapes[name], dim)
        return found

    def zeros(self) -> dict[str, NDArray[np.float32]]:
        """Rows of zeros, to compile a step with."""
        return {
            name: np.zeros((*self._shapes[name], self._tables.tables[number].dim), np.float32)
            for number, one in enumerate(self._of_tables)
            for name in one.places
        }

    def gradients(self, of_feature: Mapping[str, NDArray[np.float32]]) -> list[Blocks]:
        """For each ps the arrays of a push after its blocks: the ids in each table, and their summed gradients."""
        arrays: list[list[NDArray[Any]]] = [[] for _ in self.asked]
        for number, one in enumerate(self._of_tables):
            dim = self._tables.tables[number].dim
            given = [np.asarray(of_feature[name]).reshape(-1, dim) for name in one.places]
            places = list(one.places.values())
            together = (given[0], places[0]) if len(given) == 1 else (np.concatenate(given), np.concatenate(places))
            sums = summed(*together, sum(map(len, one.ids)))
            start = 0
            for ps, ids in enumerate(one.ids):
                arrays[ps] += [ids, sums[start : start + len(ids)]]
                start += len(ids)
        return [tuple(one) for one in arrays]


class TableRows:
    """Looks rows up for steps, evaluations and predictions. Only `prepare` may be called by another thread.

    Args:
      exchanger: to the ps.
      ps_count: how many there are.
      lock: for this object alone.
    """

    def __init__(self, tables: Tables, exchanger: Exchanger, ps_count: int, lock: Lock) -> None:
        self._tables = tables
        self._lock = lock
        self._exchanger = exchanger
        self._ps_count = ps_count
        self._prepared: deque[tuple[BatchIds, Lookup]] = deque(maxlen=64)
        self._foreseen: BatchIds | None = None
        """The ids whose rows the newest exchange has."""

    def prepare(self, place: Callable[[PyTree], PyTree] | None) -> Callable[[PyTree], BatchWithIds]:
        """Returns what a feed does with each batch: takes its ids out, finds the distinct ones, and places the rest."""

        def prepared(batch: PyTree) -> BatchWithIds:
            split = self._tables.split(batch)
            lookup = self._lookup(split.ids)
            with self._lock:
                self._prepared.append((split.ids, lookup))
            return split if place is None else BatchWithIds(place(split.batch), split.ids)

        return prepared

    def of_step(self, batch: PyTree) -> tuple[BatchWithRows, Lookup]:
        """Returns a batch with its rows, and its lookup; asks the ps for them unless they came with the last answer."""
        split = self._tables.split(batch)
        lookup = self._taken(split.ids) or self._lookup(split.ids)
        exchange = self._exchanger.now
        if self._foreseen is not split.ids:
            exchange = self._exchanger.pull(lookup.asked)
        return BatchWithRows(split.batch, lookup.rows(exchange.rows)), lookup

    def next_asked(self) -> Sequence[Blocks] | None:
        """The ids of the next batch, if it is known, to be asked for with a push."""
        self._foreseen = None
        with self._lock:
            if not self._prepared:
                return None
            self._foreseen, lookup = self._prepared[0]
        return lookup.asked

    def forget(self) -> None:
        """Forgets the rows that came with the newest exchange: another one follows."""
        self._foreseen = None

    def of_batch(self, batch: PyTree) -> tuple[BatchWithRows, Exchange]:
        """Returns a batch with its rows as they are now, and the params; no row is inserted."""
        split = self._tables.split(batch)
        lookup = self._lookup(split.ids)
        self._foreseen = None
        exchange = self._exchanger.pull(lookup.asked)
        return BatchWithRows(split.batch, lookup.rows(exchange.rows)), exchange

    def zeros(self, batch: PyTree) -> BatchWithRows:
        """Returns a batch with rows of zeros."""
        split = self._tables.split(batch)
        return BatchWithRows(split.batch, self._lookup(split.ids).zeros())

    def _lookup(self, ids: BatchIds) -> Lookup:
        return Lookup(self._tables, ids, self._ps_count)

    def _taken(self, ids: BatchIds) -> Lookup | None:
        """Takes the lookup of these ids from those that were prepared; earlier ones were not trained on."""
        with self._lock:
            if not any(mine is ids for mine, _ in self._prepared):
                return None
            while True:
                mine, lookup = self._prepared.popleft()
                if mine is ids:
                    return lookup


def _distinct(table: Table, of_feature: Mapping[str, NDArray[np.uint64]], ps_count: int) -> _OfTable:
    flat = [array.reshape(-1) for array in of_feature.values()]
    together = flat[0] if len(flat) == 1 else np.concatenate(flat)
    if together.size >= 1 << 31:
        raise DataError(f"a batch has {together.size:,} ids in one table; use smaller batches.")
    ids, places = unique(together)
    checked_ids(ids, table)
    parts: tuple[NDArray[np.uint64], ...] = (ids,)
    if ps_count > 1:
        shards = shard_of(ids, ps_count)
        order = np.argsort(shards, kind="stable")
        ranks = np.empty(len(ids), np.int32)
        ranks[order] = np.arange(len(ids), dtype=np.int32)
        ends = np.cumsum(np.bincount(shards, minlength=ps_count))
        parts, places = tuple(np.split(ids[order], ends[:-1])), ranks[places]
    starts = np.cumsum([0, *map(len, flat)])
    return _OfTable(parts, {name: places[starts[i] : starts[i + 1]] for i, name in enumerate(of_feature)})
