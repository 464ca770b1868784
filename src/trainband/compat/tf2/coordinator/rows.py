"""Functions of some rows: what an update does to each row by itself, it can do to a part of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.extend.core import Literal

from trainband.model.analysis.walker import ELEMENTWISE, IDENTITIES


class NotByRow(Exception):
    """A function does not treat each row by itself."""


def evaluated(
    jaxpr: Any,
    consts: Sequence[Any],
    given: Mapping[Any, Any],
    outputs: Sequence[Any],
    shape: tuple[int, ...],
    rows: int,
) -> list[Any]:
    """The outputs of a jaxpr of which all that has this shape is given with some of its rows only.

    Args:
      given: the values of the inputs that are needed, by their variables.
      rows: how many rows are given.

    Raises:
      NotByRow: something else is computed of these arrays than element by element.
    """
    known: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True)) | dict(given)
    part = (rows, *shape[1:])
    made = {one: eqn for eqn in jaxpr.eqns for one in eqn.outvars}

    def is_whole(one: Any) -> bool:
        return tuple(one.aval.shape) == shape

    def value(one: Any) -> Any:
        if isinstance(one, Literal):
            found = one.val
        else:
            if one not in known:
                if one not in made:
                    raise NotByRow
                compute(made[one])
            found = known[one]
        if is_whole(one) and tuple(jax.numpy.shape(found)) != part:
            raise NotByRow  # a constant of all rows
        return found

    def compute(eqn: Any) -> None:
        touches = any(is_whole(one) for one in (*eqn.invars, *eqn.outvars))
        name, settings = eqn.primitive.name, dict(eqn.primitive.get_bind_params(eqn.params))
        inputs = [value(one) for one in eqn.invars]
        if touches and name == "broadcast_in_dim" and not eqn.invars[0].aval.shape:
            found = jax.numpy.broadcast_to(inputs[0], part)
        elif touches and (
            name not in ELEMENTWISE | IDENTITIES | {"clamp", "integer_pow", "square"}
            or not all(is_whole(one) or not one.aval.shape for one in (*eqn.invars, *eqn.outvars))
        ):
            raise NotByRow
        else:
            found = eqn.primitive.bind(*inputs, **settings)
        known.update(zip(eqn.outvars, found if eqn.primitive.multiple_results else [found], strict=True))

    return [value(one) for one in outputs]
