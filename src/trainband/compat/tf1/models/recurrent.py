"""Recurrent layers: `LSTM`, `GRU` and `SimpleRNN`, and `Bidirectional`."""

from __future__ import annotations

from typing import Any, ClassVar

from trainband.compat.ops import array, keras_layers
from trainband.compat.tf1.models.core_layers import now
from trainband.compat.tf1.models.layer import Layer
from trainband.compat.tf1.models.merging import Add, Average, Concatenate, Multiply
from trainband.compat.tf1.models.named import name_of
from trainband.compat.tf1.networks.core import Dropout, channels_of, known_training
from trainband.compat.tf1.networks.layer import Configured, InputSpec, listed
from trainband.compat.tf1.operations.array import concat
from trainband.compat.tf1.operations.initializers import Ones, Zeros
from trainband.compat.tf1.operations.recorder import recorded

_SETTINGS = """units activation='tanh' {gate} use_bias=True kernel_initializer='glorot_uniform'
    recurrent_initializer='orthogonal' bias_initializer='zeros' {forget} kernel_regularizer=None
    recurrent_regularizer=None bias_regularizer=None activity_regularizer=None kernel_constraint=None
    recurrent_constraint=None bias_constraint=None dropout=0.0 recurrent_dropout=0.0 {version} return_sequences=False
    return_state=False go_backwards=False stateful=False unroll=False time_major=False reset_after=False trainable=True
    name=None"""
_zeros, _shape, _stack = recorded(array.zeros), recorded(array.shape), recorded(array.stack)


class _Recurrent(Layer, Configured):
    kind: ClassVar[str]
    gates: ClassVar[int] = 1
    states: ClassVar[int] = 1

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name in ("stateful", "time_major", "recurrent_dropout"):
            if getattr(self, name):
                raise NotImplementedError(f"tf.keras.layers.{type(self).__name__}({name}=...) is not supported.")
        self.supports_masking = True

    def build(self, input_shape: Any) -> None:
        """Creates the kernels and the bias."""
        shape = input_shape[0] if isinstance(input_shape, list) else input_shape
        channels, wide = channels_of(shape, type(self).__name__), self.gates * self.units

        def weight(name: str, kind: str, sizes: list[int], **more: Any) -> Any:
            parts = {part: getattr(self, f"{kind}_{part}") for part in ("initializer", "regularizer", "constraint")}
            return self.add_weight(name, sizes, **{**parts, **more})

        self.input_spec = None if isinstance(input_shape, list) else InputSpec(ndim=3, axes={-1: channels})
        self.kernel = weight("kernel", "kernel", [channels, wide])
        self.recurrent_kernel = weight("recurrent_kernel", "recurrent", [self.units, wide])
        first = self._first_bias if self.kind == "lstm" and self.unit_forget_bias else self.bias_initializer
        sizes = [2, wide] if self.reset_after else [wide]
        self.bias = weight("bias", "bias", sizes, initializer=first) if self.use_bias else None
        self.built = True

    def _first_bias(self, shape: Any, dtype: Any = None) -> Any:
        """The bias of the gate that forgets begins with one."""
        del shape
        zeros, ones = Zeros(), Ones()
        return concat([zeros([self.units], dtype), ones([self.units], dtype), zeros([2 * self.units], dtype)], 0)

    def __call__(self, inputs: Any = None, *args: Any, initial_state: Any = None, **kwargs: Any) -> Any:
        """Return the outputs: of all steps with `return_sequences`, and the last states with `return_state`."""
        given = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
        if initial_state is not None:
            given += initial_state if isinstance(initial_state, list | tuple) else [initial_state]
        return super().__call__(given if len(given) > 1 else given[0], *args, **kwargs)

    def call(self, inputs: Any, mask: Any = None, training: Any = None) -> Any:
        """Return the outputs."""
        x, *states = inputs if isinstance(inputs, list | tuple) else [inputs]
        if isinstance(inputs, list | tuple) and mask is None:
            mask = getattr(x, "_keras_mask", None)
        if self.dropout and known_training(now(training)) is not False:
            noise = _stack([_shape(x)[0], 1, _shape(x)[2]])  # the same for all steps
            x = Dropout(self.dropout, noise).call(x, now(training))
        size = _stack([_shape(x)[0], self.units])
        states = states or [_zeros(size, x.dtype) for _ in range(self.states)]
        bias = self.bias
        if bias is None:
            bias = _zeros([self.gates * self.units], x.dtype)
        gate = getattr(self, "recurrent_activation", self.activation)
        names = name_of(self.activation), name_of(gate)
        if None in names:
            raise ValueError(f"tf.keras.layers.{type(self).__name__} takes only Keras's own activations.")
        every, *last = recorded(keras_layers.keras_recurrence)(
            x, self.kernel, self.recurrent_kernel, bias, states, mask, self.kind, *names, self.go_backwards
        )
        for state in last:
            state.set_shape([x.shape.as_list()[0], self.units])
        outputs = every if self.return_sequences else last[0]
        return [outputs, *last] if self.return_state else outputs

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """Which steps of the outputs count."""
        del inputs
        return mask if self.return_sequences else None


