"""Groups the many options of a command into records."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Record = TypeVar("Record", bound="DataclassInstance")


def pop_options(record: type[Record], given: dict[str, Any]) -> Record:
    """Moves the options that a record's fields name from `given` into a record."""
    return record(**{field.name: given.pop(field.name) for field in fields(record) if field.name in given})
