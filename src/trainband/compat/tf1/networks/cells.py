"""Recurrent cells: one step of a recurrent network, from inputs and a state to outputs and the next state."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Sequence
from typing import Any

from trainband.compat.ops import array, clipping, math, matrices
from trainband.compat.ops.shapes import TensorShape, dims_of
from trainband.compat.tf1.graphs.graph import get_default_graph
from trainband.compat.tf1.graphs.nest import flatten, pack_like
from trainband.compat.tf1.graphs.record import convert
from trainband.compat.tf1.networks.core import channels_of
from trainband.compat.tf1.networks.layer import InputSpec, Layer
from trainband.compat.tf1.operations.array import concat, split
from trainband.compat.tf1.operations.initializers import Constant, Zeros
from trainband.compat.tf1.operations.recorder import recorded
from trainband.compat.tf1.operations.variable_scope import variable_scope

sigmoid, tanh = recorded(math.sigmoid), recorded(math.tanh)
_matmul = recorded(matrices.matmul)


class LSTMStateTuple(namedtuple("LSTMStateTuple", ("c", "h"))):
    """The state of an LSTM: the cell's memory `c` and its output `h`."""

    __slots__ = ()

    @property
    def dtype(self) -> Any:
        """The dtype of both."""
        return self.c.dtype


class RNNCell(Layer):
    """A recurrent cell. Subclasses define `state_size`, `output_size` and `call(inputs, state)`."""

    def __init__(self, trainable: bool = True, name: str | None = None, dtype: Any = None, **more: Any) -> None:
        super().__init__(trainable, name, dtype, **more)

    def __call__(self, inputs: Any, state: Any = None, scope: Any = None, *args: Any, **more: Any) -> Any:
        """(the outputs, the next state)."""
        return super().__call__(inputs, state, *args, scope=scope, **more)

    @property
    def state_size(self) -> Any:
        """The sizes of the state: a number, or nested tuples of them."""
        raise NotImplementedError("Abstract method")

    @property
    def output_size(self) -> Any:
        """The size of the outputs."""
        raise NotImplementedError("Abstract method")

    def zero_state(self, batch_size: Any, dtype: Any) -> Any:
        """A state that is all zero."""
        with get_default_graph().name_scope(f"{type(self).__name__}ZeroState"):
            return zeros_of(self.state_size, batch_size, dtype)

    def get_initial_state(self, inputs: Any = None, batch_size: Any = None, dtype: Any = None) -> Any:
        """A state that is all zero, for inputs or for a number of examples."""
        if inputs is not None:
            tensor = convert(inputs)
            batch_size, dtype = recorded(array.shape)(tensor)[0], tensor.dtype
        return self.zero_state(batch_size, dtype)


def zeros_of(sizes: Any, batch_size: Any, dtype: Any) -> Any:
    """Zeros of the sizes of a state or of outputs, for a number of examples."""
    leaves = [sizes] if isinstance(sizes, TensorShape) else flatten(sizes)
    made = [recorded(array.zeros)([batch_size, *_sizes(one)], dtype) for one in leaves]
    return made[0] if isinstance(sizes, TensorShape) else pack_like(sizes, made)


def _sizes(size: Any) -> list[Any]:
    return list(dims_of(size) or ()) if isinstance(size, TensorShape) else [int(size)]


class _Cell(RNNCell):
    """A cell of a number of units, with parameters that TensorFlow's cells share."""

    def __init__(self, num_units: Any, activation: Any, reuse: Any, name: str | None, dtype: Any, more: Any) -> None:
        super().__init__(name=name, dtype=dtype, _reuse=reuse, **more)
        self._num_units = int(num_units)
        self._activation = tanh if activation is None else activation
        self.input_spec = InputSpec(ndim=2)

    @property
    def state_size(self) -> Any:
        """The number of units."""
        return self._num_units

    @property
    def output_size(self) -> Any:
        """The number of units."""
        return self._num_units

    def _linear(self, inputs: Any, state: Any, kernel: Any, bias: Any) -> Any:
        return _matmul(concat([inputs, state], 1), kernel) + bias


