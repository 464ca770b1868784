"""The warning about a loss that is not a mean over the examples, if each worker computes it for its own batch."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from trainband.model.analysis.mean_over_examples import why_not_mean_of_examples
from trainband.model.batch import examples_in
from trainband.model.model import Model
from trainband.model.variables import PyTree
from trainband.runtime.waiting import Say


def warn_of_uneven_loss(model: Model, batch: PyTree, say: Say) -> None:
    """Warns of a loss that surely is not a mean over the examples of a batch such as this one.

    Does not warn of models that keep running averages, such as those of batch normalisation: that each worker
    normalises its own batch is well known.
    """
    shapes, examples = model.shapes(), examples_in(batch)
    averages = any(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in jax.tree.leaves(shapes.state))
    if averages or examples < 2:
        return

    def loss(others: PyTree, batch: PyTree) -> Any:
        params, state, key = others
        return model.value(params, batch, key, state)[0]

    key = jax.eval_shape(lambda: jax.random.key(0))
    others = (shapes.params, shapes.state, key)
    reason = why_not_mean_of_examples(loss, others, batch, (examples, 2 * examples), surely=True)
    if reason:
        say(
            f"WARNING: the loss is not a mean over the examples ({reason}). Each worker computes it for its own batch, "
            "and Sync() takes the mean of their gradients, so the result depends on how the examples are divided "
            "among the workers. Divide the sum of the losses by the number of examples (in Keras, leave out "
            'reduction="sum"; a masked mean is not such a mean either), or use MultiWorkerMirrored, '
            "which computes the loss of the whole batch."
        )
