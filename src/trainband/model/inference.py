"""InferenceProgram: a pure function of named weights and named inputs, to export, compress and serve."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from trainband.model.signature import Signature

Tensors = Mapping[str, Any]
"""Arrays by name, or JAX's tracers in their place."""


@dataclass(frozen=True, slots=True)
class InferenceProgram:
    """A function of weights and inputs, all flat dicts of arrays, with its weights.

    Attributes:
      function: `function(weights, inputs) -> outputs`; traceable.
      weights: by their names in a checkpoint, such as `params/hidden/kernel`, or as `compress` stores them.
      signature: the inputs and outputs.
      name: of the user's function.
      example: inputs to try it on.
      source: where the weights come from, as text.
      global_step: of the weights.
    """

    function: Callable[[Tensors, Tensors], dict[str, Any]]
    weights: Mapping[str, NDArray[Any]]
    signature: Signature
    name: str
    example: Mapping[str, NDArray[Any]]
    source: str = ""
    global_step: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the weights."""
        return sum(weight.nbytes for weight in self.weights.values())

    def with_weights(
        self, weights: Mapping[str, NDArray[Any]], function: Callable[[Tensors, Tensors], dict[str, Any]] | None = None
    ) -> InferenceProgram:
        """Returns a copy with other weights, and a function that takes them if they are stored in another way."""
        return replace(self, weights=weights, function=function or self.function)

    def compiled(self) -> Callable[[Mapping[str, NDArray[Any]]], dict[str, NDArray[Any]]]:
        """Returns `predict(inputs) -> outputs` with these weights on the default device."""
        weights, function = jax.device_put(dict(self.weights)), jax.jit(self.function)

        def predict(inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
            return {name: np.asarray(leaf) for name, leaf in function(weights, dict(inputs)).items()}

        return predict
