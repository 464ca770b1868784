"""Verifier: walks a program's module, refuses forbidden operations, and bounds the work of one run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from trainband.errors import Refused
from trainband.ps.program.check import composites, custom_calls, lapack
from trainband.ps.program.check import jax_internals as inside
from trainband.ps.program.check.lapack import Tensor
from trainband.ps.program.check.loops import Known, carried_unchanged, trips
from trainband.ps.program.check.operations import (
    CALL_WORK,
    COMBINING,
    ELEMENT_TYPES,
    ELEMENT_WORK,
    ELEMENTWISE,
    INTEGERS,
    MATRIX_SAVES,
    MATRIX_SIDE,
    STEP_WORK,
    UPDATE,
    Rules,
)
from trainband.ps.program.check.orders import is_order
from trainband.ps.program.limits import MIB, ProgramLimits

_DEPTH = 32
"""How deep regions and calls may be nested."""
_RANK = 32


class Cost(NamedTuple):
    """The most that a run computes, and how many operations XLA must compile."""

    work: int = 0
    operations: int = 0

    def __add__(self, other: object) -> Cost:
        if not isinstance(other, Cost):
            return NotImplemented
        return Cost(self.work + other.work, self.operations + other.operations)


def _function_type(function: inside.Operation) -> Any:
    attribute: inside.Attribute = function.attributes["function_type"]
    return attribute.value


class Verifier:
    """Checks the module of one function of a program, and removes everything unchecked from it.

    Args:
      module: verified by MLIR.
      elements: of the shard with its state.
      nbytes: of the shard with its state.
    """

    def __init__(
        self,
        name: str,
        module: inside.Operation,
        limits: ProgramLimits,
        elements: int,
        nbytes: int,
        rules: Rules = UPDATE,
    ) -> None:
        self._name = name
        self._rules = rules
        self._module = module
        self._limits = limits
        self._most_work = limits.work_of(elements)
        self._largest = limits.tensor_bytes_of(nbytes)
        self._functions: dict[str, inside.Operation] = {}
        self._costs: dict[tuple[str, tuple[int | None, ...]], Cost] = {}
        self._open: list[str] = []

    def check(self, takes: Sequence[Tensor], gives: Sequence[Tensor]) -> Cost:
        """The cost of one run. `takes` and `gives`: shapes and element types of `main`'s arguments and results.

        Raises:
          Refused: the module has something that is forbidden for its kind.
        """
        self._remove_attributes(self._module, frozenset({"sym_name"}))
        for view in self._block(self._module, 0).operations:
            function = view.operation
            if function.name != "func.func":
                raise self._refusal(f"{function.name} beside its functions", "only functions are allowed there")
            self._remove_attributes(function, frozenset({"sym_name", "function_type", "sym_visibility"}))
            self._functions[str(function.attributes["sym_name"]).strip('"')] = function
        if "main" not in self._functions:
            raise self._refusal("no function main", "export it with jax.export")
        arguments = list(self._block(self._functions["main"], 0).arguments)
        found = [inside.tensor(argument.type) for argument in arguments]
        kind = _function_type(self._functions["main"])
        given = [inside.tensor(result) for result in kind.results]
        if found != list(takes) or given != list(gives):
            raise self._refusal("a main that takes or gives other arrays than it declares", "export it with jax.export")
        for name, function in self._functions.items():
            if name != "main":
                self._call(name, (None,) * len(self._block(function, 0).arguments))
        cost = self._call("main", (None,) * len(arguments))
        self._within(cost)
        return cost

    def _within(self, cost: Cost) -> None:
        if cost.operations > self._limits.operations:
            raise self._refusal(
                f"more than {self._limits.operations:,} operations once its calls are inlined",
                "make it simpler, or raise ProgramLimits(operations=...)",
            )
        if self._rules.has_bounded_loops and cost.work > self._most_work:
            raise self._refusal(
                f"up to {cost.work * 1e-9:,.1f} s of work a run on one core, and this shard may have "
                f"{self._most_work * 1e-9:,.1f} s",
                "make fewer rounds of its loops, also in branches that are seldom taken, or raise "
                "ProgramLimits(work_per_element=..., time_s=...)",
            )

    def _refusal(self, what: str, advice: str = "") -> Refused:
        return Refused(f"its function {self._name} has {what}: {advice or self._rules.advice}.")

    def _remove_attributes(self, operation: inside.Operation, allowed: frozenset[str]) -> None:
        """Removes attributes that only other compilers and people read; refuses unknown ones."""
        for key in [str(key) for key in operation.attributes]:
            if key in allowed:
                continue
            if "." not in key and not key.startswith("_") and key not in ("arg_attrs", "res_attrs"):
                raise self._refusal(f"a {operation.name} with the attribute {key!r}")
            del operation.attributes[key]

    def _block(self, operation: inside.Operation, i: int) -> inside.Block:
        blocks: list[inside.Block] = list(operation.regions[i].blocks)
        if len(blocks) != 1:
            raise self._refusal(f"a {operation.name} whose body has {len(blocks)} blocks")
        return blocks[0]

    def _call(self, name: str, constants: tuple[int | None, ...]) -> Cost:
        """The cost of a call; `constants`: the values of arguments that are constant integers, else `None`."""
        if name in self._open:
            raise self._refusal(f"a function {name} that calls itself", "unroll it, or use lax.fori_loop")
        key = (name, constants)
        if key not in self._costs:
            if name not in self._functions or len(self._open) >= _DEPTH or len(self._costs) >= 10_000:
                raise self._refusal(f"a call of {name} that does not exist or is nested too deep")
            self._open.append(name)
            function = self._functions[name]
            block = self._block(function, 0)
            known: dict[inside.Value, int] = {
                a: c for a, c in zip(block.arguments, constants, strict=True) if c is not None
            }
            self._costs[key] = self._walk(block, known, 0)
            self._open.pop()
        return self._costs[key]

    def _walk(self, block: inside.Block, known: dict[inside.Value, int], depth: int) -> Cost:
        if depth > _DEPTH:
            raise self._refusal(f"regions that are nested more than {_DEPTH} deep")
        for argument in block.arguments:
            self._tensor(argument)
        cost = Cost()
        for view in list(block.operations):  # `_composite` replaces some
            cost += self._operation(view.operation, known, depth)
            if cost.operations > self._limits.operations:
                self._within(cost)
        return cost

    def _tensor(self, value: inside.Value) -> Tensor:
        found = inside.tensor(value.type)
        if found is None or found[1] not in ELEMENT_TYPES or len(found[0]) > _RANK:
            raise self._refusal(f"a value of type {str(value.type)[:80]}", "only arrays of fixed shapes are allowed")
        if math.prod(found[0]) * ELEMENT_TYPES[found[1]] > self._largest:
            raise self._refusal(
                f"an array of {math.prod(found[0]) * ELEMENT_TYPES[found[1]] / MIB:,.0f} MiB, and this shard may have "
                f"{self._largest / MIB:,.0f} MiB",
                "use an optimizer with less state, or raise ProgramLimits(tensor_bytes=...)",
            )
        return found

    def _operation(self, operation: inside.Operation, known: dict[inside.Value, int], depth: int) -> Cost:
        name = operation.name
        if name not in self._rules.allowed:
            raise self._refusal(
                f"the operation {name}, which no {self._rules.kind} may use ({self._rules.summary} are allowed)"
            )
        self._remove_attributes(operation, self._rules.allowed[name])
        operands = [self._tensor(operand) for operand in operation.operands]
        results = [self._tensor(result) for result in operation.results]
        elements = sum(math.prod(shape) for shape, _ in (*operands, *results))
        dearer = ELEMENT_WORK.get(name, 1) - 1
        elements += sum(math.prod(shape) for shape, _ in results) * dearer if dearer else 0
        plain = Cost(elements + STEP_WORK, 1)
        if name == "stablehlo.while":
            return self._loop(operation, known, depth)
        if name in ("stablehlo.if", "stablehlo.case"):
            branches = [self._walk(self._block(operation, i), known, depth + 1) for i in range(len(operation.regions))]
            return plain + Cost(max(cost.work for cost in branches), sum(cost.operations for cost in branches))
        if name == "func.call":
            callee = str(operation.attributes["callee"]).lstrip("@").strip('"')
            return plain + self._call(callee, tuple(known.get(operand) for operand in operation.operands))
        if name == "stablehlo.composite":
            return plain + self._composite(operation)
        if name == "stablehlo.custom_call":
            return Cost(elements + CALL_WORK + self._custom_call(operation, operands, results), 1)
        if name in COMBINING:
            return self._combining(operation, operands, results, known)
        if name == "stablehlo.dot_general":
            return plain + Cost(_products(operation, operands, results))
        self._record_constant(operation, results, known)
        return plain

    def _record_constant(
        self, operation: inside.Operation, results: Sequence[Tensor], known: dict[inside.Value, int]
    ) -> None:
        if operation.name == "stablehlo.constant":
            if not inside.is_dense(operation):
                raise self._refusal("a constant whose values are stored outside the module")
            if results[0][0] == () and (results[0][1] in INTEGERS or results[0][1] == "i1"):
                value = inside.integer(operation.attributes["value"])
                if value is not None:
                    known[operation.results[0]] = value
        elif operation.name in ("stablehlo.convert", "stablehlo.broadcast_in_dim", "stablehlo.reshape"):
            value = known.get(operation.operands[0])
            low, high = INTEGERS.get(results[0][1], (1, 0))
            if results[0][0] == () and value is not None and low <= value <= high:
                known[operation.results[0]] = value
            elif results[0] == ((), "i1") and value == 0:
                known[operation.results[0]] = 0

    def _loop(self, loop: inside.Operation, known: dict[inside.Value, int], depth: int) -> Cost:
        condition, body = self._block(loop, 0), self._block(loop, 1)
        for i in carried_unchanged(loop):
            if (value := known.get(loop.operands[i])) is not None:
                known[condition.arguments[i]] = known[body.arguments[i]] = value
        once = self._walk(condition, known, depth + 1) + self._walk(body, known, depth + 1)
        rounds = trips(loop, known)
        if rounds is None and not self._rules.has_bounded_loops:
            rounds = 0
        if rounds is None:
            raise self._refusal(
                "a while loop without a proven bound on its rounds",
                "use lax.fori_loop or lax.scan with a number, or add a counter to the condition: "
                "(i < 100) & (error > tolerance)",
            )
        return Cost(STEP_WORK + (rounds + 1) * once.work, 1 + once.operations)

    def _composite(self, operation: inside.Operation) -> Cost:
        name = str(operation.attributes["name"]).strip('"')
        callee = str(operation.attributes["decomposition"]).lstrip("@").strip('"')
        if name in self._rules.called_composites:
            cost = self._call(callee, (None,) * len(operation.operands))
            inside.call_instead(operation, callee)
            return cost
        if name not in composites.NAMES:
            raise self._refusal(f"the composite operation {name[:80]}")
        function = self._functions.get(callee)
        kind = _function_type(function) if function is not None else None
        if kind is None or (list(kind.inputs), list(kind.results)) != (
            [operand.type for operand in operation.operands],
            [result.type for result in operation.results],
        ):
            raise self._refusal(f"a composite operation {name} that does not fit its function")
        attributes: dict[str, Any] = {str(key): operation.attributes[key] for key in operation.attributes}
        settings = {
            str(entry.name): str(entry.attr).partition(" ")[0] for entry in attributes.get("composite_attributes", ())
        }
        operands, results = ([self._tensor(one) for one in ones] for ones in (operation.operands, operation.results))
        if not composites.fits(name, operands, results, settings):
            raise self._refusal(f"a composite operation {name} with other types or settings than JAX gives it")
        return self._call(callee, (None,) * len(operation.operands))

    def _custom_call(self, operation: inside.Operation, operands: Sequence[Tensor], results: Sequence[Tensor]) -> int:
        attributes: Any = operation.attributes
        target = str(attributes["call_target_name"]).strip('"')
        if target not in self._rules.custom_calls:
            raise self._refusal(
                f"a custom call of {target[:80]!r}; only those of jax.numpy.linalg's cholesky, eigh, inv, qr, solve, "
                "svd and triangular solve are allowed"
            )
        work = custom_calls.work_of(target, attributes, operands, results)
        if work is None:
            raise self._refusal(
                f"a custom call of {target} with other shapes or settings than jax.numpy.linalg gives it",
                f"matrices may have up to {lapack.LARGEST:,} rows and columns; export it with jax.export",
            )
        return work

    def _combining(
        self, operation: inside.Operation, operands: Sequence[Tensor], results: Sequence[Tensor], known: Known
    ) -> Cost:
        block = self._block(operation, 0)
        inner, each = 0, 0
        for region in range(len(operation.regions)):
            one_inner, one_each = self._scalar_function(operation, region, known)
            inner, each = inner + one_inner, each + one_each
        sizes = [math.prod(shape) for shape, _ in operands]
        if operation.name == "stablehlo.sort":
            if not is_order(block):
                raise self._refusal(
                    "a sort whose comparison is not proven to be an order",
                    "use jax.numpy.sort or argsort, or lax.sort with num_keys=1",
                )
            times = sum(sizes) * max(1, sizes[0]).bit_length()
        elif operation.name in ("stablehlo.reduce_window", "stablehlo.select_and_scatter"):
            window = math.prod(inside.integers(operation.attributes["window_dimensions"]))
            times = max(sum(sizes), sum(math.prod(shape) for shape, _ in results)) * window
        else:
            times = sum(sizes)
        total = sum(sizes) + sum(math.prod(shape) for shape, _ in results)
        once = CALL_WORK if operation.name == "stablehlo.sort" else STEP_WORK
        return Cost(total + times * each * ELEMENT_WORK.get(operation.name, 1) + once, 1 + inner)

    def _scalar_function(self, operation: inside.Operation, region: int, known: Known) -> tuple[int, int]:
        """The number of operations in a function of a reduction or sort, and their cost for one element."""
        block = self._block(operation, region)
        inner, each = 0, 0
        for argument in block.arguments:
            if self._tensor(argument)[0] != ():
                raise self._refusal(f"a {operation.name} whose function takes arrays")
        for view in block.operations:
            one = view.operation
            if one.name not in ELEMENTWISE and one.name != "stablehlo.return":
                raise self._refusal(f"the operation {one.name} inside a {operation.name}", "only arithmetic is allowed")
            self._operation(one, dict(known), 0)
            inner += 1
            each += ELEMENT_WORK.get(one.name, 1)
        return inner, each


def _products(operation: inside.Operation, operands: Sequence[Tensor], results: Sequence[Tensor]) -> int:
    """The work of a `dot_general`."""
    summed = inside.contracted(operation.attributes["dot_dimension_numbers"])
    factor = math.prod(operands[0][0][i] for i in summed)
    products = math.prod(results[0][0]) * factor
    is_blocked = len(results[0][0]) >= 2 and min(*results[0][0][-2:], factor) >= MATRIX_SIDE
    return products // MATRIX_SAVES if is_blocked else products
