"""Control flow by the values of tensors, and scopes that change nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trainband.compat.ops.checks import Checked, check_number, noting
from trainband.compat.tf2.eager.execute import compute, convert, frozen
from trainband.compat.tf2.eager.structure import flatten, map_structure, pack
from trainband.compat.tf2.eager.tensor import Tensor
from trainband.compat.tf2.eager.tensor_array import TensorArray


def cond(pred: Any, true_fn: Callable[[], Any], false_fn: Callable[[], Any], name: str | None = None) -> Any:
    """What one of two functions gives. Where the choice is traced, both are, and one runs."""
    del name
    choice = convert(pred)
    if not choice.is_traced:
        return true_fn() if bool(choice.numpy()) else false_fn()
    shapes: list[Any] = []

    def branch(function: Callable[[], Any]) -> Callable[[], list[Any]]:
        def run() -> list[Any]:
            result = function()
            shapes.append(result)
            return [convert(one).array for one in flatten(result)]

        return run

    branches = [Checked(branch(one)) for one in (true_fn, false_fn)]
    found, failed = jax.lax.cond(choice.array, *(one.numbered for one in branches))
    check_number(failed, *branches)
    return pack(shapes[-1], [Tensor(one) for one in found])


def case(
    pred_fn_pairs: Any, default: Any = None, exclusive: bool = False, strict: bool = False, name: Any = None
) -> Any:
    """What the function of the first condition that holds gives."""
    del exclusive, strict, name
    pairs = list(pred_fn_pairs)
    if not pairs:
        return default()
    (pred, function), rest = pairs[0], pairs[1:]
    otherwise = (lambda: case(rest, default)) if rest or default is not None else function
    return cond(pred, function, otherwise)


def switch_case(branch_index: Any, branch_fns: Any, default: Any = None, name: str | None = None) -> Any:
    """What the function with a number gives; the default, or else the last, where there is none."""
    del name
    index = convert(branch_index)
    functions = dict(branch_fns if isinstance(branch_fns, dict) else enumerate(branch_fns))
    otherwise = default or functions[max(functions)]
    if not index.is_traced:
        return functions.get(int(index.numpy()), otherwise)()
    return case([(index == number, function) for number, function in functions.items()], otherwise)


def while_loop(
    cond: Callable[..., Any],
    body: Callable[..., Any],
    loop_vars: Any,
    shape_invariants: Any = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    maximum_iterations: Any = None,
    name: str | None = None,
) -> Any:
    """Repeats `body` as long as `cond` holds."""
    del shape_invariants, parallel_iterations, back_prop, swap_memory, name
    values = map_structure(_loop_variable, loop_vars)
    limit = None if maximum_iterations is None else int(convert(maximum_iterations))
    leaves = flatten(values)
    if not any(isinstance(one, Tensor) and one.is_traced for one in leaves):
        rounds = 0
        while (limit is None or rounds < limit) and bool(convert(cond(*values)).numpy()):
            values = _as_list(body(*values), values)
            rounds += 1
        return values

    if any(isinstance(one, TensorArray) for one in leaves):
        raise NotImplementedError("a TensorArray in a loop that is traced")  # the function runs as it stands

    def holds(arrays: Any) -> Any:
        return convert(cond(*pack(values, [Tensor(one) for one in arrays]))).array

    def following(arrays: Any) -> list[Any]:
        new = _as_list(body(*pack(values, [Tensor(one) for one in arrays])), values)
        return [convert(one).array for one in flatten(new)]

    judge, step = Checked(holds), Checked(following)

    def goes_on(state: Any) -> Any:
        rounds, arrays, failed = state
        with noting(None):  # `once` checks it
            good = holds(arrays) & (failed == 0)
        return good if limit is None else good & (rounds < limit)

    def once(state: Any) -> Any:
        rounds, arrays, _ = state
        new, failed = step.numbered(arrays)
        _, failed_next = judge.numbered(new)
        return rounds + 1, new, jnp.where(failed == 0, failed_next, failed)

    first = [one.array for one in leaves]
    _, arrays, failed = jax.lax.while_loop(goes_on, once, (np.int32(0), first, judge.numbered(first)[1]))
    check_number(failed, judge, step)
    return pack(values, [Tensor(one) for one in arrays])


def _as_list(value: Any, like: Any) -> Any:
    single = not isinstance(value, list | tuple)
    return map_structure(_loop_variable, type(like)([value]) if single else type(like)(value))


def _loop_variable(value: Any) -> Any:
    return value if isinstance(value, TensorArray) else convert(value)


def map_fn(fn: Callable[..., Any], elems: Any, dtype: Any = None, fn_output_signature: Any = None, **_: Any) -> Any:
    """What a function gives for each row, one above the other."""
    from trainband.compat.ops.array import stack
    from trainband.compat.ops.table import op_of
    from trainband.compat.tf2.eager.execute import run

    del dtype, fn_output_signature
    rows = map_structure(convert, elems)
    count = len(flatten(rows)[0])
    found = [fn(map_structure(lambda one, i=i: one[i], rows)) for i in range(count)]
    return map_structure(lambda *parts: run(op_of(stack), {"values": list(parts), "axis": 0}), *found)


def group(*inputs: Any, **_: Any) -> None:
    """Nothing: all inputs have been computed."""
    del inputs


def no_op(name: str | None = None) -> None:
    """Nothing."""
    del name


@contextmanager
def control_dependencies(control_inputs: Any) -> Iterator[None]:
    """A scope that changes nothing: operations run in the order of the script."""
    del control_inputs
    yield


class name_scope:  # noqa: N801 - TensorFlow's name
    """A scope that changes nothing."""

    def __init__(self, name: str = "") -> None:
        self.name = name

    def __enter__(self) -> str:
        return self.name

    def __exit__(self, *_: object) -> None:
        pass


@contextmanager
def device(device_name: Any) -> Iterator[None]:
    """A scope that changes nothing: JAX places what is computed."""
    del device_name
    yield


def custom_gradient(f: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose derivatives the script gives: `f` returns what it computes, and the function for that."""
    made: dict[Any, tuple[Any, list[Any]]] = {}

    def call(*args: Any, **kwargs: Any) -> Any:
        tensors = [convert(one) for one in args]
        key = (frozen(kwargs), len(tensors))
        if key not in made:
            made[key] = _with_gradient(f, kwargs)
        function, structures = made[key]
        results = compute(("custom", id(function)), function, tensors)
        return pack(structures[-1], results)

    return call


