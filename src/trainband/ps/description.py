"""Descriptions, on which all tasks of a job must agree: checks that one is consistent and finds how two differ."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import zip_longest

from trainband.checkpoint.manifest import DTYPES
from trainband.errors import ModelError, Refused
from trainband.model.layout import WIRE_DTYPES
from trainband.model.placement import Placement, Slice, rows_of
from trainband.model.variables import Variable
from trainband.ps.rules.registry import describe_rule, rule_of
from trainband.ps.tables.description import table_of
from trainband.runtime.formatting import printable
from trainband.wire.limits import LIMITS
from trainband.wire.messages.calls import Define
from trainband.wire.messages.description import Description, VariableRecord
from trainband.wire.messages.tables import TableRecord

_CONSTANT = re.compile(r"(?<![\w.])-?\d[\w.+-]{0,40}(?=:\w{1,20}\[)")
"""A number in a traced program: `0.1` in `mul 0.1:f32[] a`."""


def placement_of(description: Description) -> Placement:
    """The placement in a description.

    Raises:
      ModelError: its slices do not cover each variable exactly once.
    """
    variables = [Variable(v.name, v.shape, v.dtype, v.trained) for v in description.variables]
    slices = []
    covered = [0] * len(variables)
    for record in description.slices:
        if not (0 <= record.variable < len(variables) and 0 <= record.ps < description.ps_count):
            raise ModelError(f"a description has a slice with an unknown variable or ps: {record}.")
        if record.start != covered[record.variable] or record.stop < record.start:
            raise ModelError(f"the slices of {variables[record.variable].name} overlap or leave rows out.")
        covered[record.variable] = record.stop
        slices.append(Slice(variables[record.variable], record.start, record.stop, record.ps))
    for variable, rows in zip(variables, covered, strict=True):
        if rows != rows_of(variable):
            raise ModelError(f"the slices of {variable.name} leave rows out.")
    return Placement(tuple(slices), description.ps_count)


def check_definition(define: Define, ps: int, ps_count: int) -> None:
    """Refuses an inconsistent definition of the model before it is used.

    Args:
      ps: the number of the shard that it is for.

    Raises:
      Refused: it contradicts itself or the cluster.
      ModelError: its slices do not cover each variable exactly once.
    """
    description = define.description
    if description.ps_count != ps_count:
        raise Refused(
            f"the definition is for {description.ps_count} ps, and this cluster has {ps_count}: the tasks have "
            "different clusters. Compare their TF_CONFIG, or the settings of their platform."
        )
    if define.ps != ps:
        raise Refused(f"the definition has {ps_count} ps, but calls this one number {define.ps}.")
    names = {record.name for record in description.variables}
    if len(names) < len(description.variables):
        raise Refused("the definition has two variables with one name.")
    for record in description.variables:
        _check_tensor(f"the variable {record.name!r}", record.shape, record.dtype)
    for piece in (piece for pieces in define.state for piece in pieces):
        _check_tensor(f"the tensor {printable(piece.tensor, 100)!r}", piece.shape, piece.dtype)
    for dtype in (description.push_dtype, description.pull_dtype):
        if dtype and dtype not in WIRE_DTYPES:
            raise Refused(f"blocks cannot be sent as {dtype!r}; use one of {', '.join(WIRE_DTYPES)}.")
    if description.state_merge not in ("mean", "chief"):
        raise Refused(f"state_merge is {description.state_merge!r}; it must be 'mean' or 'chief'.")
    if not 0 <= description.stall_s < float("inf"):
        raise Refused(f"stall_s must be a finite number of seconds, 0 or more; got {description.stall_s}.")
    if description.standbys and ps_count < 2:
        raise Refused("standbys need a second ps, and this cluster has one.")
    rule_of(description.rule)
    placement_of(description)
    if len({record.name for record in description.tables}) < len(description.tables):
        raise Refused("the definition has two tables with one name.")
    for table in description.tables:
        table_of(table)


def _check_tensor(what: str, shape: Sequence[int], dtype: str) -> None:
    """Refuses a tensor that is not an array or is larger than any memory."""
    if dtype not in DTYPES:
        raise Refused(f"{what} has the dtype {printable(dtype, 40)!r}; use one of {', '.join(DTYPES)}.")
    size = 1
    for dimension in shape[: LIMITS.dimensions]:
        size *= dimension
        if size > LIMITS.elements:
            break
    if len(shape) > LIMITS.dimensions or size > LIMITS.elements:
        raise Refused(f"{what} has more than {LIMITS.dimensions} dimensions or more than {LIMITS.elements:,} elements.")


def first_difference(chief: Description, worker: Description, task: str) -> str | None:
    """Describes how a worker's description differs from the chief's; `None` if it does not."""
    ours, theirs = ({record.name: record for record in one.variables} for one in (chief, worker))
    for name in [*ours, *theirs]:
        if ours.get(name) != theirs.get(name):
            return (
                f"the first variable that differs is {name}: the chief has {_shown(ours.get(name))}, "
                f"{task} has {_shown(theirs.get(name))}"
            )
    if chief.variables != worker.variables:
        return "the variables are the same, but their order in the params differs"
    for what, mine, other in (
        ("the number of ps", chief.ps_count, worker.ps_count),
        ("the update rule", describe_rule(chief.rule), describe_rule(worker.rule)),
        ("state_merge", chief.state_merge, worker.state_merge),
        ("standbys", chief.standbys, worker.standbys),
        ("stall_s", chief.stall_s, worker.stall_s),
        ("wire_dtype of pushes", chief.push_dtype or "none", worker.push_dtype or "none"),
        ("wire_dtype of pulls", chief.pull_dtype or "none", worker.pull_dtype or "none"),
    ):
        if mine != other:
            return f"{what} differs: the chief has {mine}, {task} has {other}"
    tables = zip_longest(chief.tables, worker.tables)
    different = next((pair for pair in tables if pair[0] != pair[1]), None)
    if different is not None:
        return _different_tables(*different, task)
    if chief.slices != worker.slices:
        return f"the placement of the variables differs: give {task} the same placement policy as the chief"
    # Two versions of JAX may print one program in two ways, so only equal versions are compared.
    if chief.jax_version == worker.jax_version and chief.update_text != worker.update_text:
        return f"the optimizer differs: {_first_line(chief.update_text, worker.update_text, task)}"
    return None


def _different_tables(chief: TableRecord | None, worker: TableRecord | None, task: str) -> str:
    if chief is None or worker is None or chief.name != worker.name:
        names = ["none" if one is None else repr(one.name) for one in (chief, worker)]
        return f"the tables differ: the chief has {names[0]}, {task} has {names[1]} in its place"
    fields = ((name, getattr(chief, name), getattr(worker, name)) for name in chief.__struct_fields__)
    name, mine, other = next(field for field in fields if field[1] != field[2])
    return f"{name} of table {chief.name!r} differs: the chief has {mine}, {task} has {other}"


def _shown(record: VariableRecord | None) -> str:
    return "none" if record is None else str(Variable(record.name, record.shape, record.dtype))


def _first_line(chief: str, worker: str, task: str) -> str:
    pair: Sequence[str | None]
    for pair in zip_longest(chief.splitlines(), worker.splitlines()):
        if pair[0] != pair[1]:
            ours, theirs = ("nothing more" if line is None else f"`{printable(line.strip(), 300)}`" for line in pair)
            return f"the chief's traced update has {ours}, that of {task} has {theirs}{_guess(chief, worker)}"
    return "the traced updates differ"


def _guess(chief: str, worker: str) -> str:
    if _CONSTANT.sub("", chief) != _CONSTANT.sub("", worker):
        return ""
    return "; only constants differ: probably the learning rate, or another number that the optimizer was given"
