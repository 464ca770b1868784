"""Plan: what a worker derives from its model and sends the ps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax

from trainband.errors import ModelError
from trainband.model.analysis.dependence import Dependence, Formulas, analyse
from trainband.model.contents import check_settings
from trainband.model.layout import JobLayout
from trainband.model.optimizer import JobSpecific, Optimizer
from trainband.model.placement import PlacementPolicy
from trainband.model.variables import Variables
from trainband.ps.program.export import ShardOptimizer, WholeFormula
from trainband.ps.rules import UpdateRule
from trainband.ps.tables.description import record_of
from trainband.rows.table import Table
from trainband.wire.messages.description import Description, SliceRecord, VariableRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """Settings besides the model that all tasks must share, as in `Description`."""

    push_dtype: str = ""
    pull_dtype: str = ""
    state_merge: str = "mean"
    standbys: int = 0
    stall_s: float = 0.0
    tables: tuple[Table, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """A job derived from the model: the layout, the shards' optimizers and the description to compare."""

    variables: Variables
    layout: JobLayout
    description: Description
    optimizer: Optimizer
    formula: WholeFormula | None

    def shard_optimizer(self, ps: int) -> ShardOptimizer:
        """Returns the optimizer that the chief defines on a shard."""
        return ShardOptimizer(self.optimizer, self.variables, self.layout, ps, self.formula)

    def number_of_state(self, ps: int, name: str) -> int:
        """Returns the leaf index of scalar `name` in a shard's optimizer state.

        Raises:
          ModelError: there is none.
        """
        contents = self.shard_optimizer(ps).state_contents
        numbers = {pieces[0].tensor: leaf for leaf, pieces in enumerate(contents) if pieces[0].shape == ()}
        known = [tensor.removeprefix("optimizer/") for tensor in numbers]
        check_settings([name], known)
        return numbers[f"optimizer/{name}"]

    @classmethod
    def of(
        cls,
        variables: Variables,
        optimizer: Optimizer,
        policy: PlacementPolicy,
        rule: UpdateRule,
        ps_count: int,
        settings: JobSettings | None = None,
    ) -> Plan:
        """Plans a job. Pure: every task with the same arguments makes the same plan."""
        settings = settings or JobSettings()
        dependence, formula = _analysed(optimizer, variables)
        names = [variable.name for variable in variables.entries]
        together = [names[i] for i in dependence.variables_mixed()]
        if together and ps_count > 1 and not isinstance(optimizer, JobSpecific):
            raise ModelError(_apart(together, ps_count))
        placement = policy.place(variables.entries, ps_count, keep_whole=[names[i] for i in dependence.rows_mixed()])
        layout = JobLayout.of(placement)
        index = {variable.name: i for i, variable in enumerate(variables.entries)}
        description = Description(
            variables=tuple(VariableRecord(v.name, v.shape, v.dtype, v.trained) for v in variables.entries),
            slices=tuple(SliceRecord(index[s.variable.name], s.start, s.stop, s.ps) for s in placement.slices),
            ps_count=ps_count,
            rule=dict(rule.settings()),
            update_text=dependence.text,
            jax_version=jax.__version__,
            push_dtype=settings.push_dtype,
            pull_dtype=settings.pull_dtype,
            state_merge=settings.state_merge,
            standbys=settings.standbys,
            stall_s=settings.stall_s,
            tables=tuple(map(record_of, settings.tables)),
        )
        return cls(variables, layout, description, optimizer, formula)


def _analysed(optimizer: Optimizer, variables: Variables) -> tuple[Dependence, WholeFormula | None]:
    formulas = Formulas()
    shapes = variables.unflatten([jax.ShapeDtypeStruct(v.shape, v.dtype) for v in variables.trained])
    try:
        dependence = analyse(optimizer, shapes, formulas)
    except Exception as exc:
        raise ModelError(f"the optimizer cannot be traced on these params: {type(exc).__name__}: {exc}") from exc
    return dependence, None if dependence.formula is None else WholeFormula(formulas, dependence.formula)


def _apart(names: Sequence[str], ps_count: int) -> str:
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return (
        f"the optimizer computes the update of a variable from other variables too ({shown} are mixed, as in "
        f"clipping to a global norm), which fails with the variables spread over {ps_count} ps. Use one ps, or "
        "an optimizer that treats variables separately, or clip on the workers with Trainer(worker_transform=...)."
    )
