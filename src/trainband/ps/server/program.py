"""The update program: the optimizer as StableHLO, so that a ps runs it without the user's code.

The chief traces, for each shard, `initialise(params) -> optimizer state` and
`update(params, optimizer state, gradient) -> (params, optimizer state)` over the shard's blocks, and
serialises both with `jax.export`. A ps deserialises, compiles and runs them, whatever the optimizer was.
"""

from __future__ import annotations

import platform
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jax.sharding import SingleDeviceSharding
from numpy.typing import NDArray

from trainband.errors import ModelError, ProtocolError
from trainband.model.analysis.dependence import Formulas, analyse
from trainband.model.contents import Contents, Held, contents_of_state
from trainband.model.layout import JobLayout, ShardLayout
from trainband.model.optimizer import JobSpecific, Optimizer, apply_updates
from trainband.model.random_keys import key_kinds, with_keys, without_keys
from trainband.model.variables import PyTree, Variables
from trainband.ps.server.gradients import compensated, weighted_mean
from trainband.ps.server.programs.signature import Signature

PLATFORM = "cpu"
"""What a ps computes on. The chief may trace on any other."""

COMPILER = f"jaxlib {metadata.version('jaxlib')} for {platform.machine()}"
"""What makes machine code of an update program here. Another one may round the last bits differently."""


@dataclass(frozen=True, slots=True)
class UpdateProgram:
    """Both functions for one shard, serialised."""

    initialise: bytes
    update: bytes
    jax: str = ""
    """The version of JAX that has exported them, for messages."""
    signature: Signature | None = None
    """What they must take and give, where a definition says so."""


@dataclass(frozen=True, slots=True)
class WholeFormula:
    """The formula of an optimizer on all the variables: see `Dependence.formula`."""

    formulas: Formulas
    by_dtype: Mapping[str, Hashable]

    def covers(self, other: Mapping[str, Hashable]) -> bool:
        """Whether an analysis of some of the variables, or of blocks of them, found the same arithmetic."""
        return all(self.by_dtype.get(key) == value for key, value in other.items())


