"""The exchanges of simulated workers, and a step reduced to the flags that they send one another."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tests.simulation.network import Network
from tests.simulation.process import Process, sleep
from tests.simulation.scheduler import Action
from trainband.spmd.step_program import CONTROL_FLAGS

SEEN = 0.7
"""How often the end of a process breaks another's exchange at once, instead of leaving it hanging."""


Place = tuple[int, ...]
Control = tuple[tuple[float, ...], ...]


class Part(NamedTuple):
    """One process's part in a call: its place in its program, and its flags for each step."""

    place: Place
    finite: tuple[bool, ...]
    control: Control


class Mailbox:
    """The parts that one process has received for each of its exchanges, in order.

    Args:
      network: that carries it.
      processes: all of them, and which this one is.
      waits: told when this one begins to wait for an exchange, and when it ends.
    """

    def __init__(
        self, network: Network, processes: Sequence[Process], index: int, waits: Callable[[int, bool], None]
    ) -> None:
        self._network = network
        self._processes = processes
        self._index = index
        self._waits = waits
        self.others: Sequence[Mailbox] = ()
        self.sent: list[float] = []
        """When this one began each of its exchanges."""
        self.first_calls: set[int] = set()
        """The exchanges whose programs were compiled before."""
        self.come: defaultdict[int, dict[int, Part]] = defaultdict(dict)
        self._broken = ""
        self._wakes: list[Action] = []
        processes[index].on_death.append(self._break_others)

    def send(self, part: Part) -> int:
        """Begins an exchange, and returns its number."""
        number, own = len(self.sent), self._processes[self._index]
        self.sent.append(own.now)
        for other in self.others:
            target = self._processes[other._index]  # noqa: SLF001 - one of its own kind

            def deliver(other: Mailbox = other, target: Process = target) -> None:
                target.receive(lambda: other._add_part(number, self._index, part))

            if target is own:
                self._add_part(number, self._index, part)
            else:
                self._network.carry_surely(own.name, target.name, deliver)
        return number

    def wait(self, number: int) -> Mapping[int, Part]:
        """Returns all parts of an exchange.

        Raises:
          ValueError: another process has ended, as XLA reports it.
        """
        if len(self.come[number]) < len(self._processes):
            self._waits(number, True)
            while len(self.come[number]) < len(self._processes):
                if self._broken:
                    raise ValueError(self._broken)  # and waits until it is known which process has gone
                sleep(self._processes[self._index], None, self._wakes)
            self._waits(number, False)
        return self.come[number]

    def _add_part(self, number: int, index: int, part: Part) -> None:
        self.come[number][index] = part
        self._wake()

    def _wake(self) -> None:
        wakes, self._wakes = self._wakes, []
        for wake in wakes:
            wake()

    def _break_others(self) -> None:
        own = self._processes[self._index]
        for other in self.others:
            target = self._processes[other._index]  # noqa: SLF001
            if target is not own and own.dice.random() < SEEN:

                def end(other: Mailbox = other, target: Process = target) -> None:
                    target.receive(other._end)

                self._network.carry_surely(own.name, target.name, end)

    def _end(self) -> None:
        self._broken = "UNKNOWN: gloo: connection closed by peer"
        self._wake()


class Flags:
    """The flags of a call, known once all have taken part."""

    def __init__(self, state: SimulatedState, number: int) -> None:
        self._state = state
        self._number = number

    def __array__(self, dtype: Any = None, copy: Any = None) -> NDArray[np.float32]:
        del dtype, copy
        return np.array(self._state.flags_of(self._number), np.float32)


class SimulatedState:
    """The values: how many steps were applied, and whether the training is over. See `StepProgram`.

    Args:
      mailbox: of this process.
      counts_down: whether a call may make more steps than are left.
      apart: told of processes that make different calls together.
    """

    def __init__(self, mailbox: Mailbox, *, counts_down: bool, apart: Callable[[str], None]) -> None:
        self.now: Any = None
        self.applied = 0
        self._mailbox = mailbox
        self._counts_down = counts_down
        self._apart = apart
        self._checked_at = len(mailbox.sent)
        self.start_training(None)

    def start_training(self, left: int | None) -> None:
        """Begins a training of at most `left` updates."""
        self._left = float("inf") if left is None else left
        self._ended = False

    def flags_of(self, number: int) -> Any:
        """Returns the flags of each step, or of the only one. Calls are read in order."""
        assert number == self._checked_at
        parts = self._mailbox.wait(number)
        self._checked_at += 1
        if len({part.place for part in parts.values()}) > 1:
            self._apart(f"in exchange {number}: { {index: part.place for index, part in sorted(parts.items())} }")
        rows = [self._step(list(parts.values()), row) for row in range(len(parts[0].control))]
        return rows if len(rows) > 1 else rows[0]

    def _step(self, parts: Sequence[Part], row: int) -> list[float]:
        control = [sum(part.control[row][flag] for part in parts) for flag in range(CONTROL_FLAGS)]
        finite = all(part.finite[row] for part in parts)
        self._ended = self._ended or control[0] > 0
        goes_on = not self._ended and self._left > 0
        counts = [float(self._left > 0)] if self._counts_down else []
        applies = finite and goes_on
        self.applied += applies
        self._left -= applies
        return [float(finite), 0.5, *control, *counts]


class SimulatedProgram:
    """See `StepProgram`: one call of it takes part in an exchange.

    Args:
      state: that it changes.
      mailbox, process: of this process.
      compile_s: how long the first call takes.
    """

    on_cpu = True

    def __init__(self, state: SimulatedState, mailbox: Mailbox, process: Process, compile_s: float) -> None:
        self.place: Callable[[], Place] = tuple
        """Where this process is in its program."""
        self._state = state
        self._mailbox = mailbox
        self._process = process
        self._compile_s = compile_s

    def step(self, now: Any, given: tuple[bool, ...], control: Control) -> Any:
        """One step, or several; `given`: of each, whether its gradient is finite."""
        if self._compile_s:
            self._mailbox.first_calls.add(len(self._mailbox.sent))
            sleep(self._process, self._compile_s)
            self._compile_s = 0.0
        number = self._mailbox.send(Part(self.place(), given, control))
        return now, Flags(self._state, number), None, None, {}

    steps = step


class SimulatedControl:
    """See `ControlFlags`."""

    def __init__(self, per_call: int) -> None:
        self._per_call = per_call
        self.ends_at = 0

    def next(self, ends: float, saves: float) -> Control:
        """Returns the flags of each step of the next call."""
        rows = [[0.0] * CONTROL_FLAGS for _ in range(self._per_call)]
        rows[0][:2] = ends, saves
        if self.ends_at:
            rows[self.ends_at][0] = 1.0
        self.ends_at = 0
        return tuple(map(tuple, rows))
