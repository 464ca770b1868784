"""ServedModel: one model's compiled function and the current version of its weights."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from trainband.errors import ModelMismatch
from trainband.export.targets.base import Run
from trainband.model.batch_check import check_batch
from trainband.model.inference import InferenceProgram
from trainband.model.signature import BATCH, Signature, TensorSpec

Bind = Callable[[Mapping[str, Any]], Run]
"""Weights on the device -> `run(inputs) -> outputs` with them."""


@dataclass(frozen=True, slots=True)
class LoadedVersion:
    """One version of a model, ready to run. A batch keeps the version that it began with.

    Attributes:
      number: the global step of the weights.
      run: inputs -> outputs, NumPy arrays by name.
      weights: on the device, by name.
      source: a description of where the weights come from.
      made_at: when training made them, in seconds since 1970; `None` if unknown.
      served_at: when they began to answer, in seconds since 1970.
    """

    number: int
    run: Run
    weights: Mapping[str, Any]
    source: str
    made_at: float | None
    served_at: float

    @property
    def delay_s(self) -> float | None:
        """Seconds from when training made the weights until they answered requests."""
        return None if self.made_at is None else max(0.0, self.served_at - self.made_at)


class ServedModel:
    """One served model: its signature and its current version.

    `current` and `swap` are thread-safe. A swap is one assignment: a batch that reads `current` once sees either the
    old version or the new one, whole.

    Args:
      bind: makes the function that runs with given weights. It must not recompile for other weights of the same
        shapes and dtypes.
      weights: by name.
      signature: of the function.
      name: of the model, in URLs.
      number, source, made_at: of the first version; see `LoadedVersion`.
      example: inputs to warm up with; random ones when empty.
      is_jax: whether JAX takes the inputs, which then may not be 64-bit integers.
      clock: seconds since 1970.
    """

    def __init__(
        self,
        bind: Bind,
        weights: Mapping[str, Any],
        signature: Signature,
        name: str,
        *,
        number: int = 0,
        source: str = "",
        made_at: float | None = None,
        example: Mapping[str, NDArray[Any]] | None = None,
        is_jax: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.signature = signature
        self.name = name
        self.swaps = 0
        self._bind = bind
        self._example = example or {}
        self._is_jax = is_jax
        self._clock = clock
        self._swapping = threading.Lock()
        self._shapes = {name: (tuple(leaf.shape), np.dtype(leaf.dtype).name) for name, leaf in weights.items()}
        self._current = self._loaded(weights, number, source, made_at)

    @classmethod
    def of(cls, program: InferenceProgram, name: str = "", made_at: float | None = None) -> ServedModel:
        """Serves a JAX program; it is compiled once for every batch size that it runs with.

        Args:
          program: to serve.
          name: in URLs; the function's own when empty.
          made_at: when training made its weights.
        """
        jitted = jax.jit(program.function)

        def bind(weights: Mapping[str, Any]) -> Run:
            return lambda inputs: {key: np.asarray(leaf) for key, leaf in jitted(weights, dict(inputs)).items()}

        return cls(
            bind,
            program.weights,
            program.signature,
            name or program.name,
            number=program.global_step,
            source=program.source,
            made_at=made_at,
            example=program.example,
            is_jax=True,
        )

    @classmethod
    def of_run(cls, run: Run, signature: Signature, name: str, **version: Any) -> ServedModel:
        """Serves a function that contains its weights, such as another format's runtime: it stays at one version.

        Args:
          run: inputs -> outputs.
          signature: of the function.
          name: in URLs.
          version: `number`, `source` and `made_at`, as for the class.
        """
        return cls(lambda weights: run, {}, signature, name, **version)  # noqa: ARG005 - it has no weights

    def check(self, inputs: Mapping[str, NDArray[Any]]) -> None:
        """Checks the inputs of a request against the signature.

        Raises:
          DataError: their names, dtypes or shapes differ, or JAX would cut their integers to 32 bits.
        """
        self.signature.check(inputs)
        if self._is_jax:
            check_batch(dict(inputs), "the request")

    @property
    def current(self) -> LoadedVersion:
        """The current version. Read it once per batch."""
        return self._current

    def swap(
        self, weights: Mapping[str, Any], number: int, *, source: str = "", made_at: float | None = None
    ) -> LoadedVersion:
        """Makes other weights the current version once they are on the device.

        Args:
          weights: by name, NumPy or JAX arrays of the same shapes and dtypes as before; missing ones stay as they are.
            NumPy arrays are copied, so the caller may reuse them.
          number: their global step.
          source: a description of where they come from.
          made_at: when training made them, in seconds since 1970.

        Returns:
          The current version.

        Raises:
          ModelMismatch: they are of another model. The previous version stays.
        """
        for name, leaf in weights.items():
            found = (tuple(leaf.shape), np.dtype(leaf.dtype).name)
            if name not in self._shapes:
                raise ModelMismatch(f"{source or 'a new version'} is of another model: {self.name} has no {name}.")
            if found != self._shapes[name]:
                raise ModelMismatch(
                    f"{source or 'a new version'} is of another model: {name} is {_text(found)}, but "
                    f"{_text(self._shapes[name])} in {self.name}."
                )
        with self._swapping:
            self._current = self._loaded({**self._current.weights, **weights}, number, source, made_at)
            self.swaps += 1
            return self._current

    def inputs_of(self, batch: int, seed: int = 0) -> dict[str, NDArray[Any]]:
        """Returns inputs to try the model on: its example's rows, repeated, or random ones without an example.

        Args:
          batch: number of examples, if the signature leaves it open.
          seed: of the random inputs.

        Returns:
          By name; other lengths that the signature leaves open are 1, or the example's.
        """
        return {spec.name: self._input(spec, batch, seed) for spec in self.signature.inputs}

    def _input(self, spec: TensorSpec, batch: int, seed: int) -> NDArray[Any]:
        given = self._example.get(spec.name)
        if given is not None and spec.shape[:1] == (BATCH,) and len(given):
            return np.take(given, np.arange(seed, seed + batch) % len(given), axis=0)
        if given is not None and spec.shape[:1] != (BATCH,):
            return given
        shape = tuple(n if isinstance(n, int) else batch if n == BATCH else 1 for n in spec.shape)
        random, dtype = np.random.default_rng(seed), np.dtype(spec.dtype)
        if dtype.kind in "iub":
            return random.integers(0, 2, shape).astype(dtype)
        return random.standard_normal(shape).astype(dtype)

    def _loaded(self, weights: Mapping[str, Any], number: int, source: str, made_at: float | None) -> LoadedVersion:
        placed = {name: _placed(leaf) for name, leaf in weights.items()}
        jax.block_until_ready(placed)
        return LoadedVersion(number, self._bind(placed), placed, source, made_at, self._clock())


def _placed(leaf: Any) -> jax.Array:
    """Copies to the device; JAX shares NumPy's memory on the CPU (small arrays in spite of `may_alias=False`)."""
    return leaf if isinstance(leaf, jax.Array) else jax.device_put(np.array(leaf, copy=True))


def _text(found: tuple[tuple[int, ...], str]) -> str:
    return f"{found[1]}[{','.join(map(str, found[0]))}]"
