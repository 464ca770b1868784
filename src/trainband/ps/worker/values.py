"""WorkerValues: reads and changes the values held by the parameter servers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from trainband.errors import ClusterError
from trainband.job.engine import Values
from trainband.model.tables import WithRows
from trainband.model.variables import PyTree
from trainband.ps.worker.exchange import Exchange, Exchanger
from trainband.ps.worker.membership import Membership
from trainband.ps.worker.table_rows import TableRows
from trainband.ps.worker.training_control import TrainingControl
from trainband.runtime.overrides import override


class WorkerValues(Values):
    """The `Values` of a worker whose params are on parameter servers."""

    in_parts = False
    """One process can read them all."""

    def __init__(
        self,
        membership: Membership,
        exchanger: Exchanger,
        training: TrainingControl,
        tables: TableRows | None = None,
    ) -> None:
        self._tables = tables
        self._task = membership.task
        self._plan = membership.plan
        self._exchanger = exchanger
        self._training = training
        self._model_state: PyTree = None

    @override
    def params(self) -> PyTree:
        return self._owned(self._exchanger.pull())

    def _owned(self, exchange: Exchange) -> PyTree:
        leaves = self._plan.layout.gather(exchange.params, np)
        params, self._model_state = self._plan.variables.split([np.array(leaf) for leaf in leaves])
        return params

    @override
    def model_state(self) -> PyTree:
        return self._model_state

    @override
    def optimizer_state(self) -> PyTree:
        """It is on the ps."""
        return None

    @override
    def assign(self, params: PyTree, state: PyTree, optimizer: PyTree) -> None:  # noqa: ARG002 - it never is
        raise ClusterError(f"{self._task}: the ps hold the values, and only training changes them.")

    def write(self, replaced: Mapping[str, Any], added: Mapping[str, Any]) -> None:
        """Sets variables on the ps or adds to them, at once, whatever the rule. Not counted as an update.

        Args:
          replaced: by the name of a param, or `state/name` for model state.
          added: likewise.
        """
        given = {**replaced, **added}
        blocks, slices = [], []
        for shard in self._plan.layout.shards:
            values: list[NDArray[Any]] = []
            numbers: tuple[list[int], list[int]] = ([], [])
            for i, piece in enumerate(shard.slices):
                name = piece.variable.name
                if name in given:
                    whole = np.asarray(given[name])
                    values.append(whole if piece.whole else whole[piece.start : piece.stop])
                    numbers[name in added].append(i)
                else:
                    values.append(np.zeros(piece.shape))
            typed = zip(values, shard.slices, strict=True)
            blocks.append(shard.pack([value.astype(jax.numpy.dtype(s.variable.dtype)) for value, s in typed], np))
            slices.append(numbers)
        self._exchanger.assign(blocks, slices)

    @override
    def steer(self, settings: Mapping[str, float]) -> None:
        self._exchanger.drain()
        self._training.steer(settings)

    @override
    def computed(
        self,
        function: Callable[[PyTree, PyTree, PyTree], PyTree],
        batches: Iterable[PyTree],
        what: str,  # noqa: ARG002 - done here alone
    ) -> Iterator[tuple[PyTree, PyTree]]:
        if self._tables is not None:
            return self._computed_with_rows(function, batches, self._tables)
        params = self.params()
        return ((batch, function(params, self._model_state, batch)) for batch in batches)

    def _computed_with_rows(
        self, function: Callable[[PyTree, PyTree, PyTree], PyTree], batches: Iterable[PyTree], tables: TableRows
    ) -> Iterator[tuple[PyTree, PyTree]]:
        params: PyTree = None
        for batch in batches:
            given, exchange = tables.of_batch(batch)
            params = self._owned(exchange) if params is None else params
            yield given.batch, function(WithRows(params, given.rows), self._model_state, given.batch)
