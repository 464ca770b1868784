"""Recurrent networks: a cell that runs over time. In one direction, the run is a single scan of JAX's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from trainband.compat.ops import array, indexing, math, sequences
from trainband.compat.ops.dtypes import int32
from trainband.compat.ops.shapes import TensorShape
from trainband.compat.tf1.graphs.graph import Operation, Region, Tensor, get_default_graph
from trainband.compat.tf1.graphs.lowering import Frame
from trainband.compat.tf1.graphs.nest import flatten, pack_like
from trainband.compat.tf1.graphs.record import convert, record
from trainband.compat.tf1.graphs.region import (
    Body,
    Function,
    done_before,
    is_pure,
    loop_variable,
    read_before,
    state_of,
)
from trainband.compat.tf1.graphs.where import user_line
from trainband.compat.tf1.operations.array import concat
from trainband.compat.tf1.operations.recorder import recorded
from trainband.compat.tf1.operations.variable_scope import variable_scope

_shape, _transpose = recorded(array.shape), recorded(array.transpose)


def dynamic_rnn(
    cell: Any,
    inputs: Any,
    sequence_length: Any = None,
    initial_state: Any = None,
    dtype: Any = None,
    parallel_iterations: Any = None,  # noqa: ARG001 - the compiler decides
    swap_memory: bool = False,  # noqa: ARG001
    time_major: bool = False,
    scope: Any = None,
) -> Any:
    """(the outputs of each step, the last state) of a cell over sequences [batch, time, ...].

    Beyond the length of a sequence, outputs are 0 and the state stays.

    Raises:
      ValueError: neither a state nor a dtype is given, or the shapes are wrong.
    """
    with variable_scope(scope or "rnn"):
        by_time = [convert(one) if time_major else _swapped(convert(one)) for one in flatten(inputs)]
        batch = _batch_size(by_time[0], 1)
        lengths = _lengths(sequence_length, batch)
        state = _first_state(cell, initial_state, batch, dtype)
        outputs, last = _scanned(cell, pack_like(inputs, by_time), state, lengths)
        if not time_major:
            outputs = pack_like(outputs, [_swapped(one) for one in flatten(outputs)])
        return outputs, last


def _swapped(tensor: Tensor) -> Tensor:
    rank = tensor.shape.ndims
    if rank is None or rank < 2:
        raise ValueError(f"Expected input tensor {tensor.name} to have rank at least 2, but saw shape: {tensor.shape}")
    return _transpose(tensor, [1, 0, *range(2, rank)])  # type: ignore[no-any-return]


def _batch_size(tensor: Tensor, axis: int) -> Any:
    size = tensor.shape.as_list()[axis]
    return _shape(tensor)[axis] if size is None else size


def _lengths(given: Any, batch: Any) -> Tensor | None:
    if given is None:
        return None
    lengths: Tensor = recorded(math.cast)(convert(given), int32)
    if lengths.shape.ndims not in (None, 1):
        raise ValueError(
            f"sequence_length must be a vector of length batch_size, but saw shape: {lengths.shape} (at {user_line()})"
        )
    size = lengths.shape.as_list()[0] if lengths.shape.ndims else None
    if isinstance(batch, int) and size not in (None, batch):
        raise ValueError(f"sequence_length has {size} elements for {batch} sequences (at {user_line()})")
    return lengths


def _first_state(cell: Any, given: Any, batch: Any, dtype: Any) -> Any:
    if given is not None:
        return pack_like(given, [convert(one) for one in flatten(given)])
    if dtype is None:
        raise ValueError("If there is no initial_state, you must give a dtype.")
    return cell.zero_state(batch, dtype)


def _scanned(cell: Any, inputs: Any, state: Any, lengths: Tensor | None) -> Any:
    """Record a cell over the first axis of inputs."""
    graph = get_default_graph()
    xs: list[Tensor] = flatten(inputs)
    starts: list[Tensor] = flatten(state)
    region = Region(graph.region)
    with graph.recording(region):
        now = [loop_variable(x.dtype, _of_step(x.shape)) for x in xs]
        before = [loop_variable(one.dtype, one.shape) for one in starts]
        made, after = cell(pack_like(inputs, now), pack_like(state, before))
        outputs, nexts = ([convert(one) for one in flatten(some)] for some in (made, after))
    _check_state(starts, nexts, cell)
    op = record_steps(region, [*now, *before], outputs, nexts, xs, starts, lengths)
    return pack_like(made, op.outputs[len(nexts) :]), pack_like(after, op.outputs[: len(nexts)])


def record_steps(
    region: Region,
    variables: Sequence[Tensor],
    outputs: Sequence[Tensor],
    nexts: Sequence[Tensor],
    xs: Sequence[Tensor],
    starts: Sequence[Tensor],
    lengths: Tensor | None,
    name: str = "while/Exit",
) -> Operation:
    """Record a region for each step of `xs`.

    Args:
      variables: those that stand for a step of `xs`, and then those that stand for the state.
      outputs: of a step.
      nexts: the next state.
      starts: the first state.
      lengths: after how many steps each sequence ends.
    """
    again = {
        "region": region, "variables": list(variables), "outputs": list(outputs), "nexts": list(nexts),
        "xs": list(xs), "starts": list(starts), "lengths": lengths,
    }  # fmt: skip
    body = Body(region, [*outputs, *nexts], variables)
    early = read_before([body], [one.op for one in (*xs, *starts)])
    reads, writes = state_of([body], always=False)
    step = body.function([*variables, *body.captured])
    names = sorted({v.op_name for v in (*reads, *writes)})
    compute = _scan(step, names, outputs, nexts, (len(xs), len(starts)), has_lengths=lengths is not None)
    steps = xs[0].shape.as_list()[0] if xs[0].shape.ndims is not None else None
    return record(
        "While",
        compute,
        [*xs, *starts, *([] if lengths is None else [lengths]), *body.captured, *early.values()],
        count=len(nexts) + len(outputs),
        dtypes=[one.dtype for one in (*nexts, *outputs)],
        shapes=[
            *(a.shape if a.shape.ndims is not None else b.shape for a, b in zip(starts, nexts, strict=True)),
            *(None if one.shape.ndims is None else [steps, *one.shape.as_list()] for one in outputs),
        ],
        stateful=True,
        control_inputs=done_before([body]),
        reads=reads,
        writes=writes,
        name=name,
        attributes={"regions": (region,), "pure": is_pure([body]), "again": ("Steps", again)},
    )


def _of_step(shape: TensorShape) -> TensorShape:
    return TensorShape(None) if shape.ndims is None else TensorShape(shape.as_list()[1:])


def _check_state(starts: Sequence[Tensor], nexts: Sequence[Tensor], cell: Any) -> None:
    shown = [[f"{one.dtype.name}{one.shape}" for one in some] for some in (starts, nexts)]
    fits = len(starts) == len(nexts) and all(
        a.dtype == b.dtype and a.shape.is_compatible_with(b.shape) for a, b in zip(starts, nexts, strict=True)
    )
    if not fits:
        raise ValueError(f"{cell} turns a state of {shown[0]} into one of {shown[1]} (at {user_line()})")


def _scan(
    step: Function,
    names: Sequence[str],
    outputs: Sequence[Tensor],
    nexts: Sequence[Tensor],
    counts: tuple[int, int],
    *,
    has_lengths: bool,
) -> Callable[..., list[Any]]:
    def compute(frame: Frame, *values: Any) -> list[Any]:
        xs, rest = values[: counts[0]], values[counts[0] :]
        starts, rest = rest[: counts[1]], rest[counts[1] :]
        lengths, captured = (rest[0], rest[1:]) if has_lengths else (None, rest)

        def once(carry: Any, given: Any) -> Any:
            number, state, variables = carry
            keys = None if frame.keys is None else frame.keys.round(number)
            found, after = step(variables, keys, [*given, *state, *captured])
            out = [jnp.asarray(v, t.dtype.numpy) for v, t in zip(found[: len(outputs)], outputs, strict=True)]
            new = [jnp.asarray(v, t.dtype.numpy) for v, t in zip(found[len(outputs) :], nexts, strict=True)]
            if lengths is not None:
                alive = number < lengths
                out = [_chosen(alive, one, jnp.zeros_like(one)) for one in out]
                new = [_chosen(alive, one, old) if one.ndim else one for one, old in zip(new, state, strict=True)]
            return (number + 1, new, {name: jnp.asarray(after[name]) for name in variables}), out

        first = [jnp.asarray(v, t.dtype.numpy) for v, t in zip(starts, nexts, strict=True)]
        begin = (jnp.int32(0), first, {name: jnp.asarray(frame.state[name]) for name in names} | frame.checked())
        (_, last, after), out = jax.lax.scan(once, begin, [jnp.asarray(x) for x in xs])
        frame.state.update(after)
        return [*last, *out]

    return compute


def _chosen(rows: Any, yes: Any, no: Any) -> Any:
    return jnp.where(rows.reshape(-1, *(1,) * (yes.ndim - 1)), yes, no)


def bidirectional_dynamic_rnn(
    cell_fw: Any,
    cell_bw: Any,
    inputs: Any,
    sequence_length: Any = None,
    initial_state_fw: Any = None,
    initial_state_bw: Any = None,
    dtype: Any = None,
    parallel_iterations: Any = None,  # noqa: ARG001
    swap_memory: bool = False,  # noqa: ARG001
    time_major: bool = False,
    scope: Any = None,
) -> Any:
    """((outputs, outputs), (last state, last state)) of two cells: one forwards, one backwards."""

    def backwards(tensor: Any) -> Any:
        x = convert(tensor)
        if sequence_length is None:
            return recorded(array.reverse)(x, [0 if time_major else 1])
        axes = (1, 0) if time_major else (0, 1)  # of the sequences, and of time
        return recorded(sequences.reverse_rows)(x, convert(sequence_length), *axes)

    def each(structure: Any) -> Any:
        return pack_like(structure, [backwards(one) for one in flatten(structure)])

    with variable_scope(scope or "bidirectional_rnn"):
        with variable_scope("fw") as forwards:
            fw, last_fw = dynamic_rnn(
                cell_fw, inputs, sequence_length, initial_state_fw, dtype, time_major=time_major, scope=forwards
            )
        with variable_scope("bw") as back:
            bw, last_bw = dynamic_rnn(
                cell_bw, each(inputs), sequence_length, initial_state_bw, dtype, time_major=time_major, scope=back
            )
        return (fw, each(bw)), (last_fw, last_bw)


def static_rnn(
    cell: Any,
    inputs: Any,
    initial_state: Any = None,
    dtype: Any = None,
    sequence_length: Any = None,
    scope: Any = None,
) -> Any:
    """(the outputs of each step, the last state) of a cell over a list of inputs [batch, ...].

    Raises:
      TypeError, ValueError: there are no inputs, or neither a state nor a dtype.
    """
    if not isinstance(inputs, list | tuple):
        raise TypeError("inputs must be a sequence")
    if not inputs:
        raise ValueError("inputs must not be empty")
    with variable_scope(scope or "rnn") as opened:
        batch = _batch_size(convert(flatten(inputs[0])[0]), 0)
        lengths = _lengths(sequence_length, batch)
        state = _first_state(cell, initial_state, batch, dtype)
        outputs = []
        for number, one in enumerate(inputs):
            if number:
                opened.reuse_variables()
            output, after = cell(one, state)
            if lengths is not None:
                alive = recorded(math.greater)(lengths, number)
                output = _selected(alive, output, None)
                after = _selected(alive, after, state)
            state = after
            outputs.append(output)
        return outputs, state


def _selected(alive: Any, new: Any, old: Any) -> Any:
    """Return the rows of sequences that go on, and in place of others the old ones or zeros."""
    kept = flatten(old) if old is not None else [recorded(array.zeros_like)(one) for one in flatten(new)]
    where = recorded(indexing.where)
    return pack_like(new, [where(alive, a, b) for a, b in zip(flatten(new), kept, strict=True)])


def static_bidirectional_rnn(
    cell_fw: Any,
    cell_bw: Any,
    inputs: Any,
    initial_state_fw: Any = None,
    initial_state_bw: Any = None,
    dtype: Any = None,
    sequence_length: Any = None,
    scope: Any = None,
) -> Any:
    """(both outputs of each step side by side, the last state forwards, that backwards) of two cells."""

    def backwards(steps: Sequence[Any]) -> list[Any]:
        if sequence_length is None:
            return list(reversed(steps))
        flat = [recorded(array.stack)(parts) for parts in zip(*map(flatten, steps), strict=True)]
        turned = [recorded(sequences.reverse_rows)(one, convert(sequence_length), 1, 0) for one in flat]
        unstacked = [recorded(array.unstack)(one, len(steps)) for one in turned]
        return [pack_like(steps[0], parts) for parts in zip(*unstacked, strict=True)]

    with variable_scope(scope or "bidirectional_rnn"):
        with variable_scope("fw") as forwards:
            fw, last_fw = static_rnn(cell_fw, inputs, initial_state_fw, dtype, sequence_length, forwards)
        with variable_scope("bw") as back:
            bw, last_bw = static_rnn(cell_bw, backwards(inputs), initial_state_bw, dtype, sequence_length, back)
        pairs = zip(fw, backwards(bw), strict=True)
        joined = [
            pack_like(a, [concat([x, y], 1) for x, y in zip(flatten(a), flatten(b), strict=True)]) for a, b in pairs
        ]
        return joined, last_fw, last_bw


def stack_bidirectional_dynamic_rnn(
    cells_fw: Sequence[Any],
    cells_bw: Sequence[Any],
    inputs: Any,
    initial_states_fw: Any = None,
    initial_states_bw: Any = None,
    dtype: Any = None,
    sequence_length: Any = None,
    parallel_iterations: Any = None,  # noqa: ARG001
    time_major: bool = False,
    scope: Any = None,
    swap_memory: bool = False,  # noqa: ARG001
) -> Any:
    """(the last layer's outputs side by side, states forwards, states backwards) of several layers of two cells."""
    states_fw, states_bw = [], []
    with variable_scope(scope or "stack_bidirectional_rnn"):
        for number, (cell_fw, cell_bw) in enumerate(zip(cells_fw, cells_bw, strict=True)):
            first = None if initial_states_fw is None else initial_states_fw[number]
            second = None if initial_states_bw is None else initial_states_bw[number]
            with variable_scope(f"cell_{number}"):
                outputs, (fw, bw) = bidirectional_dynamic_rnn(
                    cell_fw, cell_bw, inputs, sequence_length, first, second, dtype, time_major=time_major
                )
                inputs = concat(outputs, 2)
            states_fw.append(fw)
            states_bw.append(bw)
    return inputs, tuple(states_fw), tuple(states_bw)