class ShardOptimizer:
    """An optimizer restricted to what one shard holds, as functions of the shard's blocks.

    The optimizer sees the params in their own tree, with `None` in place of variables that live elsewhere,
    so that masks and labels that go by the tree's keys keep working. Where the same arithmetic is done to
    every element of every variable, it sees the blocks themselves: measured for Adam on four small
    variables, 55 us an update instead of 105 us.
    """

    def __init__(
        self, optimizer: Optimizer, variables: Variables, layout: JobLayout, ps: int, formula: WholeFormula | None
    ) -> None:
        """Takes the part that ps number `ps` holds; `formula` is that of the whole optimizer, if it has one."""
        self._optimizer = optimizer
        self._variables = variables
        self._shard: ShardLayout = layout.shards[ps]
        self._where = f"the optimizer cannot run on the part of the params that ps:{ps} holds"
        self._blocks = tuple(jax.ShapeDtypeStruct((b.size,), b.dtype) for b in self._shard.blocks)
        self._trained = [i for i, block in enumerate(self._shard.blocks) if block.trained]
        trained = [self._blocks[i] for i in self._trained]
        self._by_block = formula is not None and _is_same_by_block(optimizer, trained, formula)
        self._key_kinds: list[Any] = []
        try:
            state = jax.eval_shape(self._first_state, self._tree_of_avals())
            contents = contents_of_state(state, self._held())
            if contents is None and self._by_block:
                self._by_block = False  # its state could not be saved by variable
                state = jax.eval_shape(self._first_state, self._tree_of_avals())
                contents = contents_of_state(state, self._held())
        except Exception as exc:
            raise ModelError(f"{self._where}: {type(exc).__name__}: {exc}") from exc
        if contents is None:
            raise ModelError(f"{self._where}: its state cannot be told apart by variable")
        self.state_contents: Contents = contents
        leaves, self._state_tree = jax.tree.flatten(state)
        self._state = tuple(leaves)

    @property
    def by_block(self) -> bool:
        """Whether the update is made on whole blocks."""
        return self._by_block

    def initialise(self, params: Sequence[jax.Array]) -> tuple[Any, ...]:
        """The optimizer state's leaves for these param blocks."""
        return tuple(jax.tree.leaves(self._first_state(self._tree(params))))

    def update(
        self, params: Sequence[jax.Array], state: Sequence[jax.Array], gradient: Sequence[jax.Array]
    ) -> tuple[tuple[jax.Array, ...], tuple[Any, ...]]:
        """One update: new param blocks and new state leaves.

        Model state is replaced by what was pushed, unless the optimizer is one that says what becomes of it.
        """
        tree = self._tree(params)
        old_state = with_keys(jax.tree.unflatten(self._state_tree, state), self._key_kinds)
        updates, new_state = self._optimizer.update(self._tree(gradient), old_state, tree)
        new = jax.tree.leaves(apply_updates(tree, updates))
        leaves, structure = jax.tree.flatten(without_keys(new_state))
        if str(structure) != str(self._state_tree):
            raise ModelError(f"{self._where}: its update changes the structure of its state")
        return self._assembled(new, self._next_state(params, gradient)), tuple(leaves)

    def export(self) -> UpdateProgram:
        """Both functions as bytes."""
        try:
            initialise = export.export(jax.jit(self.initialise), platforms=[PLATFORM])(self._blocks)
            update = export.export(jax.jit(self.update), platforms=[PLATFORM])(self._blocks, self._state, self._blocks)
        except ModelError:
            raise
        except Exception as exc:
            raise ModelError(f"{self._where}: it cannot be exported: {type(exc).__name__}: {exc}") from exc
        return UpdateProgram(bytes(initialise.serialize()), bytes(update.serialize()), jax.__version__)

    def _first_state(self, params: PyTree) -> PyTree:
        state = self._optimizer.init(params)
        self._key_kinds = key_kinds(state)
        return without_keys(state)

    def _next_state(self, params: Sequence[jax.Array], pushed: Sequence[jax.Array]) -> Sequence[jax.Array]:
        """Blocks of which those of model state are the next ones."""
        optimizer = self._optimizer
        if not isinstance(optimizer, JobSpecific):
            return pushed
        both = zip(self._shard.slices, self._shard.unpack(params), self._shard.unpack(pushed), strict=True)
        return self._shard.pack(
            [
                new if piece.variable.trained else optimizer.update_state(piece.variable.name, old, new)
                for piece, old, new in both
            ]
        )

    def _assembled(self, new: list[Any], pushed: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
        if self._by_block:
            values = dict(zip(self._trained, new, strict=True))
            return tuple(values.get(i, block) for i, block in enumerate(pushed))
        trained = iter(new)
        slices = [
            next(trained) if piece.variable.trained else value
            for piece, value in zip(self._shard.slices, self._shard.unpack(pushed), strict=True)
        ]
        return self._shard.pack(slices)

    def _tree(self, blocks: Sequence[Any]) -> PyTree:
        if self._by_block:
            return _named([blocks[i] for i in self._trained])
        return self._fill(self._shard.unpack(blocks))

    def _tree_of_avals(self) -> PyTree:
        if self._by_block:
            return _named([self._blocks[i] for i in self._trained])
        return self._fill([jax.ShapeDtypeStruct(s.shape, s.variable.dtype) for s in self._shard.slices])

    def _held(self) -> list[Held]:
        """What the optimizer sees: where in its tree which slices lie."""
        slices = self._shard.slices
        if self._by_block:
            members = [self._shard.blocks[i].members for i in self._trained]
            tree = _named(range(len(members)))
            paths = jax.tree_util.tree_flatten_with_path(tree)[0]
            sizes = [self._blocks[i].shape for i in self._trained]
            return [Held(path, sizes[n], tuple(slices[i] for i in members[n])) for path, n in paths]
        paths = jax.tree_util.tree_flatten_with_path(self._fill(range(len(slices))))[0]
        return [Held(path, slices[i].shape, (slices[i],)) for path, i in paths]

    def _fill(self, slices: Sequence[Any]) -> PyTree:
        """The params tree with these slices; a variable with several slices here becomes a tuple of them."""
        parts: dict[str, list[Any]] = {}
        for piece, value in zip(self._shard.slices, slices, strict=True):
            parts.setdefault(piece.variable.name, []).append(value)
        leaves = [parts.get(variable.name) for variable in self._variables.trained]
        return self._variables.unflatten(
            [None if part is None else part[0] if len(part) == 1 else tuple(part) for part in leaves]
        )


def _is_same_by_block(optimizer: Optimizer, blocks: Sequence[Any], whole: WholeFormula) -> bool:
    """Whether the optimizer does to blocks what it does to the variables in them."""
    try:
        dependence = analyse(optimizer, _named(blocks), whole.formulas)
    except Exception:  # it is the user's code, and may want the params' own tree, for a mask say: it gets that then
        return False
    return dependence.formula is not None and whole.covers(dependence.formula)


def _named(blocks: Sequence[Any]) -> dict[str, Any]:
    return {f"block {i:04}": block for i, block in enumerate(blocks)}


Blocks = tuple[Any, ...]
"""Arrays of whatever makes the updates: of JAX."""


class Program(Protocol):
    """What makes the updates of one shard, and all else that is computed of its values."""

    @property
    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of the leaves of the optimizer's state."""
        ...

    @property
    def state_dtypes(self) -> tuple[np.dtype[Any], ...]:
        """Of the leaves of the optimizer's state."""
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
        spare: Blocks,
        scale: float = 1.0,
        spare_state: Blocks | None = None,
    ) -> tuple[Blocks, Blocks]:
        """One update, times `scale`: the new params and state.

        `spare` (param blocks that nobody reads any more) is used up, and so is `state`; but with a `spare_state` that
        is used up instead, and `state` stays as it is.
        """
        ...

    def owned(self, arrays: Sequence[Any]) -> Blocks:
        """Copies, as arrays that can be params or state."""
        ...

    def room_like(self, blocks: Blocks) -> Blocks:
        """Memory for as much."""
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
    """Makes a `Program` of an exported one of `sender`; `trained`: of each block, whether an update may be scaled."""

    def __call__(self, program: UpdateProgram, sender: str, trained: Sequence[bool], /) -> Program: ...


