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


_CHOSEN = ("optimizer", "initializer", "admit", "evict")
_PLAIN = ("name", "dim", "max_rows", "keep", "dtype", "rounding", "seed")


def record_of(table: Table) -> TableRecord:
    """The record of a table.

    Raises:
      ModelError: its optimizer, initializer or a rule is not one of `trainband.rows`.
    """
    plain: dict[str, Any] = {name: getattr(table, name) for name in _PLAIN}
    chosen: dict[str, Any] = {what: _choice(table, what) for what in _CHOSEN}
    return TableRecord(**plain, **chosen, ids=None if table.ids is None else str(table.ids))


def table_of(record: TableRecord) -> Table:
    """The table of a record.

    Raises:
      ModelError: the record does not describe one.
    """
    plain: dict[str, Any] = {name: getattr(record, name) for name in _PLAIN}
    chosen: dict[str, Any] = {what: _chosen(record, what) for what in _CHOSEN}
    return Table(**plain, **chosen, ids=None if record.ids is None else int(record.ids))


def _choice(table: Table, what: str) -> Choice | None:
    chosen: Any = getattr(table, what)
    if chosen is None:
        return None
    kind = type(chosen).__name__
    if _CHOICES.get(kind) is not type(chosen):
        raise ModelError(
            f"the {what} of table {table.name!r} is {chosen!r}; a ps runs only those of trainband.rows: "
            f"{', '.join(_CHOICES)}."
        )
    return Choice(kind, {field.name: getattr(chosen, field.name) for field in fields(chosen)})


def _chosen(record: TableRecord, what: str) -> Any:
    choice: Choice | None = getattr(record, what)
    if choice is None:
        return None
    kind = _CHOICES.get(choice.kind)
    if kind is None:
        raise ModelError(f"table {record.name!r} asks for {choice.kind!r}, which trainband.rows does not have.")
    try:
        return kind(**choice.settings)
    except TypeError as exc:
        raise ModelError(f"the {what} of table {record.name!r} has invalid settings: {exc}.") from None
