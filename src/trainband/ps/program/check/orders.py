"""Checks that the comparison of a sort is an order.

XLA sorts on a CPU with `std::sort`, which reads and writes outside of its array if the comparison is not an order, for
example always true. The check recognises JAX's lowering of sorts: `f(a) < f(b)`, or `>`, with the same `f` on both
sides and a total comparison; for several keys, `f(a) < f(b) or (f(a) == f(b) and ...)`.
"""

from __future__ import annotations

from itertools import count
from typing import TypeGuard

from trainband.ps.program.check import jax_internals as inside

_MOST_KEYS = 16


def is_order(comparison: inside.Block) -> bool:
    """Whether a block, which takes two scalars for each array, compares the two elements by keys."""
    returned = list(comparison.operations)[-1].operation
    if len(returned.operands) != 1:
        return False
    value = returned.operands[0]
    for _ in range(_MOST_KEYS):
        operation = inside.defining(value)
        if operation is None or operation.name != "stablehlo.or":
            return _compares(operation, ("LT", "GT"), comparison)
        first, rest = (inside.defining(operand) for operand in operation.operands)
        if rest is None or rest.name != "stablehlo.and" or not _compares(first, ("LT", "GT"), comparison):
            return False
        same = inside.defining(rest.operands[0])
        if not _compares(same, ("EQ",), comparison) or list(same.operands) != list(first.operands):
            return False
        value = rest.operands[1]
    return False


def _compares(
    operation: inside.Operation | None, directions: tuple[str, ...], comparison: inside.Block
) -> TypeGuard[inside.Operation]:
    """Whether an operation compares the same key of both elements, in a total order."""
    if operation is None or operation.name != "stablehlo.compare":
        return False
    words = [
        str(operation.attributes[key])
        for key in ("comparison_direction", "compare_type")
        if key in operation.attributes
    ]
    direction, kind = (word.rpartition(" ")[2].rstrip(">") for word in (*words, "NOTYPE >")[:2])
    one, other = operation.operands
    tensor = inside.tensor(one.type)
    is_integer = tensor is not None and tensor[1].lstrip("u").startswith("i")
    if direction not in directions or not (kind == "TOTALORDER" or is_integer):
        return False
    keys: dict[object, int] = {}
    strangers = count()
    return any(
        _key(one, comparison, mine, keys, strangers) == _key(other, comparison, 1 - mine, keys, strangers)
        for mine in (0, 1)
    )


def _key(value: inside.Value, block: inside.Block, mine: int, keys: dict[object, int], strangers: count[int]) -> int:
    """A number that two expressions share if and only if they are the same function of one element.

    `mine`: which of the two elements it may be a function of.
    """
    numbers: dict[inside.Value, int] = {}
    for i, argument in enumerate(block.arguments):
        form: object = ("element", i // 2) if i % 2 == mine else ("stranger", next(strangers))
        numbers[argument] = keys.setdefault(form, len(keys))

    def number(one: inside.Value) -> int:
        if one not in numbers:
            numbers[one] = keys.setdefault(("outside", one), len(keys))
        return numbers[one]

    for view in block.operations:
        operation = view.operation
        attributes = tuple(sorted((str(key), str(operation.attributes[key])) for key in operation.attributes))
        operands = tuple(number(operand) for operand in operation.operands)
        for i, result in enumerate(operation.results):
            form = (operation.name, attributes, operands, i, str(result.type))
            numbers[result] = keys.setdefault(form, len(keys))
    return number(value)
