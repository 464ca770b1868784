"""Cells around cells: dropout, residual connections, projections, embeddings and layer normalisation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from trainband.compat.ops import array, math, matrices, normalization, random
from trainband.compat.ops.shapes import TensorShape
from trainband.compat.tf1.graphs.graph import get_default_graph
from trainband.compat.tf1.graphs.nest import flatten, pack_like
from trainband.compat.tf1.networks.cells import LSTMStateTuple, RNNCell, sigmoid, tanh
from trainband.compat.tf1.networks.core import channels_of
from trainband.compat.tf1.operations.array import concat, convert_to_tensor, split
from trainband.compat.tf1.operations.embedding import embedding_lookup
from trainband.compat.tf1.operations.initializers import Constant, RandomUniform, Zeros
from trainband.compat.tf1.operations.recorder import recorded
from trainband.compat.tf1.operations.variable_scope import get_variable, variable_scope
from trainband.runtime.overrides import override

_dropout, _floor = recorded(random.dropout), recorded(math.floor)
_matmul = recorded(matrices.matmul)


class _Wrapper(RNNCell):
    """A cell around another, without variables or a scope of its own."""

    def __init__(self, cell: Any, **more: Any) -> None:
        super().__init__(**more)
        self._cell = cell

    @property
    def wrapped_cell(self) -> Any:
        """The cell inside."""
        return self._cell

    cell = wrapped_cell

    @property
    def state_size(self) -> Any:
        """That of the cell inside."""
        return self._cell.state_size

    @property
    def output_size(self) -> Any:
        """That of the cell inside."""
        return self._cell.output_size

    def zero_state(self, batch_size: Any, dtype: Any) -> Any:
        """That of the cell inside."""
        return self._cell.zero_state(batch_size, dtype)

    @property
    def trainable_weights(self) -> list[Any]:
        """Those of the cell inside."""
        return list(self._cell.trainable_weights)

    @property
    def non_trainable_weights(self) -> list[Any]:
        """Those of the cell inside."""
        return list(self._cell.non_trainable_weights)

    @property
    def weights(self) -> list[Any]:
        """Those of the cell inside."""
        return list(self._cell.weights)

    trainable_variables = trainable_weights
    variables = weights


def _is_less_than_one(keep_prob: Any) -> bool:
    return not isinstance(keep_prob, int | float) or keep_prob < 1


class DropoutWrapper(_Wrapper):
    """Dropout of a cell's inputs, outputs and state. `variational_recurrent` drops the same elements in each step."""

    def __init__(
        self,
        cell: Any,
        input_keep_prob: Any = 1.0,
        output_keep_prob: Any = 1.0,
        state_keep_prob: Any = 1.0,
        variational_recurrent: bool = False,
        input_size: Any = None,
        dtype: Any = None,
        seed: int | None = None,
        dropout_state_filter_visitor: Callable[[Any], Any] | None = None,
        **more: Any,
    ) -> None:
        super().__init__(cell, dtype=dtype, **more)
        if variational_recurrent and dtype is None:
            raise ValueError("When variational_recurrent=True, dtype must be provided")
        if variational_recurrent and _is_less_than_one(input_keep_prob) and input_size is None:
            raise ValueError("When variational_recurrent=True and input_keep_prob < 1.0, input_size must be provided")
        self._keep = {"input": input_keep_prob, "output": output_keep_prob, "state": state_keep_prob}
        self._seed = seed
        self._filter = dropout_state_filter_visitor or _all_but_memory
        self._noise: dict[str, list[Any]] = {}
        if variational_recurrent:
            sizes = {"input": input_size, "output": cell.output_size, "state": cell.state_size}
            for place, keep in self._keep.items():
                if _is_less_than_one(keep):
                    leaves = [sizes[place]] if isinstance(sizes[place], TensorShape) else flatten(sizes[place])
                    self._noise[place] = [self._drawn(one, dtype) for one in leaves]

    def _drawn(self, size: Any, dtype: Any) -> Any:
        return recorded(random.random_uniform)([1, *TensorShape(size).as_list()], dtype=dtype, seed=self._seed)

    def _dropped(self, values: Any, place: str, chosen: Any = True) -> Any:
        keep = self._keep[place]
        if not _is_less_than_one(keep):
            return values
        flat = flatten(values)
        which = [chosen] * len(flat) if isinstance(chosen, bool) else flatten(chosen)
        found = []
        for number, (one, is_chosen) in enumerate(zip(flat, which, strict=True)):
            if not is_chosen:
                found.append(one)
            elif place in self._noise:
                found.append(one / keep * _floor(self._noise[place][number] + keep))
            else:
                found.append(_dropout(one, keep_prob=keep, seed=self._seed))
        return pack_like(values, found)

    @override
    def __call__(self, inputs: Any, state: Any = None, scope: Any = None, *args: Any, **more: Any) -> Any:
        """(the outputs, the next state)."""
        outputs, after = self._cell(self._dropped(inputs, "input"), state, *args, scope=scope, **more)
        return self._dropped(outputs, "output"), self._dropped(after, "state", _chosen(after, self._filter))


