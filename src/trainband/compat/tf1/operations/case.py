"""Branches by several conditions, or by a number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from trainband.compat.ops import array, math
from trainband.compat.ops.dtypes import bool_, int32
from trainband.compat.tf1.graphs.graph import Operation, get_default_graph
from trainband.compat.tf1.graphs.record import convert
from trainband.compat.tf1.operations.control_flow import cond
from trainband.compat.tf1.operations.printing import assert_
from trainband.compat.tf1.operations.recorder import recorded

Branch = Callable[[], Any]


def case(
    pred_fn_pairs: Any,
    default: Branch | None = None,
    exclusive: bool = False,
    strict: bool = False,
    name: str = "case",
) -> Any:
    """Record the first of several branches whose condition is true; without a default, a run fails if none is.

    Args:
      exclusive: whether a run fails if several conditions are true.

    Raises:
      TypeError: a branch is not callable.
      ValueError: there are no branches.
    """
    pairs = list(pred_fn_pairs.items()) if isinstance(pred_fn_pairs, dict) else list(pred_fn_pairs)
    if not pairs:
        raise ValueError("case() needs at least one pair of a condition and a function.")
    if not all(callable(one) for _, one in pairs) or not (default is None or callable(default)):
        raise TypeError("The branches of case() must be callable.")
    graph = get_default_graph()
    with graph.name_scope(name), graph.control_dependencies([_at_most_one(pairs)] if exclusive else []):
        return _chosen(pairs, default, strict)


def _at_most_one(pairs: Sequence[tuple[Any, Branch]]) -> Operation:
    conditions = [convert(pred, bool_) for pred, _ in pairs]
    true = recorded(math.add_n)([recorded(math.cast)(one, int32) for one in conditions])
    names = ", ".join(one.name for one in conditions)
    message = f"Input error: exclusive=True: more than 1 conditions ({names}) evaluated as True:"
    return assert_(true <= 1, [message, recorded(array.stack)(conditions)], summarize=len(conditions))


def _chosen(pairs: Sequence[tuple[Any, Branch]], default: Branch | None, strict: bool) -> Any:
    result = default or _must_hold(pairs[-1])
    for pred, function in reversed(pairs if default is not None else pairs[:-1]):
        result = _either(pred, function, result, strict)
    return result()


def _must_hold(pair: tuple[Any, Branch]) -> Branch:
    pred, function = pair

    def checked() -> Any:
        message = ["None of the conditions evaluated as True, and there is no default"]
        with get_default_graph().control_dependencies([assert_(pred, message)]):
            return function()

    return checked


def _either(pred: Any, function: Branch, other: Branch, strict: bool) -> Branch:
    return lambda: cond(pred, function, other, strict=strict)


def switch_case(branch_index: Any, branch_fns: Any, default: Branch | None = None, name: str = "switch_case") -> Any:
    """Record one of several branches, chosen by a number; any other number chooses the default, or the last branch.

    Raises:
      TypeError: a branch is not callable.
      ValueError: there are no branches.
    """
    if isinstance(branch_fns, dict):
        numbered = sorted(branch_fns.items())
    else:
        listed = list(branch_fns)
        numbered = sorted(listed) if listed and isinstance(listed[0], tuple) else list(enumerate(listed))
    if not numbered:
        raise ValueError("switch_case() needs at least one branch.")
    with get_default_graph().name_scope(name):
        index = convert(branch_index)
        pairs = [(recorded(math.equal)(index, number), function) for number, function in numbered]
        return case(pairs, default or numbered[-1][1])
