"""Verifier: walks a program's module, refuses what may not stand in it, and bounds what one run computes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from trainband.errors import Refused
from trainband.ps.server.programs import inside, lapack
from trainband.ps.server.programs.lapack import Tensor
from trainband.ps.server.programs.limits import MIB, ProgramLimits
from trainband.ps.server.programs.loops import Known, carried_unchanged, trips
from trainband.ps.server.programs.operations import (
    ALLOWED,
    COMBINING,
    COMPOSITES,
    ELEMENT_TYPES,
    ELEMENTWISE,
    INTEGERS,
    STEP_WORK,
)
from trainband.ps.server.programs.orders import is_order

_DEPTH = 32
"""How deep regions may be nested, and calls."""
_RANK = 32
_ADVICE = "take it out of the optimizer, or train with a strategy that has no ps"


class Cost(NamedTuple):
    """What a run computes at the most, and how many operations XLA has to compile for it."""

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
    """Checks the module of one function of an update program, and takes away from it what is not checked.

    Args:
      name: of the function, for messages.
      module: of MLIR, which has verified it.
      limits: what the ps allows.
      elements: of the shard with its state.
      nbytes: of the shard with its state.
    """

    def __init__(self, name: str, module: inside.Operation, limits: ProgramLimits, elements: int, nbytes: int) -> None:
        self._name = name
        self._module = module
        self._limits = limits
        self._most_work = limits.work_of(elements)
        self._largest = limits.tensor_bytes_of(nbytes)
        self._functions: dict[str, inside.Operation] = {}
        self._costs: dict[tuple[str, tuple[int | None, ...]], Cost] = {}
        self._open: list[str] = []

    def check(self, takes: Sequence[Tensor], gives: Sequence[Tensor]) -> Cost:
        """The cost of one run. `takes` and `gives`: what `main` must have, as shapes and element types.

        Raises:
          Refused: the module has something that no update program may have.
        """
        self._take_away(self._module, frozenset({"sym_name"}))
        for view in self._block(self._module, 0).operations:
            function = view.operation
            if function.name != "func.func":
                raise self._refusal(f"{function.name} beside its functions", "only functions may stand there")
            self._take_away(function, frozenset({"sym_name", "function_type", "sym_visibility"}))
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
                "make the optimizer simpler, or let the ps have more with ProgramLimits(operations=...)",
            )
        if cost.work > self._most_work:
            raise self._refusal(
                f"{cost.work:.2g} multiplications and additions a run, and this shard may have {self._most_work:.2g}",
                "make fewer rounds of its loops, or let the ps do more with ProgramLimits(work_per_element=...)",
            )

    def _refusal(self, what: str, advice: str = _ADVICE) -> Refused:
        return Refused(f"its function {self._name} has {what}: {advice}.")

    def _take_away(self, operation: inside.Operation, allowed: frozenset[str]) -> None:
        """Removes attributes that only other compilers, and people, read; refuses those that nobody knows."""
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
        """The cost of a call; `constants`: the arguments that are known to be integers."""
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
        for view in block.operations:
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
                "use an optimizer with less state, or let the ps have more with ProgramLimits(tensor_bytes=...)",
            )
        return found

    def _operation(self, operation: inside.Operation, known: dict[inside.Value, int], depth: int) -> Cost:
        name = operation.name
        if name not in ALLOWED:
            raise self._refusal(
                f"the operation {name}, which no update program may have (arithmetic, indexing, sorting, counted loops "
                "and jax.numpy.linalg are allowed)"
            )
        self._take_away(operation, ALLOWED[name])
        operands = [self._tensor(operand) for operand in operation.operands]
        results = [self._tensor(result) for result in operation.results]
        elements = sum(math.prod(shape) for shape, _ in (*operands, *results))
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
            return Cost(elements + STEP_WORK + self._custom_call(operation, operands, results), 1)
        if name in COMBINING:
            return self._combining(operation, operands, results, known)
        if name == "stablehlo.dot_general":
            summed = inside.contracted(operation.attributes["dot_dimension_numbers"])
            factor = math.prod(operands[0][0][i] for i in summed)
            return plain + Cost(math.prod(results[0][0]) * factor)
        self._note_constant(operation, results, known)
        return plain

    def _note_constant(
        self,
        operation: inside.Operation,
        results: Sequence[Tensor],
        known: dict[inside.Value, int],
    ) -> None:
        if operation.name == "stablehlo.constant":
            if not inside.is_dense(operation):
                raise self._refusal("a constant whose values lie outside of it")
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
        if rounds is None:
            raise self._refusal(
                "a while loop of which nothing says how often it runs at the most",
                "use lax.fori_loop or lax.scan with a number, or add a counter to the condition: "
                "(i < 100) & (error > tolerance)",
            )
        return Cost(STEP_WORK + (rounds + 1) * once.work, 1 + once.operations)

    def _composite(self, operation: inside.Operation) -> Cost:
        name = str(operation.attributes["name"]).strip('"')
        callee = str(operation.attributes["decomposition"]).lstrip("@").strip('"')
        if name not in COMPOSITES:
            raise self._refusal(f"the composite operation {name[:80]}")
        function = self._functions.get(callee)
        kind = _function_type(function) if function is not None else None
        if kind is None or (list(kind.inputs), list(kind.results)) != (
            [operand.type for operand in operation.operands],
            [result.type for result in operation.results],
        ):
            raise self._refusal(f"a composite operation {name} that does not fit its function")
        shapes = [self._tensor(value) for value in (*operation.operands, *operation.results)]
        # XLA goes by the name and the settings, and not by the function: they must say what it says.
        attributes: dict[str, Any] = {str(key): operation.attributes[key] for key in operation.attributes}
        settings = attributes.get("composite_attributes", ())
        given = {str(entry.name): str(entry.attr).partition(" ")[0] for entry in settings}
        if name == "chlo.top_k":
            shape, element = shapes[0]
            k = shapes[1][0][-1] if len(shapes) == 3 and shape and shapes[1][0] else -1
            wanted = [((*shape[:-1], k), element), ((*shape[:-1], k), "i32")]
            fits = shapes[1:] == wanted and k <= shape[-1] and given.pop("is_stable", "true") in ("true", "false")
            fits = fits and given == {"k": str(k)}
        else:
            fits = all(one == shapes[0] for one in shapes) and len(operation.results) == 1 and not given
        if not fits:
            raise self._refusal(f"a composite operation {name} with other types or settings than JAX makes it with")
        return self._call(callee, (None,) * len(operation.operands))

    def _custom_call(
        self,
        operation: inside.Operation,
        operands: Sequence[Tensor],
        results: Sequence[Tensor],
    ) -> int:
        attributes: Any = operation.attributes
        target = str(attributes["call_target_name"]).strip('"')
        if target not in lapack.TARGETS:
            raise self._refusal(
                f"a custom call of {target[:80]!r}, and only LAPACK's are allowed that jax.numpy.linalg makes for "
                "cholesky, eigh, inv, qr, solve, svd and triangular solve"
            )
        texts = {str(key): str(attributes[key]) for key in attributes}
        settings: dict[str, int] = {}
        if "mhlo.backend_config" in attributes:
            for entry in attributes["mhlo.backend_config"]:
                text, _, kind = str(entry.attr).partition(" : ")
                settings[str(entry.name)] = int(text) if kind == "ui8" and text.isdecimal() else -1
        layouts = tuple(
            [inside.integers(one) for one in attributes[key]] if key in attributes else []
            for key in ("operand_layouts", "result_layouts")
        )
        aliases = (
            [str(one) for one in attributes["output_operand_aliases"]] if "output_operand_aliases" in texts else []
        )
        plain = (
            "mhlo.backend_config" in texts  # which makes it a call of a typed handler, and no bare pointer
            and texts.get("api_version", "4 : i32") == "4 : i32"
            and texts.get("backend_config", "") in ("", '""', "{}")
            and texts.get("called_computations", "[]") == "[]"
            and texts.get("has_side_effect", "false") == "false"
        )
        work = lapack.work_of(target, operands, results, settings, (layouts[0], layouts[1]), aliases)
        if not plain or work is None:
            raise self._refusal(
                f"a custom call of {target} with other shapes or settings than jax.numpy.linalg makes it with",
                f"matrices may have up to {lapack.LARGEST:,} rows and columns; export it with jax.export",
            )
        return work

    def _combining(
        self,
        operation: inside.Operation,
        operands: Sequence[Tensor],
        results: Sequence[Tensor],
        known: Known,
    ) -> Cost:
        block = self._block(operation, 0)
        inner = 0
        for argument in block.arguments:
            if self._tensor(argument)[0] != ():
                raise self._refusal(f"a {operation.name} whose function takes arrays")
        for view in block.operations:
            one = view.operation
            if one.name not in ELEMENTWISE and one.name != "stablehlo.return":
                raise self._refusal(f"the operation {one.name} inside a {operation.name}", "only arithmetic is allowed")
            self._operation(one, dict(known), 0)
            inner += 1
        sizes = [math.prod(shape) for shape, _ in operands]
        if operation.name == "stablehlo.sort":
            if not is_order(block):
                raise self._refusal(
                    "a sort whose comparison is not proven to be an order",
                    "use jax.numpy.sort or argsort, or lax.sort with num_keys=1",
                )
            times = sum(sizes) * max(1, sizes[0]).bit_length()
        elif operation.name == "stablehlo.reduce_window":
            window = math.prod(inside.integers(operation.attributes["window_dimensions"]))
            times = sum(math.prod(shape) for shape, _ in results) * window
        else:
            times = sum(sizes)
        total = sum(sizes) + sum(math.prod(shape) for shape, _ in results)
        return Cost(total + times * inner + STEP_WORK, 1 + inner)