def _all_but_memory(state: Any) -> Any:
    return LSTMStateTuple(c=False, h=True) if isinstance(state, LSTMStateTuple) else True


def _chosen(state: Any, visit: Callable[[Any], Any]) -> Any:
    """Which leaves of a state dropout applies to."""
    if isinstance(state, list | tuple) and not isinstance(state, LSTMStateTuple):
        return [_chosen(one, visit) for one in state]
    found = visit(state)
    return [found] * len(flatten(state)) if isinstance(found, bool) else found


class ResidualWrapper(_Wrapper):
    """Adds a cell's inputs to its outputs."""

    def __init__(self, cell: Any, residual_fn: Callable[[Any, Any], Any] | None = None, **more: Any) -> None:
        super().__init__(cell, **more)
        self._residual_fn = residual_fn

    @override
    def __call__(self, inputs: Any, state: Any = None, scope: Any = None, *args: Any, **more: Any) -> Any:
        """(the outputs, the next state)."""
        outputs, after = self._cell(inputs, state, *args, scope=scope, **more)
        if self._residual_fn is not None:
            return self._residual_fn(inputs, outputs), after
        pairs = zip(flatten(inputs), flatten(outputs), strict=True)
        return pack_like(outputs, [convert_to_tensor(a) + b for a, b in pairs]), after


class DeviceWrapper(_Wrapper):
    """A cell whose operations get a device."""

    def __init__(self, cell: Any, device: Any, **more: Any) -> None:
        super().__init__(cell, **more)
        self._device = device

    @override
    def __call__(self, inputs: Any, state: Any = None, scope: Any = None, *args: Any, **more: Any) -> Any:
        """(the outputs, the next state)."""
        with get_default_graph().device(self._device):
            return self._cell(inputs, state, *args, scope=scope, **more)


def _projected(inputs: Any, size: int, bias: bool = True) -> Any:
    """A matrix product with a kernel in the open scope, and a bias."""
    kernel = get_variable("kernel", [channels_of(inputs.shape, "linear"), size], inputs.dtype)
    outputs = _matmul(inputs, kernel)
    return outputs + get_variable("bias", [size], inputs.dtype, Zeros()) if bias else outputs


class OutputProjectionWrapper(_Wrapper):
    """A cell whose outputs are projected to another size."""

    def __init__(self, cell: Any, output_size: int, activation: Any = None, reuse: Any = None) -> None:
        super().__init__(cell, _reuse=reuse)
        self._output_size, self._activation = output_size, activation

    @property
    def output_size(self) -> Any:
        """The size that is projected to."""
        return self._output_size

    def call(self, inputs: Any, state: Any) -> Any:
        """(the outputs, the next state)."""
        outputs, after = self._cell(inputs, state)
        outputs = _projected(outputs, self._output_size)
        return outputs if self._activation is None else self._activation(outputs), after


