"""Remarks on a finished training, for people who read no figures."""

from __future__ import annotations

from collections.abc import Iterator

from trainband.strategies.base import USED_UP
from trainband.train.result import FitResult


def remarks(result: FitResult, steps: int | None, began_at: int, *, resumed: bool) -> Iterator[str]:
    """Yields remarks that complete a training run's figures.

    Args:
      result: of a training run.
      steps: how many updates were requested.
      began_at: the global step at which it first began.
      resumed: whether it was restarted.
    """
    made = result.global_step - began_at
    if 2 * result.refused > result.steps:
        of = f"{result.refused:,} of {result.steps:,} gradients of {result.task}"
        yield f"WARNING: {of} were not finite and were dropped"
    if result.non_finite_losses > result.refused:
        yield f"WARNING: {result.non_finite_losses:,} of {result.steps:,} losses of {result.task} were NaN or infinite"
    is_short = result.stopped == USED_UP and steps is not None and made < steps
    if result.steps and is_short:
        yield (
            f"the batches of {result.task} are used up at global step {result.global_step:,}, after {made:,} of "
            f"{steps:,} updates; pass an iterable that can be iterated again, or more epochs"
        )
    if not result.steps and resumed:
        here = f"at global step {result.global_step:,}"
        if result.stopped == USED_UP:
            more = "pass more epochs= to Batches or shared, or pass steps="
            yield f"nothing is left to train: the batches are used up {here}. To continue, {more}."
        else:
            asked = "" if steps is None else f" of the {steps:,} requested"
            yield f"nothing is left to train: {made:,} updates{asked} are made {here}. To continue, pass larger steps=."