class BasicRNNCell(_Cell):
    """activation([inputs, state] kernel + bias)."""

    def __init__(
        self,
        num_units: Any,
        activation: Any = None,
        reuse: Any = None,
        name: str | None = None,
        dtype: Any = None,
        **more: Any,
    ) -> None:
        super().__init__(num_units, activation, reuse, name, dtype, more)

    def build(self, input_shape: Any) -> None:
        """Creates the kernel and the bias."""
        size = channels_of(input_shape, "BasicRNNCell") + self._num_units
        self._kernel = self.add_variable("kernel", [size, self._num_units])
        self._bias = self.add_variable("bias", [self._num_units], initializer=Zeros())
        self.built = True

    def call(self, inputs: Any, state: Any) -> Any:
        """(the outputs, the next state)."""
        outputs = self._activation(self._linear(inputs, state, self._kernel, self._bias))
        return outputs, outputs


class GRUCell(_Cell):
    """Cho's gated recurrent unit."""

    def __init__(
        self,
        num_units: Any,
        activation: Any = None,
        reuse: Any = None,
        kernel_initializer: Any = None,
        bias_initializer: Any = None,
        name: str | None = None,
        dtype: Any = None,
        **more: Any,
    ) -> None:
        super().__init__(num_units, activation, reuse, name, dtype, more)
        self._first = kernel_initializer, bias_initializer

    def build(self, input_shape: Any) -> None:
        """Creates the kernels and the biases."""
        units = self._num_units
        size = channels_of(input_shape, "GRUCell") + units
        kernel, bias = self._first
        self._gate_kernel = self.add_variable("gates/kernel", [size, 2 * units], initializer=kernel)
        self._gate_bias = self.add_variable("gates/bias", [2 * units], initializer=bias or Constant(1.0))
        self._candidate_kernel = self.add_variable("candidate/kernel", [size, units], initializer=kernel)
        self._candidate_bias = self.add_variable("candidate/bias", [units], initializer=bias or Zeros())
        self.built = True

    def call(self, inputs: Any, state: Any) -> Any:
        """(the outputs, the next state)."""
        gates = sigmoid(self._linear(inputs, state, self._gate_kernel, self._gate_bias))
        reset, keep = split(gates, 2, 1)
        candidate = self._activation(
            self._linear(inputs, reset * state, self._candidate_kernel, self._candidate_bias)
        )  # fmt: skip
        outputs = keep * state + (1 - keep) * candidate
        return outputs, outputs


class LSTMCell(_Cell):
    """Long short-term memory, with peepholes, clipping and a projection of the outputs where they are asked for."""

    def __init__(
        self,
        num_units: Any,
        use_peepholes: bool = False,
        cell_clip: float | None = None,
        initializer: Any = None,
        num_proj: int | None = None,
        proj_clip: float | None = None,
        num_unit_shards: Any = None,  # noqa: ARG002 - one kernel
        num_proj_shards: Any = None,  # noqa: ARG002
        forget_bias: float = 1.0,
        state_is_tuple: bool = True,
        activation: Any = None,
        reuse: Any = None,
        name: str | None = None,
        dtype: Any = None,
        **more: Any,
    ) -> None:
        super().__init__(num_units, activation, reuse, name, dtype, more)
        self._peepholes, self._initializer, self._forget_bias = use_peepholes, initializer, forget_bias
        self._cell_clip, self._proj, self._proj_clip = cell_clip, num_proj, proj_clip
        self._state_is_tuple = state_is_tuple

    @property
    def state_size(self) -> Any:
        """The sizes of the memory and of the outputs."""
        pair = self._num_units, self.output_size
        return LSTMStateTuple(*pair) if self._state_is_tuple else sum(pair)

    @property
    def output_size(self) -> Any:
        """The number of units, or of what they are projected to."""
        return self._num_units if self._proj is None else int(self._proj)

    def build(self, input_shape: Any) -> None:
        """Creates the kernel, the bias and what else is asked for."""
        units = self._num_units
        size = channels_of(input_shape, type(self).__name__) + self.output_size
        self._kernel = self.add_variable("kernel", [size, 4 * units], initializer=self._initializer)
        self._bias = self.add_variable("bias", [4 * units], initializer=Zeros())
        if self._peepholes:
            self._diagonals = [
                self.add_variable(f"w_{gate}_diag", [units], initializer=self._initializer) for gate in "fio"
            ]
        if self._proj is not None:
            self._proj_kernel = self.add_variable(
                "projection/kernel", [units, self.output_size], initializer=self._initializer
            )
        self.built = True

    def call(self, inputs: Any, state: Any) -> Any:
        """(the outputs, the next state)."""
        sizes = [self._num_units, self.output_size]
        memory, previous = state if self._state_is_tuple else split(state, sizes, 1)
        i, j, f, o = split(self._linear(inputs, previous, self._kernel, self._bias), 4, 1)
        f = f + self._forget_bias
        if self._peepholes:
            f, i = f + self._diagonals[0] * memory, i + self._diagonals[1] * memory
        memory = sigmoid(f) * memory + sigmoid(i) * self._activation(j)
        memory = _clipped(memory, self._cell_clip)
        if self._peepholes:
            o = o + self._diagonals[2] * memory
        outputs = sigmoid(o) * self._activation(memory)
        if self._proj is not None:
            outputs = _clipped(_matmul(outputs, self._proj_kernel), self._proj_clip)
        return outputs, LSTMStateTuple(memory, outputs) if self._state_is_tuple else concat([memory, outputs], 1)


