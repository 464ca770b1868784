"""Remarks on a training that has ended, for somebody who looks at no figures."""

from __future__ import annotations

from collections.abc import Iterator

from trainband.strategies.base import USED_UP
from trainband.train.result import FitResult


def remarks(result: FitResult, steps: int | None, began_at: int, *, resumed: bool) -> Iterator[str]:
    """What should be known of a training, beside its figures.

    Args:
      result: of a training.
      steps: how many updates were asked for.
      began_at: the global step at which it first began.
      resumed: whether it was begun again.
    """
    made = result.global_step - began_at
    if 2 * result.refused > result.steps:
        of = f"{result.refused:,} of {result.steps:,} gradients of {result.task}"
        yield f"WARNING: {of} were not finite, and changed nothing"
    if result.non_finite_losses > result.refused:
        yield f"WARNING: {result.non_finite_losses:,} of {result.steps:,} losses of {result.task} were NaN or infinite"
    is_short = result.stopped == USED_UP and steps is not None and made < steps
    if result.steps and is_short:
        yield (
            f"the batches of {result.task} are used up at global step {result.global_step:,}, after {made:,} of "
            f"{steps:,} updates; give an iterable that can be iterated afresh, or more epochs"
        )
    if not result.steps and resumed:
        here = f"at global step {result.global_step:,}"
        if result.stopped == USED_UP:
            more = "give Batches or shared more epochs=, or pass steps="
            yield f"nothing is left to train: the batches are used up {here}. To continue, {more}."
        else:
            asked = "" if steps is None else f" of the {steps:,} that were asked for"
            yield f"nothing is left to train: {made:,} updates{asked} are made {here}. To continue, pass larger steps=."