def _with_gradient(f: Callable[..., Any], keywords: Any) -> tuple[Any, list[Any]]:
    """The function of arrays, and a list that gets the structure of its results when it is traced."""
    structures: list[Any] = []

    def forward(*arrays: Any) -> tuple[tuple[Any, ...], Any]:
        value, pull = f(*map(Tensor, arrays), **keywords)
        structures[:] = [map_structure(lambda _: None, value)]
        return tuple(convert(one).array for one in flatten(value)), pull

    checked = Checked(lambda *arrays: forward(*arrays)[0])

    @jax.custom_vjp
    def numbered(*arrays: Any) -> tuple[tuple[Any, ...], Any]:
        return checked.numbered(*arrays)

    def function(*arrays: Any) -> tuple[Any, ...]:
        found, failed = numbered(*arrays)
        check_number(failed, checked)
        return found

    def pulled(arrays: Any, cotangents: Any) -> tuple[Any, ...]:
        with noting(None):  # they have been checked when they were computed
            _, pull = forward(*arrays)
            found = pull(*map(Tensor, cotangents[0]))
        several = found if isinstance(found, list | tuple) else (found,)
        return tuple(
            np.zeros(array.shape, array.dtype) if one is None else convert(one).array
            for one, array in zip(several, arrays, strict=True)
        )

    numbered.defvjp(lambda *arrays: (checked.numbered(*arrays), arrays), pulled)
    return function, structures


def recompute_grad(f: Callable[..., Any]) -> Callable[..., Any]:
    """The function itself: XLA decides what is computed again."""
    return f
