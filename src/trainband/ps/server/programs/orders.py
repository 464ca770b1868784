"""Whether the comparison of a sort is an order.

XLA sorts on a CPU with `std::sort`, which reads and writes outside of its array where the comparison is none, such as
one that is always true. What is recognised is what JAX lowers sorts with one key to: `f(a) < f(b)`, or `>`, with the
same `f` on both sides and a comparison that is total.
"""

from __future__ import annotations

from itertools import count

from trainband.ps.server.programs import inside


def is_order(comparison: inside.Block) -> bool:
    """Whether a block of two scalars for each array, the first's and the second's, compares one key of each."""
    returned = list(comparison.operations)[-1].operation
    operation = inside.defining(returned.operands[0])
    if operation is None or operation.name != "stablehlo.compare" or len(returned.operands) != 1:
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
    if direction not in ("LT", "GT") or not (kind == "TOTALORDER" or is_integer):
        return False
    keys: dict[object, int] = {}
    strangers = count()
    return any(
        _key(one, comparison, mine, keys, strangers) == _key(other, comparison, 1 - mine, keys, strangers)
        for mine in (0, 1)
    )


def _key(value: inside.Value, block: inside.Block, mine: int, keys: dict[object, int], strangers: count[int]) -> int:
    """A number that two expressions have in common if, and only if, they are the same function of one element.

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
