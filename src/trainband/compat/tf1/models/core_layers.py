"""Dense layers, activations, dropout, embeddings and what changes shapes."""

from __future__ import annotations

from typing import Any

from trainband.compat.ops import array, keras_layers, math, random, reductions
from trainband.compat.ops.shapes import TensorShape
from trainband.compat.tf1.graphs.record import convert
from trainband.compat.tf1.models import phase
from trainband.compat.tf1.models.layer import Layer
from trainband.compat.tf1.models.named import elu, relu, softmax
from trainband.compat.tf1.networks import core, normalization
from trainband.compat.tf1.networks.core import while_training
from trainband.compat.tf1.networks.layer import Configured, listed
from trainband.compat.tf1.operations.array import reshape
from trainband.compat.tf1.operations.embedding import embedding_lookup
from trainband.compat.tf1.operations.recorder import recorded

AFTER = """activation=None use_bias=True kernel_initializer='glorot_uniform' bias_initializer='zeros'
    kernel_regularizer=None bias_regularizer=None activity_regularizer=None kernel_constraint=None
    bias_constraint=None trainable=True name=None"""
_identity, _shape, _stack = recorded(array.identity), recorded(array.shape), recorded(array.stack)


def now(training: Any) -> Any:
    """Whether a layer is trained: what it was told, or else the learning phase."""
    return phase.learning_phase() if training is None else training


class Dense(Layer, core.Dense):
    """activation(inputs kernel + bias)."""

    settings = listed(f"units {AFTER}")
    supports_masking = True


class Flatten(Layer, core.Flatten):
    """One row for each example."""

    settings = listed("data_format=None name=None")


class Dropout(Layer, core.Dropout):
    """Zeroes each element with the probability `rate`, while training."""

    settings = listed("rate noise_shape=None seed=None name=None")
    supports_masking = True

    def call(self, inputs: Any, training: Any = None) -> Any:
        """Return the outputs."""
        return super().call(inputs, now(training)) if self.rate else _identity(inputs)


class _SpatialDropout(Dropout):
    """Zeroes whole channels with the probability `rate`, while training."""

    settings = listed("rate data_format=None name=None")

    def call(self, inputs: Any, training: Any = None) -> Any:
        """Return the outputs."""
        sizes, rank = _shape(inputs), inputs.shape.ndims
        last = self.data_format != "channels_first"
        ones = [1] * (rank - 2)
        noise = _stack([sizes[0], *ones, sizes[rank - 1]] if last else [sizes[0], sizes[1], *ones])

        def dropped() -> Any:
            return recorded(random.dropout)(inputs, keep_prob=1.0 - self.rate, noise_shape=noise)

        return while_training(now(training), dropped, lambda: _identity(inputs))


class SpatialDropout1D(_SpatialDropout):
    """Zeroes whole channels of sequences with the probability `rate`, while training."""


class SpatialDropout2D(_SpatialDropout):
    """Zeroes whole channels of images with the probability `rate`, while training."""


class GaussianNoise(Layer, Configured):
    """Adds normally distributed noise, while training."""

    settings = listed("stddev name=None")
    supports_masking = True

    def call(self, inputs: Any, training: Any = None) -> Any:
        """Return the outputs."""

        def noisy() -> Any:
            return inputs + recorded(random.random_normal)(_shape(inputs), 0.0, self.stddev, inputs.dtype)

        return while_training(now(training), noisy, lambda: _identity(inputs))


class GaussianDropout(Layer, Configured):
    """Multiplies by normally distributed noise around one, while training."""

    settings = listed("rate name=None")
    supports_masking = True

    def call(self, inputs: Any, training: Any = None) -> Any:
        """Return the outputs."""
        spread = (self.rate / (1.0 - self.rate)) ** 0.5

        def noisy() -> Any:
            return inputs * recorded(random.random_normal)(_shape(inputs), 1.0, spread, inputs.dtype)

        return while_training(now(training), noisy, lambda: _identity(inputs))


class Activation(Layer, Configured):
    """A function of each element."""

    settings = listed("activation name=None")
    supports_masking = True

    def call(self, inputs: Any) -> Any:
        """Return the outputs."""
        return self.activation(inputs)


class ReLU(Layer, Configured):
    """The positive part."""

    settings = listed("max_value=None negative_slope=0.0 threshold=0.0 name=None")

    def call(self, inputs: Any) -> Any:
        """Return the outputs."""
        return relu(inputs, self.negative_slope, self.max_value, self.threshold)


