"""Each target of `targets_frames.py` on a few hundred inputs: that it runs, and that what it once found stays fixed."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.fuzz import targets_frames
from tests.fuzz.run import corpus_of, mutated

TARGETS = [target for name, target in vars(targets_frames).items() if name.startswith("fuzz_")]


@pytest.mark.smoke
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.__name__)
def test_a_few_hundred_inputs(target: Callable[[bytes], None]) -> None:
    dice = random.Random(7)
    seeds = corpus_of(target.__name__)
    for number in range(300):
        target(seeds[number] if number < len(seeds) else mutated(dice.choice(seeds), dice) + dice.randbytes(40))