def _clipped(values: Any, limit: float | None) -> Any:
    if limit is None or limit <= 0:
        return values
    return recorded(clipping.clip_by_value)(values, -limit, limit)


class BasicLSTMCell(LSTMCell):
    """Long short-term memory without additions."""

    def __init__(
        self,
        num_units: Any,
        forget_bias: float = 1.0,
        state_is_tuple: bool = True,
        activation: Any = None,
        reuse: Any = None,
        name: str | None = None,
        dtype: Any = None,
        **more: Any,
    ) -> None:
        if isinstance(activation, int):  # TensorFlow 0.x: the size of the inputs stood here
            activation = None
        super().__init__(
            num_units,
            forget_bias=forget_bias,
            state_is_tuple=state_is_tuple,
            activation=activation,
            reuse=reuse,
            name=name,
            dtype=dtype,
            **more,
        )


class LSTMBlockCell(LSTMCell):
    """Long short-term memory, as TensorFlow's fused kernel computes it."""

    def __init__(
        self,
        num_units: Any,
        forget_bias: float = 1.0,
        cell_clip: float | None = None,
        use_peephole: bool = False,
        dtype: Any = None,
        reuse: Any = None,
        name: str = "lstm_cell",
    ) -> None:
        super().__init__(
            num_units, use_peephole, cell_clip, forget_bias=forget_bias, dtype=dtype, reuse=reuse, name=name
        )  # fmt: skip


class MultiRNNCell(RNNCell):
    """Several cells, each of which gets the outputs of the one before.

    Raises:
      ValueError: there is none.
    """

    def __init__(self, cells: Sequence[Any], state_is_tuple: bool = True) -> None:
        super().__init__()
        if not isinstance(cells, list | tuple):
            raise TypeError(f"cells must be a list or tuple, but saw: {cells}.")
        if not cells:
            raise ValueError("Must specify at least one cell for MultiRNNCell.")
        self._cells, self._state_is_tuple = list(cells), state_is_tuple

    @property
    def cells(self) -> list[Any]:
        """The cells."""
        return self._cells

    @property
    def state_size(self) -> Any:
        """The sizes of the cells' states."""
        sizes = [cell.state_size for cell in self._cells]
        return tuple(sizes) if self._state_is_tuple else sum(sizes)

    @property
    def output_size(self) -> Any:
        """The size of the last cell's outputs."""
        return self._cells[-1].output_size

    def zero_state(self, batch_size: Any, dtype: Any) -> Any:
        """A state that is all zero."""
        if not self._state_is_tuple:
            return super().zero_state(batch_size, dtype)
        with get_default_graph().name_scope("MultiRNNCellZeroState"):
            return tuple(cell.zero_state(batch_size, dtype) for cell in self._cells)

    def call(self, inputs: Any, state: Any) -> Any:
        """(the last outputs, the next states)."""
        states = state if self._state_is_tuple else split(state, [cell.state_size for cell in self._cells], 1)
        if len(states) != len(self._cells):
            raise ValueError(f"Expected state to be a tuple of length {len(self._cells)}, but received: {state}")
        nexts = []
        for number, (cell, one) in enumerate(zip(self._cells, states, strict=True)):
            with variable_scope(f"cell_{number}"):
                inputs, after = cell(inputs, one)
            nexts.append(after)
        return inputs, tuple(nexts) if self._state_is_tuple else concat(nexts, 1)

    @property
    def trainable_weights(self) -> list[Any]:
        """The cells' variables that are trained."""
        return [one for cell in self._cells for one in cell.trainable_weights]

    @property
    def non_trainable_weights(self) -> list[Any]:
        """The cells' variables that are not trained."""
        return [one for cell in self._cells for one in cell.non_trainable_weights]

    @property
    def weights(self) -> list[Any]:
        """The cells' variables."""
        return [*self.trainable_weights, *self.non_trainable_weights]

    trainable_variables = trainable_weights
    variables = weights