class LeakyReLU(Layer, Configured):
    """The inputs where they are positive, else `alpha` times them."""

    settings = listed("alpha=0.3 name=None")

    def call(self, inputs: Any) -> Any:
        """Return the outputs."""
        return relu(inputs, self.alpha)


class ThresholdedReLU(Layer, Configured):
    """The inputs where they are above a threshold, else zero."""

    settings = listed("theta=1.0 name=None")

    def call(self, inputs: Any) -> Any:
        """Return the outputs."""
        return relu(inputs, threshold=self.theta)


class ELU(Layer, Configured):
    """Exponential below zero."""

    settings = listed("alpha=1.0 name=None")

    def call(self, inputs: Any) -> Any:
        """Return the outputs."""
        return elu(inputs, self.alpha)


class Softmax(Layer, Configured):
    """Probabilities."""

    settings = listed("axis=-1 name=None")

    def call(self, inputs: Any) -> Any:
        """Return the outputs."""
        return softmax(inputs, self.axis)


class PReLU(Layer, Configured):
    """The inputs where they are positive, else a trained factor times them."""

    settings = listed(
        "alpha_initializer='zeros' alpha_regularizer=None alpha_constraint=None shared_axes=None name=None"
    )  # fmt: skip

    def build(self, input_shape: Any) -> None:
        """Creates the factors."""
        sizes = list(TensorShape(input_shape).sizes or ())[1:]
        for axis in self.shared_axes or ():
            sizes[axis - 1] = 1
        parts = {part: getattr(self, f"alpha_{part}") for part in ("initializer", "regularizer", "constraint")}
        self.alpha = self.add_weight("alpha", sizes, **parts)
        self.built = True

    def call(self, inputs: Any) -> Any:
        """Return the outputs."""
        return relu(inputs) - self.alpha * relu(-inputs)


class Reshape(Layer, Configured):
    """Another shape of each example; one size may be -1."""

    settings = listed("target_shape name=None")

    def call(self, inputs: Any) -> Any:
        """Return the outputs."""
        wanted = [int(size) for size in self.target_shape]
        sizes = inputs.shape.sizes
        if -1 in wanted and sizes is not None and None not in sizes[1:]:
            known = 1
            for size in wanted:
                known *= size if size != -1 else 1
            total = 1
            for size in sizes[1:]:
                total *= size or 0
            wanted[wanted.index(-1)] = total // max(known, 1)
        if -1 in wanted:
            return reshape(inputs, _stack([_shape(inputs)[0], *wanted]))
        return reshape(inputs, [-1, *wanted])


class Permute(Layer, Configured):
    """The axes of each example in another order; the first is 1."""

    settings = listed("dims name=None")

    def call(self, inputs: Any) -> Any:
        """Return the outputs."""
        return recorded(array.transpose)(inputs, [0, *self.dims])


class RepeatVector(Layer, Configured):
    """Each vector several times, as the steps of a sequence."""

    settings = listed("n name=None")

    def call(self, inputs: Any) -> Any:
        """Return the outputs."""
        return recorded(keras_layers.repeated)(recorded(array.expand_dims)(inputs, 1), [1, self.n, 1])


class Lambda(Layer, Configured):
    """A function of the script's."""

    settings = listed("function output_shape=None mask=None arguments=None name=None")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._output_shape = self.__dict__.pop("output_shape", None)

    def call(self, inputs: Any) -> Any:
        """Return the outputs."""
        return self.function(inputs, **(self.arguments or {}))


class ActivityRegularization(Layer):
    """The same; a regularizer adds to the loss."""

    def __init__(self, l1: float = 0.0, l2: float = 0.0, **more: Any) -> None:
        super().__init__(activity_regularizer={"class_name": "l1_l2", "config": {"l1": l1, "l2": l2}}, **more)


class Masking(Layer, Configured):
    """The same; steps in which all features have a value do not count in layers that follow."""

    settings = listed("mask_value=0.0 name=None")

    def call(self, inputs: Any) -> Any:
        """Return the outputs."""
        counts = recorded(reductions.reduce_any)(self._differs(inputs), -1, keepdims=True)
        return inputs * recorded(math.cast)(counts, inputs.dtype)

    def _differs(self, inputs: Any) -> Any:
        return recorded(math.not_equal)(inputs, self.mask_value)

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """Which steps count."""
        del mask
        return recorded(reductions.reduce_any)(self._differs(inputs), -1)


