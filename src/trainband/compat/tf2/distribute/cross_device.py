"""How devices exchange values, as scripts choose it. JAX's own collectives do it, whatever is chosen."""

from __future__ import annotations


class CrossDeviceOps:
    """A way to exchange values."""


class NcclAllReduce(CrossDeviceOps):
    """By NCCL."""

    def __init__(self, num_packs: int = 1) -> None:
        self.num_packs = num_packs


class HierarchicalCopyAllReduce(CrossDeviceOps):
    """By copies between neighbours."""

    def __init__(self, num_packs: int = 1) -> None:
        self.num_packs = num_packs


class ReductionToOneDevice(CrossDeviceOps):
    """On one device."""

    def __init__(self, reduce_to_device: str | None = None, accumulation_fn: object = None) -> None:
        self.reduce_to_device = reduce_to_device
        self.accumulation_fn = accumulation_fn