class SimpleRNN(_Recurrent):
    """A recurrent layer whose state is its output."""

    kind = "simple"
    settings = listed(_SETTINGS.format(gate="", forget="", version=""))


class GRU(_Recurrent):
    """Gated recurrent units."""

    kind, gates = "gru", 3
    settings = listed(
        _SETTINGS.format(gate="recurrent_activation='hard_sigmoid'", forget="", version="implementation=1")
    )


class LSTM(_Recurrent):
    """Long short-term memory."""

    kind, gates, states = "lstm", 4, 2
    settings = listed(
        _SETTINGS.format(
            gate="recurrent_activation='hard_sigmoid'", forget="unit_forget_bias=True", version="implementation=1"
        )
    )  # fmt: skip


class CuDNNLSTM(LSTM):
    """Long short-term memory, with the sigmoid."""

    settings = listed(
        _SETTINGS.format(
            gate="recurrent_activation='sigmoid'", forget="unit_forget_bias=True", version="implementation=1"
        )
    )  # fmt: skip


class Bidirectional(Layer):
    """A recurrent layer, and a copy of it that reads sequences from their ends.

    Raises:
      ValueError: an unknown way to merge.
    """

    _MERGES: ClassVar[dict[str, Any]] = {"concat": Concatenate, "sum": Add, "mul": Multiply, "ave": Average}

    def __init__(self, layer: Any, merge_mode: str | None = "concat", **more: Any) -> None:
        if merge_mode is not None and merge_mode not in self._MERGES:
            raise ValueError(f"Invalid merge mode {merge_mode}. It must be one of {list(self._MERGES)} or None.")
        super().__init__(**more)
        args, kwargs = layer._made_with  # noqa: SLF001 - of the same package
        bare = {key: value for key, value in kwargs.items() if key not in ("name", "input_shape")}
        self.merge_mode = merge_mode
        self._batch_shape = self._batch_shape or layer._batch_shape  # noqa: SLF001
        self.forward_layer = type(layer)(*args, **{**bare, "name": f"forward_{layer.name}"})
        self.backward_layer = type(layer)(
            *args, **{**bare, "name": f"backward_{layer.name}", "go_backwards": not layer.go_backwards}
        )
        self.supports_masking = True

    def call(self, inputs: Any, mask: Any = None, training: Any = None) -> Any:
        """Return the outputs."""
        del training
        more = {"mask": mask} if mask is not None else {}
        (ahead, *states), (back, *others) = (
            found if isinstance(found := layer(inputs, **more), list) else [found]
            for layer in (self.forward_layer, self.backward_layer)
        )
        if self.forward_layer.return_sequences:
            back = recorded(array.reverse)(back, [1])
        merged = [ahead, back] if self.merge_mode is None else self._MERGES[self.merge_mode]().call([ahead, back])
        return [merged, *states, *others] if states else merged

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """Which steps of the outputs count."""
        del inputs
        return mask if self.forward_layer.return_sequences else None
