"""Small sets of choices that scripts pass as arguments."""

from __future__ import annotations

import enum


class AggregationMethod:
    """How the parts of a gradient are added up. This changes nothing: XLA decides."""

    ADD_N = 0
    DEFAULT = ADD_N
    EXPERIMENTAL_TREE = 1
    EXPERIMENTAL_ACCUMULATE_N = 2


class VariableSynchronization(enum.Enum):
    """When copies of a variable are made equal. This changes nothing: there is one copy."""

    AUTO = 0
    NONE = 1
    ON_WRITE = 2
    ON_READ = 3


class VariableAggregation(enum.Enum):
    """How copies of a variable become one. This changes nothing: there is one copy."""

    NONE = 0
    SUM = 1
    MEAN = 2
    ONLY_FIRST_REPLICA = 3


class UnconnectedGradients(enum.Enum):
    """What the derivative by something is on which the result does not depend."""

    NONE = "none"
    ZERO = "zero"
