"""Loops in JAX, with a backward pass for loops whose length is unknown.

The number of iterations of a `while_loop` is not known before it runs, and JAX does not differentiate such loops. In
the forward pass, the values of some iterations are kept: all at first; whenever `KEPT` places are full, every
second one is dropped, and from then on half as many are kept. In the backward pass, the values of each iteration
are computed again from the kept ones before it. Memory is bounded; the work is that of a plain loop up to `KEPT`
iterations, and grows with the square of their number beyond that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trainband.compat.ops import interrupt
from trainband.compat.ops.arrays import is_computed

KEPT = 128
"""Iterations whose values are kept in the forward pass."""

Continues = Callable[[Any, Sequence[Any], Any], Any]
Once = Callable[[Any, Sequence[Any], Any], Any]


def run_loop(
    continues: Continues,
    once: Once,
    begin: Any,
    constants: Sequence[Any],
    *,
    rounds: int | None,
    most: Any,
    differentiable: bool,
) -> Any:
    """Return the values after a loop.

    Args:
      continues: of (values, constants, number of the iteration): whether there is another iteration.
      once: of (values, constants, number of the iteration): the next values.
      begin: the first values, a pytree of arrays.
      constants: other values that both use.
      rounds: the number of iterations, if it is known.
      most: the largest number of iterations.
      differentiable: whether a derivative may be taken.
    """
    if rounds is not None:
        return _counted(once, begin, constants, rounds)
    numeric = [i for i, one in enumerate(constants) if is_computed(one)]  # what is known stays known inside
    fixed = [constants[i] for i in numeric]

    def whole(numbers: Sequence[Any]) -> list[Any]:
        found = list(constants)
        for i, number in zip(numeric, numbers, strict=True):
            found[i] = number
        return found

    def check(values: Any, numbers: Sequence[Any], number: Any) -> Any:
        return continues(values, whole(numbers), number)

    def body(values: Any, numbers: Sequence[Any], number: Any) -> Any:
        return once(values, whole(numbers), number)

    return (_kept if differentiable else _plain_loop)(check, body, most)(begin, fixed)


def _counted(once: Once, begin: Any, constants: Sequence[Any], rounds: int) -> Any:
    def scanned(values: Any, number: Any) -> tuple[Any, None]:
        return once(values, constants, number), None

    try:
        found, _ = jax.lax.scan(scanned, begin, jnp.arange(rounds, dtype=jnp.int32))
    except TypeError as exc:
        if "carry" not in str(exc):
            raise
        found = begin  # shapes change from one round to the next
        for number in range(rounds):
            found = once(found, constants, jnp.int32(number))
    return found


def _is_text(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype == object


def _goes_on(continues: Any, number: Any, most: Any) -> Any:
    allowed = continues if most is None else jnp.logical_and(continues, number < most)
    return jnp.logical_and(allowed, jnp.logical_not(interrupt.asked(number)))


def _plain_loop(continues: Continues, once: Once, most: Any) -> Callable[[Any, Sequence[Any]], Any]:
    return lambda begin, constants: _plain(continues, once, begin, constants, most)


def _plain(continues: Continues, once: Once, begin: Any, constants: Sequence[Any], most: Any) -> Any:
    def check(carry: Any) -> Any:
        number, values = carry
        return _goes_on(continues(values, constants, number), number, most)

    def body(carry: Any) -> Any:
        number, values = carry
        return number + 1, once(values, constants, number)

    return jax.lax.while_loop(check, body, (jnp.int32(0), begin))[1]


def _kept(continues: Continues, once: Once, most: Any) -> Callable[[Any, Sequence[Any]], Any]:
    """The loop as a function of (first values, constants) that has a derivative by both."""

    @jax.custom_vjp
    def loop(begin: Any, constants: Sequence[Any]) -> Any:
        return _plain(continues, once, begin, constants, most)

    def forward(begin: Any, constants: Sequence[Any]) -> tuple[Any, Any]:
        def check(carry: Any) -> Any:
            number, values, _, _ = carry
            return _goes_on(continues(values, constants, number), number, most)

        def body(carry: Any) -> Any:
            number, values, places, stride = carry
            full = number // stride >= KEPT
            stride = jnp.where(full, stride * 2, stride)
            places = jax.lax.cond(full, _halved, lambda p: p, places)
            # The place KEPT is for values that are dropped.
            here = jnp.where(number % stride == 0, number // stride, KEPT)
            places = jax.tree.map(lambda p, v: p.at[here].set(v), places, values)
            return number + 1, once(values, constants, number), places, stride

        places = jax.tree.map(lambda v: jnp.zeros((KEPT + 1, *v.shape), v.dtype), begin)
        number, values, places, stride = jax.lax.while_loop(check, body, (jnp.int32(0), begin, places, jnp.int32(1)))
        return values, (number, places, stride, constants, begin)

    def backward(kept: Any, cotangent: Any) -> Any:
        number, places, stride, constants, begin = kept
        floats, put_back = _floating(constants)

        def at(round_: Any) -> Any:
            place = round_ // stride
            start = jax.tree.map(lambda p: p[place], places)
            first = place * stride
            return jax.lax.fori_loop(first, round_, lambda i, v: once(v, constants, i), start)

        def body(carry: Any) -> Any:
            left, pulled, sums = carry
            here = left - 1
            values = at(here)
            moving, with_whole = _floating(values)

            def step(some: Any, fixed: Any) -> Any:
                return _floating(once(with_whole(some), put_back(fixed), here))[0]

            _, pull_back = jax.vjp(step, moving, floats)
            pulled, more = pull_back(pulled)
            return here, pulled, jax.tree.map(jnp.add, sums, more)

        pulled = _floating_cotangent(cotangent, begin)
        zeros = jax.tree.map(jnp.zeros_like, floats)
        _, pulled, sums = jax.lax.while_loop(lambda carry: carry[0] > 0, body, (number, pulled, zeros))
        return _as_cotangent(pulled, begin), _as_cotangent(sums, constants)

    loop.defvjp(forward, backward)
    return loop


def _halved(places: Any) -> Any:
    """Move every second kept value to the front."""
    return jax.tree.map(lambda p: p.at[: KEPT // 2].set(p[:KEPT:2]), places)


def _is_floating(value: Any) -> bool:
    return bool(jnp.issubdtype(jnp.result_type(value), jnp.floating))


def _floating(tree: Any) -> tuple[list[Any], Callable[[Sequence[Any]], Any]]:
    """Return the floating-point leaves, and a function that puts others in their place."""
    leaves, structure = jax.tree.flatten(tree)
    which = [i for i, leaf in enumerate(leaves) if _is_floating(leaf)]

    def put_back(others: Sequence[Any]) -> Any:
        whole = list(leaves)
        for i, other in zip(which, others, strict=True):
            whole[i] = other
        return jax.tree.unflatten(structure, whole)

    return [leaves[i] for i in which], put_back


def _floating_cotangent(cotangent: Any, like: Any) -> list[Any]:
    kinds = jax.tree.leaves(like)
    return [c for c, kind in zip(jax.tree.leaves(cotangent), kinds, strict=True) if _is_floating(kind)]


def _as_cotangent(floats: Sequence[Any], like: Any) -> Any:
    """Return a cotangent of the whole tree; integers have JAX's dtype `float0`."""
    rest = iter(floats)
    leaves, structure = jax.tree.flatten(like)
    return jax.tree.unflatten(
        structure, [next(rest) if _is_floating(leaf) else np.zeros(leaf.shape, jax.dtypes.float0) for leaf in leaves]
    )
