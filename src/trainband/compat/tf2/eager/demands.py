"""Demands: the conditions of an operation, checked where the script calls it if its inputs have values by then."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import Literal, jaxpr_as_fun

from trainband.compat.tf1.graphs.errors import InvalidArgumentError

MOST_EQUATIONS = 60
"""Conditions of more equations are not checked apart from the results, since they may take as long as these."""


class Demands:
    """The conditions of a function of arrays.

    Args:
      closed: the jaxpr of the conditions alone.
      messages: of each condition.

    Attributes:
      needed: the numbers of the inputs on which they depend.
      is_quick: whether they are checked apart from the results: they look at whole numbers, and are few equations.
    """

    def __init__(self, closed: Any, needed: Sequence[int], messages: Sequence[str], is_quick: bool) -> None:
        self.needed = tuple(needed)
        self._messages = tuple(messages)
        self.is_quick = is_quick
        self._conditions = jax.jit(jaxpr_as_fun(closed))

    @classmethod
    def of(cls, closed: Any, messages: Sequence[str]) -> Demands | None:
        """Those of a traced function, which come after its results; `None` if there are none."""
        if not messages:
            return None
        jaxpr = closed.jaxpr
        outputs = jaxpr.outvars[len(jaxpr.outvars) - len(messages) :]
        wanted = {one for one in outputs if not isinstance(one, Literal)}
        equations: list[Any] = []
        for one in reversed(jaxpr.eqns):
            if any(output in wanted for output in one.outvars):
                equations.insert(0, one)
                wanted.update(value for value in one.invars if not isinstance(value, Literal))
        needed = [number for number, one in enumerate(jaxpr.invars) if one in wanted]
        whole = all(np.dtype(jaxpr.invars[number].aval.dtype).kind in "iub" for number in needed)
        smaller = jaxpr.replace(
            eqns=equations,
            invars=[jaxpr.invars[number] for number in needed],
            outvars=outputs,
            debug_info=jaxpr.debug_info._replace(arg_names=None, result_paths=None),
        )
        is_quick = whole and sum(_sizes(equations)) <= MOST_EQUATIONS
        return cls(closed.replace(jaxpr=smaller), needed, messages, is_quick)

    def meet(self, inputs: Sequence[Any]) -> None:
        """Checks them.

        Args:
          inputs: the function's tensors. Those that are needed have values.

        Raises:
          InvalidArgumentError: one does not hold.
        """
        with jax.enable_x64(True), jax.ensure_compile_time_eval():
            found = self._conditions(*(inputs[number].input for number in self.needed))
        for held, message in zip(found, self._messages, strict=True):
            if not bool(held):
                raise InvalidArgumentError(None, None, message)


def _sizes(equations: Sequence[Any]) -> Iterator[int]:
    """How many equations there are, part by part; loops count as too many."""
    for one in equations:
        yield MOST_EQUATIONS + 1 if one.primitive.name in ("while", "scan") else 1
        for value in one.params.values():
            for inner in value if isinstance(value, tuple) else (value,):
                yield from _sizes(getattr(inner, "eqns", ()))
