"""How values of a variable on several devices become one: what scripts say of their variables."""

from __future__ import annotations

import enum


class VariableAggregation(enum.Enum):
    """How what several devices assign becomes one value."""

    NONE = 0
    SUM = 1
    MEAN = 2
    ONLY_FIRST_REPLICA = 3


class VariableSynchronization(enum.Enum):
    """When copies of a variable become equal."""

    AUTO = 0
    NONE = 1
    ON_WRITE = 2
    ON_READ = 3
