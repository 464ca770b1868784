"""Options of datasets: how one is divided over workers counts; the rest is for TensorFlow's optimiser."""

from __future__ import annotations

import enum
from typing import Any


class AutoShardPolicy(enum.IntEnum):
    """How a dataset is divided over workers."""

    OFF = -1
    AUTO = 0
    FILE = 1
    DATA = 2
    HINT = 3


class ExternalStatePolicy(enum.Enum):
    """What is done about state that a saved dataset would lose: nothing here."""

    WARN = 0
    IGNORE = 1
    FAIL = 2


SHARD_HINT = -1
"""Stands for the number of shards, and the index, if `AutoShardPolicy.HINT` inserts them."""


class Group:
    """Holds whatever is set; groups of options such as `threading` come into being when used."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        group = Group()
        object.__setattr__(self, name, group)
        return group

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Group) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]  # as of what can be changed


class DistributeOptions(Group):
    """How a dataset is divided over workers."""

    def __init__(self) -> None:
        self.auto_shard_policy = AutoShardPolicy.AUTO
        self.num_devices: int | None = None


class Options(Group):
    """Options of a dataset; what is not listed here changes nothing."""

    def __init__(self) -> None:
        self.experimental_distribute = DistributeOptions()
        self.deterministic: bool | None = None

    @property
    def experimental_deterministic(self) -> bool | None:
        """An older name of `deterministic`."""
        return self.deterministic

    @experimental_deterministic.setter
    def experimental_deterministic(self, value: bool | None) -> None:
        self.deterministic = value

    @property
    def auto_shard_policy(self) -> AutoShardPolicy:
        """How a dataset is divided over workers."""
        return AutoShardPolicy(self.experimental_distribute.auto_shard_policy)

    def merge(self, options: Options) -> Options:
        """Options with those of another, which take precedence where they are not the defaults."""
        found, default = Options(), Options()
        found.__dict__.update(self.__dict__)
        for name, value in vars(options).items():
            if name not in vars(default) or value != getattr(default, name):
                setattr(found, name, value)
        return found
