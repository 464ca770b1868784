"""Each fuzz target of the wire with a few hundred inputs that are the same every time."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.fuzz import targets_wire

INPUTS = 300

TARGETS: list[Callable[[bytes], None]] = [
    target for name, target in vars(targets_wire).items() if name.startswith("fuzz_")
]


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.__name__)
def test_a_target_holds_for_inputs_of_a_fixed_seed(target: Callable[[bytes], None]) -> None:
    assert len(TARGETS) == 6
    dice = random.Random(20261125)
    for number in range(INPUTS):
        data = dice.randbytes(dice.randrange(4, 64))
        try:
            target(data)
        except Exception as exc:
            exc.add_note(f"input {number}: bytes.fromhex({data.hex()!r})")
            raise