class InputProjectionWrapper(_Wrapper):
    """A cell whose inputs are projected to another size."""

    def __init__(
        self,
        cell: Any,
        num_proj: int,
        activation: Any = None,
        input_size: Any = None,  # noqa: ARG002 - follows from the inputs
        reuse: Any = None,
    ) -> None:
        super().__init__(cell, _reuse=reuse)
        self._num_proj, self._activation = num_proj, activation

    def call(self, inputs: Any, state: Any) -> Any:
        """(the outputs, the next state)."""
        inner = _projected(inputs, self._num_proj)
        return self._cell(inner if self._activation is None else self._activation(inner), state)


class EmbeddingWrapper(_Wrapper):
    """A cell whose inputs are whole numbers, for each of which there is a vector."""

    def __init__(
        self, cell: Any, embedding_classes: int, embedding_size: int, initializer: Any = None, reuse: Any = None
    ) -> None:
        super().__init__(cell, _reuse=reuse)
        self._shape, self._initializer = [embedding_classes, embedding_size], initializer

    def call(self, inputs: Any, state: Any) -> Any:
        """(the outputs, the next state)."""
        limit = float(np.sqrt(3.0))
        first = self._initializer or RandomUniform(-limit, limit)
        with get_default_graph().device("/cpu:0"):
            vectors = get_variable("embedding", self._shape, flatten(state)[0].dtype, first)
            embedded = embedding_lookup(vectors, recorded(array.reshape)(inputs, [-1]))
        return self._cell(embedded, state)


class LayerNormBasicLSTMCell(RNNCell):
    """Long short-term memory with layer normalisation, and dropout of what is remembered."""

    def __init__(
        self,
        num_units: int,
        forget_bias: float = 1.0,
        input_size: Any = None,  # noqa: ARG002
        activation: Any = tanh,
        layer_norm: bool = True,
        norm_gain: float = 1.0,
        norm_shift: float = 0.0,
        dropout_keep_prob: Any = 1.0,
        dropout_prob_seed: int | None = None,
        reuse: Any = None,
    ) -> None:
        super().__init__(_reuse=reuse)
        self._num_units, self._forget_bias, self._activation = num_units, forget_bias, activation
        self._layer_norm, self._gain, self._shift = layer_norm, norm_gain, norm_shift
        self._keep, self._seed = dropout_keep_prob, dropout_prob_seed

    @property
    def state_size(self) -> Any:
        """The sizes of the memory and of the outputs."""
        return LSTMStateTuple(self._num_units, self._num_units)

    @property
    def output_size(self) -> Any:
        """The number of units."""
        return self._num_units

    def _norm(self, values: Any, scope: str) -> Any:
        if not self._layer_norm:
            return values
        with variable_scope(scope):
            gamma = get_variable("gamma", [self._num_units], values.dtype, Constant(self._gain))
            beta = get_variable("beta", [self._num_units], values.dtype, Constant(self._shift))
        mean, variance = recorded(normalization.moments)(values, [1], keepdims=True)
        return recorded(normalization.batch_normalization)(values, mean, variance, beta, gamma, 1e-12)

    def call(self, inputs: Any, state: Any) -> Any:
        """(the outputs, the next state)."""
        memory, previous = state
        gates = _projected(concat([inputs, previous], 1), 4 * self._num_units, bias=not self._layer_norm)
        names = ("input", "transform", "forget", "output")
        i, j, f, o = (self._norm(one, name) for one, name in zip(split(gates, 4, 1), names, strict=True))
        new = self._activation(j)
        if _is_less_than_one(self._keep):
            new = _dropout(new, keep_prob=self._keep, seed=self._seed)
        memory = self._norm(memory * sigmoid(f + self._forget_bias) + sigmoid(i) * new, "state")
        outputs = self._activation(memory) * sigmoid(o)
        return outputs, LSTMStateTuple(memory, outputs)
