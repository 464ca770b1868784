"""ProgramLimits: how much an update program may take, in its checking and in every update after that."""

from __future__ import annotations

from msgspec import Struct

MIB = 1 << 20
GIB = 1 << 30

LONGEST_S = 300.0
"""For any program, unless `ProgramLimits.time_s` itself is longer."""


class ProgramLimits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a ps allows the update program of its shard.

    Attributes:
      program_bytes: of each of its two functions, serialised.
      operations: after every call is inlined; what XLA must compile.
      work, work_per_element: the most that one run may compute, in elements computed or multiplied and added: a
        constant, and so much for each element of the shard. Muon on a 4096 x 4096 matrix needs 60,000 an element.
      tensor_bytes, tensor_bytes_per_shard_byte: the largest tensor, in the same way.
      memory_bytes, memory_per_shard_byte: what checking may add to the memory of the process that checks, in the same
        way, with the optimizer state counted as a part of the shard.
      time_s, time_s_per_mib: for parsing, checking, compiling and running it once, with so much more for each MiB of
        the program, but 300 s at most; then the process is killed. XLA compiles LAMB on 200 variables, which is
        0.2 MiB, in 43 s.
    """

    program_bytes: int = 4 * MIB
    operations: int = 500_000
    work: int = 20_000_000_000
    work_per_element: int = 200_000
    tensor_bytes: int = 256 * MIB
    tensor_bytes_per_shard_byte: int = 16
    memory_bytes: int = 8 * GIB
    memory_per_shard_byte: int = 16
    time_s: float = 60.0
    time_s_per_mib: float = 600.0

    def __post_init__(self) -> None:
        """Raises `ValueError` for what is not positive."""
        for name in self.__struct_fields__:
            if getattr(self, name) <= 0:
                raise ValueError(f"ProgramLimits: {name} must be positive; it is {getattr(self, name)!r}.")

    def work_of(self, elements: int) -> int:
        """The most that one run may compute for a shard of so many elements."""
        return self.work + self.work_per_element * elements

    def tensor_bytes_of(self, shard_bytes: int) -> int:
        """The largest tensor that may occur for a shard of so many bytes."""
        return self.tensor_bytes + self.tensor_bytes_per_shard_byte * shard_bytes

    def memory_of(self, shard_bytes: int) -> int:
        """What checking may add to the memory of its process."""
        return self.memory_bytes + self.memory_per_shard_byte * shard_bytes

    def time_of(self, program_bytes: int) -> float:
        """Seconds for checking both functions of a program, which together have so many bytes."""
        return min(self.time_s + self.time_s_per_mib * program_bytes / MIB, max(self.time_s, LONGEST_S))
