"""The maximum number of rounds of a `while`, proven from a counter.

It recognises the lowering of `lax.fori_loop` and `lax.scan`: one of the values that the loop carries starts as a
constant, changes by a constant in every round, and is compared with a constant. The condition may be the `and` of that
comparison with anything else, which can only end the loop earlier.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from trainband.ps.program.check import jax_internals as inside
from trainband.ps.program.check.operations import INTEGERS

Known = Mapping[inside.Value, int]
"""Values that are constants of one integer."""

_FLIPPED = {"LT": "GT", "LE": "GE", "GT": "LT", "GE": "LE"}


def trips(loop: inside.Operation, known: Known) -> int | None:
    """The most rounds that a `stablehlo.while` makes; `None` if no counter proves a bound."""
    condition, body = (region.blocks[0] for region in loop.regions)
    found = [
        rounds
        for conjunct in _conjuncts(_last(condition).operands[0], known)
        if (rounds := _rounds(loop, condition, body, conjunct, known)) is not None
    ]
    return min(found, default=None)


def carried_unchanged(loop: inside.Operation) -> list[int]:
    """Which of the values that a loop carries never change."""
    body = loop.regions[1].blocks[0]
    returned = _last(body).operands
    return [i for i in range(len(returned)) if returned[i] == body.arguments[i]]


def _last(block: inside.Block) -> inside.Operation:
    return list(block.operations)[-1].operation


def _conjuncts(value: inside.Value, known: Known) -> Iterator[inside.Operation]:
    """The comparisons that must all hold for this condition to hold."""
    waiting = [value]
    for _ in range(64):  # no real condition has more
        if not waiting:
            return
        operation = inside.defining(waiting.pop())
        if operation is None:
            continue
        name = operation.name
        if name == "stablehlo.and":
            waiting += operation.operands
        elif name in ("stablehlo.convert", "stablehlo.broadcast_in_dim", "stablehlo.reshape"):
            if inside.tensor(operation.operands[0].type) == ((), "i1") == inside.tensor(operation.results[0].type):
                waiting.append(operation.operands[0])
        elif name == "stablehlo.compare":
            one, other = operation.operands
            is_truth = inside.tensor(one.type) == ((), "i1") and _direction(operation) == "NE"
            if is_truth and known.get(other) == 0:
                waiting.append(one)  # `x != 0`: how `jnp.logical_and` writes a truth value
            else:
                yield operation


def _direction(operation: inside.Operation) -> str:
    return str(operation.attributes["comparison_direction"]).rpartition(" ")[2].rstrip(">")


def _rounds(
    loop: inside.Operation, condition: inside.Block, body: inside.Block, compared: inside.Operation, known: Known
) -> int | None:
    one, other = compared.operands
    direction = _direction(compared)
    if other in condition.arguments:
        one, other, direction = other, one, _FLIPPED.get(direction, direction)
    arguments: list[inside.Value] = list(condition.arguments)
    kind = inside.tensor(one.type)
    if one not in arguments or other not in known or direction not in _FLIPPED or kind is None:
        return None
    shape, element = kind
    if shape != () or element not in INTEGERS or not _is_by_value(compared, element):
        return None
    i = arguments.index(one)
    first = known.get(loop.operands[i])
    step = _step(_last(body).operands[i], body.arguments[i], known)
    if first is None or step is None:
        return None
    low, high = INTEGERS[element]
    limit = known[other] + (direction == "LE") - (direction == "GE")
    if direction in ("LT", "LE"):
        fits = step > 0 and limit + step - 1 <= high
        return max(0, -((first - limit) // step)) if fits else None
    fits = step < 0 and limit + step + 1 >= low
    return max(0, -((limit - first) // -step)) if fits else None


def _is_by_value(compared: inside.Operation, element: str) -> bool:
    """Whether a comparison takes its integers by their own type."""
    if "compare_type" not in compared.attributes:
        return True
    kind = str(compared.attributes["compare_type"]).rpartition(" ")[2].rstrip(">")
    return kind in ("NOTYPE", "UNSIGNED" if element.startswith("u") else "SIGNED")


def _step(returned: inside.Value, carried: inside.Value, known: Known) -> int | None:
    """The constant by which a body increases a value that it carries."""
    operation = inside.defining(returned)
    if operation is None or operation.name not in ("stablehlo.add", "stablehlo.subtract"):
        return None
    one, other = operation.operands
    if operation.name == "stablehlo.add" and one in known and one != carried:
        one, other = other, one
    if one != carried or other not in known:
        return None
    return known[other] if operation.name == "stablehlo.add" else -known[other]