class Embedding(Layer, Configured):
    """A trained vector for each whole number."""

    settings = listed(
        """input_dim output_dim embeddings_initializer='uniform' embeddings_regularizer=None
        activity_regularizer=None embeddings_constraint=None mask_zero=False input_length=None name=None"""
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        length = kwargs.get("input_length")
        given = [name for name in ("input_dim", "input_length") if name in kwargs]
        kept = {name: kwargs.pop(name) for name in given}
        if "input_dim" in kept:
            args = (kept["input_dim"], *args)
        if not args[1:] and "output_dim" in kwargs:
            args = (*args, kwargs.pop("output_dim"))
        shape = {"input_length": length} if length is not None else {}
        if not any(name in kwargs for name in ("input_shape", "batch_input_shape")):
            kwargs |= shape
        super().__init__(*args, **kwargs)

    def build(self, input_shape: Any) -> None:
        """Creates the vectors."""
        del input_shape
        parts = {part: getattr(self, f"embeddings_{part}") for part in ("initializer", "regularizer", "constraint")}
        self.embeddings = self.add_weight("embeddings", [self.input_dim, self.output_dim], **parts)
        self.built = True

    def call(self, inputs: Any) -> Any:
        """Return the outputs."""
        numbers = inputs if inputs.dtype.is_integer else recorded(math.cast)(inputs, "int32")
        return embedding_lookup(self.embeddings, numbers)

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """Which steps count."""
        del mask
        return recorded(math.not_equal)(inputs, convert(0, inputs.dtype)) if self.mask_zero else None


class BatchNormalization(Layer, normalization.BatchNormalization):
    """Normalise by the batch while training, else by moving averages, which `updates` update."""

    settings = listed(
        """axis=-1 momentum=0.99 epsilon=1e-3 center=True scale=True beta_initializer='zeros' gamma_initializer='ones'
        moving_mean_initializer='zeros' moving_variance_initializer='ones' beta_regularizer=None
        gamma_regularizer=None beta_constraint=None gamma_constraint=None renorm=False renorm_clipping=None
        renorm_momentum=0.99 fused=None trainable=True virtual_batch_size=None adjustment=None name=None"""
    )
    supports_masking = True

    def call(self, inputs: Any, training: Any = None) -> Any:
        """Return the outputs."""
        return super().call(inputs, now(training))


class LayerNormalization(Layer, Configured):
    """Normalise each example along an axis."""

    settings = listed(
        """axis=-1 epsilon=1e-3 center=True scale=True beta_initializer='zeros' gamma_initializer='ones'
        beta_regularizer=None gamma_regularizer=None beta_constraint=None gamma_constraint=None trainable=True
        name=None"""
    )

    def build(self, input_shape: Any) -> None:
        """Creates what scales and moves."""
        size = [core.channels_of(input_shape, "LayerNormalization")]
        for name, is_there in (("gamma", self.scale), ("beta", self.center)):
            parts = {part: getattr(self, f"{name}_{part}") for part in ("initializer", "regularizer", "constraint")}
            setattr(self, name, self.add_weight(name, size, **parts) if is_there else None)
        self.built = True

    def call(self, inputs: Any) -> Any:
        """Return the outputs."""
        mean = recorded(reductions.reduce_mean)(inputs, -1, keepdims=True)
        away = inputs - mean
        variance = recorded(reductions.reduce_mean)(recorded(math.square)(away), -1, keepdims=True)
        found = away * recorded(math.rsqrt)(variance + self.epsilon)
        found = found * self.gamma if self.gamma is not None else found
        return found + self.beta if self.beta is not None else found


class _Wrapper(Layer):
    """A layer around another."""

    def __init__(self, layer: Any, **more: Any) -> None:
        super().__init__(**more)
        self.layer = layer


class TimeDistributed(_Wrapper):
    """A layer that is applied to each step of sequences."""

    def build(self, input_shape: Any) -> None:
        """Creates the layer's variables, under the name of this one."""
        sizes = list(TensorShape(input_shape).sizes or ())
        if not self.layer.built:
            self.layer.dtype = self.layer.dtype or self.dtype
            self.layer.build(TensorShape([sizes[0], *sizes[2:]]))
        self.built = True

    def call(self, inputs: Any, **more: Any) -> Any:
        """Return the outputs."""
        found = self.layer(reshape(inputs, _stack([-1, *_sizes(inputs, 2)])), **more)
        return reshape(found, _stack([*_sizes(inputs)[:2], *_sizes(found, 1)]))


def _sizes(tensor: Any, start: int = 0) -> list[Any]:
    """The sizes of a tensor from an axis on, as numbers where they are known."""
    shape = _shape(tensor)
    return [shape[i] if size is None else size for i, size in enumerate(tensor.shape.as_list())][start:]