def unreadable(program: UpdateProgram, sender: str, why: str) -> ProtocolError:
    """The error for bytes that are no program which this version of JAX can run."""
    return ProtocolError(
        f"the update program that {sender} exported with JAX {program.jax or 'of an unknown version'} cannot "
        f"be loaded by JAX {jax.__version__} here ({why}); install one version of JAX on all tasks: it reads "
        "what versions up to six months older, and up to three weeks newer, have exported."
    )


class CompiledProgram:
    """An update program, compiled for this process's CPU; see `Program`."""

    mean = staticmethod(weighted_mean)
    compensated = staticmethod(compensated)

    def __init__(self, program: UpdateProgram, sender: str, trained: Sequence[bool] | None = None) -> None:
        """Compiles. `trained`: of each block, whether an update may be scaled; all, if left out.
        Raises `ProtocolError` where the bytes are no program that this version of JAX can run.
        """
        try:
            initialise = export.deserialize(bytearray(program.initialise))
            update = export.deserialize(bytearray(program.update))
        except Exception as exc:
            raise unreadable(program, sender, str(exc)) from exc
        # Said outright: else JAX compiles again for each way in which arrays may have come to the one device, and the
        # first three updates all wait.
        here = SingleDeviceSharding(jax.local_devices(backend=PLATFORM)[0])
        jit = partial(jax.jit, in_shardings=here, out_shardings=here)
        self._initialise = jit(initialise.call)
        self.state_shapes: tuple[tuple[int, ...], ...] = tuple(aval.shape for aval in initialise.out_avals)
        self._params = initialise.in_avals
        self.state_dtypes = tuple(np.dtype(aval.dtype) for aval in initialise.out_avals)

        def run(params: Blocks, state: Blocks, gradient: Blocks, spare: Blocks) -> tuple[Blocks, Blocks]:
            del spare  # only its memory is wanted, for the new params
            new: tuple[Blocks, Blocks] = update.call(params, state, gradient)
            return new

        def run_scaled(
            params: Blocks, state: Blocks, gradient: Blocks, spare: Blocks, scale: jax.Array
        ) -> tuple[Blocks, Blocks]:
            new, new_state = run(params, state, gradient, spare)
            scaled = (
                (p + scale * (n - p)).astype(p.dtype) if may else n
                for p, n, may in zip(params, new, trained or [True] * len(new), strict=True)
            )
            return tuple(scaled), new_state

        # Donated: the state, and an old version of the params. A fresh 400 MB output costs 0.1-1.1 s of page
        # faults on a two-core machine, an update into donated memory 0.03 s.
        self._update = jit(run, donate_argnums=(1, 3), keep_unused=True)
        self._scaled_update = jit(run_scaled, donate_argnums=(1, 3), keep_unused=True)

        # While somebody saves the state, the new one goes into other memory.
        def run_beside(params: Blocks, state: Blocks, gradient: Blocks, spare: Blocks, spare_state: Blocks) -> Any:
            del spare_state
            return run(params, state, gradient, spare)

        def run_scaled_beside(
            params: Blocks, state: Blocks, gradient: Blocks, spare: Blocks, spare_state: Blocks, scale: jax.Array
        ) -> Any:
            del spare_state
            return run_scaled(params, state, gradient, spare, scale)

        self._update_beside = jit(run_beside, donate_argnums=(3, 4), keep_unused=True)
        self._scaled_update_beside = jit(run_scaled_beside, donate_argnums=(3, 4), keep_unused=True)

    def owned(self, arrays: Sequence[Any]) -> Blocks:
        return tuple(jnp.array(array, copy=True) for array in arrays)

    def room_like(self, blocks: Blocks) -> Blocks:
        return tuple(jnp.empty_like(block) for block in blocks)

    def warm_up(self) -> None:
        # To compile needs no memory of the shard's size, as an update of nothing would.
        blocks = tuple(jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in self._params)
        state = tuple(jax.ShapeDtypeStruct(*leaf) for leaf in zip(self.state_shapes, self.state_dtypes, strict=True))
        self._initialise.lower(blocks).compile()
        self._update.lower(blocks, state, blocks, blocks).compile()

    def run_once(self) -> None:
        """Makes one update of nothing."""
        zeros = [np.zeros(aval.shape, aval.dtype) for aval in self._params]
        blocks, spare = (tuple(jax.device_put(block) for block in zeros) for _ in range(2))  # compiles nothing
        self.update(blocks, self.initialise(blocks), zeros, spare)

    def initialise(self, params: Blocks) -> Blocks:
        state: Blocks = jax.block_until_ready(self._initialise(params))
        return state

    def update(
        self,
        params: Blocks,
        state: Blocks,
        gradient: Sequence[NDArray[Any]],
        spare: Blocks,
        scale: float = 1.0,
        spare_state: Blocks | None = None,
    ) -> tuple[Blocks, Blocks]:
        once = scale == 1.0
        factor = () if once else (np.float32(scale),)
        if spare_state is None:
            run = self._update if once else self._scaled_update
            new = run(params, state, tuple(gradient), spare, *factor)
        else:
            run = self._update_beside if once else self._scaled_update_beside
            new = run(params, state, tuple(gradient), spare, spare_state, *factor)
        updated: tuple[Blocks, Blocks] = jax.block_until_ready(new)
        return updated
