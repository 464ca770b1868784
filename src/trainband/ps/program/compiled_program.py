"""CompiledProgram: an update program as a ps runs it."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable, Sequence
from functools import partial
from importlib import metadata
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jax.sharding import SingleDeviceSharding
from jax.stages import Compiled
from numpy.typing import NDArray

from trainband.ps.program.gradients import compensated, weighted_mean
from trainband.ps.program.update_program import PLATFORM, UpdateProgram, unreadable
from trainband.runtime import SYSTEM

COMPILER = f"jaxlib {metadata.version('jaxlib')} for {platform.machine()}"
"""The compiler of update programs here. Another one may round the last bits differently."""

Blocks = tuple[Any, ...]
"""Arrays of the library that makes the updates: JAX's."""


IN_PLACE_BYTES = 64 << 20
"""Params of this many bytes are overwritten by an update unless someone reads them. For smaller ones a second version
costs little memory, and saves compiling a second form of the update once a reader and an update meet."""


class Program(Protocol):
    """The computations on one shard's values: updates, means and compensation."""

    @property
    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of the leaves of the optimizer's state."""
        ...

    @property
    def state_dtypes(self) -> tuple[np.dtype[Any], ...]:
        """Dtypes of the leaves of the optimizer's state."""
        ...

    @property
    def in_place(self) -> bool:
        """Whether an update should overwrite params that no one reads: they are large."""
        ...

    def warm_up(self) -> None:
        """Compiles, so that neither the first values nor the first update wait for it."""
        ...

    def initialise(self, params: Blocks) -> Blocks:
        """The optimizer state for these params."""
        ...

    def update(
        self,
        params: Blocks,
        state: Blocks,
        gradient: Sequence[NDArray[Any]],
        spare: Blocks | None,
        scale: float = 1.0,
        spare_state: Blocks | None = None,
    ) -> tuple[Blocks, Blocks]:
        """One update, times `scale`: the new params and state.

        Uses up the memory of `spare` (param blocks without readers) and of `state`. Without a `spare`, it uses up that
        of `params`; with a `spare_state`, which needs a `spare`, it uses that up and leaves `state` as it is.
        """
        ...

    def owned(self, arrays: Sequence[Any]) -> Blocks:
        """Copies, as arrays that can be params or state."""
        ...

    def room_like(self, blocks: Blocks) -> Blocks:
        """Uninitialised arrays of the same shapes."""
        ...

    def room(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[Any, NDArray[Any]]:
        """An array that can be params or state, and a view through which its values are set before it is used."""
        ...

    def mean(self, gradients: Sequence[Sequence[NDArray[Any]]], examples: Sequence[int]) -> Sequence[NDArray[Any]]:
        """The mean of gradients, each weighted by its number of examples."""
        ...

    def compensated(
        self, gradient: Sequence[NDArray[Any]], now: Sequence[Any], then: Sequence[Any], factor: float
    ) -> Sequence[NDArray[Any]]:
        """G + factor * g * g * (now - then), block by block."""
        ...


class CompileProgram(Protocol):
    """Compiles `sender`'s exported program; `trained`: for each block, whether an update may be scaled."""

    def __call__(self, program: UpdateProgram, sender: str, trained: Sequence[bool], /) -> Program: ...


class CompiledProgram:
    """An update program, compiled for this process's CPU; see `Program`."""

    mean = staticmethod(weighted_mean)
    compensated = staticmethod(compensated)

    def __init__(
        self,
        program: UpdateProgram,
        sender: str,
        trained: Sequence[bool] | None = None,
        took: Callable[[float], None] | None = None,
    ) -> None:
        """Compiles. `trained`: for each block, whether an update may be scaled; by default all. `took` is called with
        the seconds of each update. Raises `ProtocolError` if this version of JAX cannot run the program.
        """
        self._took = took
        self._has_run: set[tuple[bool, bool, bool]] = set()
        """The forms of the update that have run: the first run compiles, so its time does not count."""
        try:
            initialise = export.deserialize(bytearray(program.initialise))
            update = export.deserialize(bytearray(program.update))
        except Exception as exc:
            raise unreadable(program, sender, str(exc)) from exc
        # Explicit: else JAX recompiles for each way in which arrays reach the one device, and the first three updates
        # all wait.
        here = SingleDeviceSharding(jax.local_devices(backend=PLATFORM)[0])
        jit = partial(jax.jit, in_shardings=here, out_shardings=here)
        self._initialise = jit(initialise.call)
        self.state_shapes: tuple[tuple[int, ...], ...] = tuple(aval.shape for aval in initialise.out_avals)
        self._params = initialise.in_avals
        self.state_dtypes = tuple(np.dtype(aval.dtype) for aval in initialise.out_avals)
        self.in_place: bool = sum(aval.size * aval.dtype.itemsize for aval in self._params) >= IN_PLACE_BYTES

        def run(
            params: Blocks,
            state: Blocks,
            gradient: Blocks,
            spare: Blocks | None,
            spare_state: Blocks | None,
            scale: Any,
        ) -> tuple[Blocks, Blocks]:
            del spare, spare_state  # only their memory is needed, for the results
            new, new_state = update.call(params, state, gradient)
            if scale is not None:
                new = tuple(
                    (p + scale * (n - p)).astype(p.dtype) if may else n
                    for p, n, may in zip(params, new, trained or [True] * len(new), strict=True)
                )
            return new, new_state

        # Donated: the state, and an old version of the params or these. A fresh 400 MB output costs 0.1-1.1 s of
        # page faults on a two-core machine, an update into donated memory 0.03 s.
        self._update = jit(run, donate_argnums=(1, 3), keep_unused=True)
        self._update_in_place = jit(run, donate_argnums=(0, 1), keep_unused=True)
        # While the state is being saved, the new one goes into other memory.
        self._update_beside = jit(run, donate_argnums=(3, 4), keep_unused=True)

    def owned(self, arrays: Sequence[Any]) -> Blocks:
        return tuple(jnp.array(array, copy=True) for array in arrays)

    def room_like(self, blocks: Blocks) -> Blocks:
        return tuple(jnp.empty_like(block) for block in blocks)

    def room(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[Any, NDArray[Any]]:
        # JAX's own memory, because it donates no other; and ready, or its zeros would come after the values.
        block = jax.block_until_ready(jnp.empty(shape, dtype))
        memory = (ctypes.c_uint8 * block.nbytes).from_address(block.unsafe_buffer_pointer() if block.nbytes else 0)
        return block, np.frombuffer(memory, dtype).reshape(shape) if block.nbytes else np.empty(shape, dtype)

    def warm_up(self) -> None:
        self.compile()

    def compile(self) -> tuple[Compiled, Compiled]:
        """Both functions, compiled; this needs no memory of the shard's size."""
        blocks = tuple(jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in self._params)
        state = tuple(jax.ShapeDtypeStruct(*leaf) for leaf in zip(self.state_shapes, self.state_dtypes, strict=True))
        run, spare = (self._update_in_place, None) if self.in_place else (self._update, blocks)
        update = run.lower(blocks, state, blocks, spare, None, None)
        return self._initialise.lower(blocks).compile(), update.compile()

    def run_once(self) -> float:
        """Makes one update of zeros; returns the seconds it took. Call `compile` before."""
        zeros = [np.zeros(aval.shape, aval.dtype) for aval in self._params]
        blocks, spare = (tuple(jax.device_put(block) for block in zeros) for _ in range(2))  # compiles nothing
        state = self.initialise(blocks)
        began = SYSTEM.clock()
        self.update(blocks, state, zeros, None if self.in_place else spare)
        return SYSTEM.clock() - began

    def initialise(self, params: Blocks) -> Blocks:
        state: Blocks = jax.block_until_ready(self._initialise(params))
        return state

    def update(
        self,
        params: Blocks,
        state: Blocks,
        gradient: Sequence[NDArray[Any]],
        spare: Blocks | None,
        scale: float = 1.0,
        spare_state: Blocks | None = None,
    ) -> tuple[Blocks, Blocks]:
        began = SYSTEM.clock()
        run = self._update if spare_state is None else self._update_beside
        if spare is None:
            run = self._update_in_place
        factor = None if scale == 1.0 else np.float32(scale)
        updated: tuple[Blocks, Blocks] = jax.block_until_ready(
            run(params, state, tuple(gradient), spare, spare_state, factor)
        )
        form = spare is None, spare_state is None, factor is None
        if self._took is not None and form in self._has_run:
            self._took(SYSTEM.clock() - began)
        self._has_run.add(form)
        return updated
