"""What all tasks of a job must agree on, made comparable."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

import jax

from trainband.checkpoint.manifest import DTYPES
from trainband.errors import ModelError, Refused
from trainband.model.analysis.dependence import Dependence, Formulas, analyse
from trainband.model.contents import check_settings
from trainband.model.layout import JobLayout
from trainband.model.optimizer import JobSpecific, Optimizer
from trainband.model.placement import Placement, PlacementPolicy, Slice, rows_of
from trainband.model.variables import Variable, Variables
from trainband.ps.rules import UpdateRule
from trainband.ps.rules.registry import describe_rule, rule_of
from trainband.ps.server.program import ShardOptimizer, WholeFormula
from trainband.runtime.formatting import printable
from trainband.wire.limits import LIMITS
from trainband.wire.messages import Define, Description, SliceRecord, VariableRecord

_CONSTANT = re.compile(r"(?<![\w.])-?\d[\w.+-]{0,40}(?=:\w{1,20}\[)")
"""A number in a traced program: `0.1` in `mul 0.1:f32[] a`."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a worker derives from its model: the layout, each shard's optimizer, and the description to compare."""

    variables: Variables
    layout: JobLayout
    description: Description
    optimizer: Optimizer
    formula: WholeFormula | None

    def shard_optimizer(self, ps: int) -> ShardOptimizer:
        """The optimizer of one shard, as the chief defines it there."""
        return ShardOptimizer(self.optimizer, self.variables, self.layout, ps, self.formula)

    def number_of_state(self, ps: int, name: str) -> int:
        """Which leaf of a shard's optimizer state is the number of this path.

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
        wire_dtype: str = "",
        state_merge: str = "mean",
        standbys: int = 0,
        stall_s: float = 0.0,
    ) -> Plan:
        """Plans a job. Pure: every task that has the same arguments comes to the same plan."""
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
            wire_dtype=wire_dtype,
            state_merge=state_merge,
            standbys=standbys,
            stall_s=stall_s,
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
        f"the optimizer computes the update of a variable from other variables as well ({shown} are mixed, as by "
        f"clipping to a global norm), which goes wrong with the variables spread over {ps_count} ps. Use one ps, or "
        "an optimizer that treats each variable by itself, or clip on the workers with Trainer(worker_transform=...)."
    )


def placement_of(description: Description) -> Placement:
    """The placement that a description speaks of.

    Raises:
      ModelError: its slices do not cover each variable exactly once.
    """
    variables = [Variable(v.name, v.shape, v.dtype, v.trained) for v in description.variables]
    slices = []
    covered = [0] * len(variables)
    for record in description.slices:
        if not (0 <= record.variable < len(variables) and 0 <= record.ps < description.ps_count):
            raise ModelError(f"a description has a slice of a variable or on a ps that it does not have: {record}.")
        if record.start != covered[record.variable] or record.stop < record.start:
            raise ModelError(f"the slices of {variables[record.variable].name} overlap or leave rows out.")
        covered[record.variable] = record.stop
        slices.append(Slice(variables[record.variable], record.start, record.stop, record.ps))
    for variable, rows in zip(variables, covered, strict=True):
        if rows != rows_of(variable):
            raise ModelError(f"the slices of {variable.name} leave rows out.")
    return Placement(tuple(slices), description.ps_count)


def check_definition(define: Define, ps: int, ps_count: int) -> None:
    """Refuses a definition of the model that does not hold together, before anything is made of it.

    Args:
      define: what has come.
      ps: the number of the shard that it is for.
      ps_count: how many ps the cluster has.

    Raises:
      Refused: why not.
      ModelError: its slices do not cover each variable exactly once.
    """
    description = define.description
    if description.ps_count != ps_count:
        raise Refused(
            f"the definition is for {description.ps_count} ps, and this cluster has {ps_count}: the tasks have been told "
            "of different clusters. Compare their TF_CONFIG, or what their platform says."
        )
    if define.ps != ps:
        raise Refused(f"the definition has {ps_count} ps, but calls this one number {define.ps}.")
    names = {record.name for record in description.variables}
    if len(names) < len(description.variables):
        raise Refused("the definition has two variables of one name.")
    for record in description.variables:
        _check_tensor(f"the variable {record.name!r}", record.shape, record.dtype)
    for piece in (piece for pieces in define.state for piece in pieces):
        _check_tensor(f"the tensor {printable(piece.tensor, 100)!r}", piece.shape, piece.dtype)
    if description.wire_dtype and description.wire_dtype not in DTYPES:
        raise Refused(f"gradients cannot travel as {description.wire_dtype!r}.")
    if description.state_merge not in ("mean", "chief"):
        raise Refused(f"model state is not merged by {description.state_merge!r}, but by mean or chief.")
    if not 0 <= description.stall_s < float("inf"):
        raise Refused(f"stall_s is {description.stall_s}, which is no number of seconds.")
    if description.standbys and ps_count < 2:
        raise Refused("a shard has its standby on another ps, and this cluster has one.")
    rule_of(description.rule)
    placement_of(description)


def _check_tensor(what: str, shape: Sequence[int], dtype: str) -> None:
    """Refuses a tensor that is no array, or larger than any memory."""
    if dtype not in DTYPES:
        raise Refused(f"{what} has the dtype {printable(dtype, 40)!r}, which is none of {', '.join(DTYPES)}.")
    size = 1
    for dimension in shape[: LIMITS.dimensions]:
        size *= dimension
        if size > LIMITS.elements:
            break
    if len(shape) > LIMITS.dimensions or size > LIMITS.elements:
        raise Refused(f"{what} has more than {LIMITS.dimensions} dimensions or more than {LIMITS.elements:,} elements.")


def first_difference(chief: Description, worker: Description, task: str) -> str | None:
    """In which point a worker's description is not the chief's, in words; `None` where there is none."""
    ours, theirs = ({record.name: record for record in one.variables} for one in (chief, worker))
    for name in [*ours, *theirs]:
        if ours.get(name) != theirs.get(name):
            return (
                f"the first variable that differs is {name}: the chief has {_shown(ours.get(name))}, "
                f"{task} has {_shown(theirs.get(name))}"
            )
    if chief.variables != worker.variables:
        return "the variables are the same, but their order in the params is another"
    for what, mine, other in (
        ("the number of ps", chief.ps_count, worker.ps_count),
        ("the update rule", describe_rule(chief.rule), describe_rule(worker.rule)),
        ("state_merge", chief.state_merge, worker.state_merge),
        ("standbys", chief.standbys, worker.standbys),
        ("stall_s", chief.stall_s, worker.stall_s),
        ("wire_dtype", chief.wire_dtype or "none", worker.wire_dtype or "none"),
    ):
        if mine != other:
            return f"{what} differs: the chief has {mine}, {task} has {other}"
    if chief.slices != worker.slices:
        return f"the placement of the variables differs: give {task} the same placement policy as the chief"
    # Two versions of JAX may print one program in two ways, so only equal versions are compared.
    if chief.jax_version == worker.jax_version and chief.update_text != worker.update_text:
        return f"the optimizer differs: {_first_line(chief.update_text, worker.update_text, task)}"
    return None


def _shown(record: VariableRecord | None) -> str:
    return "none" if record is None else str(Variable(record.name, record.shape, record.dtype))


def _first_line(chief: str, worker: str, task: str) -> str:
    pair: Sequence[str | None]
    for pair in zip_longest(chief.splitlines(), worker.splitlines()):
        if pair[0] != pair[1]:
            ours, theirs = ("nothing more" if line is None else f"«{printable(line.strip(), 300)}»" for line in pair)
            return f"where the chief's traced update has {ours}, that of {task} has {theirs}{_guess(chief, worker)}"
    return "the traced updates are not the same"


def _guess(chief: str, worker: str) -> str:
    if _CONSTANT.sub("", chief) != _CONSTANT.sub("", worker):
        return ""
    return "; only constants differ: probably the learning rate, or another number that the optimizer was given"
