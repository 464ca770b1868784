"""ProgramLimits: bounds on an update program, when it is checked and in every update."""

from __future__ import annotations

import os

from msgspec import Struct

MIB = 1 << 20
GIB = 1 << 30

LONGEST_S = 300.0
"""Longest check of any program, unless `ProgramLimits.time_s` itself is longer."""
RUN_BYTES = 256 * MIB
"""A program that needs more memory than this is compiled in its check but not run: no large model is held twice."""
WORK_PER_S = 10_000_000_000
"""Work of one core in a second at its best."""


class ProgramLimits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits that a ps sets for the update program of its shard.

    Attributes:
      program_bytes: of each of its two functions, serialised.
      operations: to be compiled by XLA, after every call is inlined.
      work, work_per_element: the most that one run may compute, whatever its branches decide: a constant, and an amount
        for each element of the shard with its state. 1 stands for at most 1 ns on one core, so the defaults are 4 s,
        and 50 s more for each million elements; most operations take a tenth of that. Muon on a 4096 x 4096 matrix
        needs 7,500 an element. Never more than all cores do in `time_s` at their best, 10 in a ns.
      tensor_bytes, tensor_bytes_per_shard_byte: the largest tensor, in the same way.
      memory_bytes, memory_per_shard_byte: the most that one run may need with its arguments, and that checking may add
        to the memory of the checker, in the same way, with the optimizer state counted as a part of the shard.
      time_s, time_s_per_mib: for parsing, checking and compiling it, and for running it once if that needs at most
        256 MiB: a constant, and an amount for each MiB of the program, but 300 s at most; then the process is killed.
        XLA compiles LAMB on 200 variables, which is 0.2 MiB, in 43 s.
    """

    program_bytes: int = 4 * MIB
    operations: int = 500_000
    work: int = 4_000_000_000
    work_per_element: int = 50_000
    tensor_bytes: int = 256 * MIB
    tensor_bytes_per_shard_byte: int = 16
    memory_bytes: int = 8 * GIB
    memory_per_shard_byte: int = 16
    time_s: float = 60.0
    time_s_per_mib: float = 600.0

    def __post_init__(self) -> None:
        """Raises `ValueError` if a limit is not positive."""
        for name in self.__struct_fields__:
            if getattr(self, name) <= 0:
                raise ValueError(f"ProgramLimits: {name} must be positive, got {getattr(self, name)!r}.")

    def work_of(self, elements: int) -> int:
        """The most that one run may compute for a shard of this many elements."""
        at_best = self.time_s * (os.cpu_count() or 1) * WORK_PER_S
        return min(self.work + self.work_per_element * elements, int(at_best))

    def tensor_bytes_of(self, shard_bytes: int) -> int:
        """Bytes of the largest tensor allowed for a shard of this many bytes."""
        return self.tensor_bytes + self.tensor_bytes_per_shard_byte * shard_bytes

    def memory_of(self, shard_bytes: int) -> int:
        """Bytes that one run may need, and that checking may add to its process."""
        return self.memory_bytes + self.memory_per_shard_byte * shard_bytes

    def time_of(self, program_bytes: int) -> float:
        """Seconds for checking both functions of a program of this many bytes."""
        return min(self.time_s + self.time_s_per_mib * program_bytes / MIB, max(self.time_s, LONGEST_S))
