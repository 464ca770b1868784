"""Tables as records: what all tasks of a job must agree on."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from trainband import rows
from trainband.errors import ModelError
from trainband.rows.table import Table
from trainband.wire.messages.tables import Choice, TableRecord

_CHOICES: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        *(rows.Sgd, rows.Adagrad, rows.RowwiseAdagrad, rows.LazyAdam, rows.Ftrl),
        *(rows.Constant, rows.Uniform, rows.Normal, rows.TruncatedNormal),
        *(rows.AfterCount, rows.WithProbability, rows.UnusedFor, rows.FewerThan, rows.LowScore),
    )
}


def record_of(table: Table) -> TableRecord:
    """The record of a table.

    Raises:
      ModelError: its optimizer, initializer or a rule is not one of `trainband.rows`.
    """
    return TableRecord(
        name=table.name,
        dim=table.dim,
        optimizer=_choice(table, "optimizer", table.optimizer),
        initializer=_choice(table, "initializer", table.initializer),
        admit=None if table.admit is None else _choice(table, "admit", table.admit),
        evict=None if table.evict is None else _choice(table, "evict", table.evict),
        max_rows=table.max_rows,
        keep=table.keep,
        dtype=table.dtype,
        rounding=table.rounding,
        seed=table.seed,
        ids=None if table.ids is None else str(table.ids),
    )


def table_of(record: TableRecord) -> Table:
    """The table of a record.

    Raises:
      ModelError: the record does not describe one.
    """
    return Table(
        record.name,
        dim=record.dim,
        optimizer=_chosen(record, record.optimizer),
        initializer=_chosen(record, record.initializer),
        admit=None if record.admit is None else _chosen(record, record.admit),
        evict=None if record.evict is None else _chosen(record, record.evict),
        max_rows=record.max_rows,
        keep=record.keep,
        dtype=record.dtype,
        rounding=record.rounding,
        seed=record.seed,
        ids=None if record.ids is None else int(record.ids),
    )


def _choice(table: Table, what: str, chosen: Any) -> Choice:
    kind = type(chosen).__name__
    if _CHOICES.get(kind) is not type(chosen):
        raise ModelError(
            f"the {what} of table {table.name!r} is {chosen!r}; a ps runs only those of trainband.rows: "
            f"{', '.join(_CHOICES)}."
        )
    return Choice(kind, {field.name: getattr(chosen, field.name) for field in fields(chosen)})


def _chosen(record: TableRecord, choice: Choice) -> Any:
    kind = _CHOICES.get(choice.kind)
    names = set() if kind is None else {field.name for field in fields(kind)}
    if kind is None or set(choice.settings) - names:
        raise ModelError(f"table {record.name!r} asks for {choice.kind!r}, which trainband.rows does not have.")
    return kind(**choice.settings)
