"""Batch normalisation."""

from __future__ import annotations

from functools import partial
from typing import Any

from trainband.compat.ops import array, math, normalization, windows
from trainband.compat.ops.shapes import TensorShape
from trainband.compat.tf1.networks.core import channels_of, known_training, while_training
from trainband.compat.tf1.networks.layer import Configured, InputSpec, listed
from trainband.compat.tf1.operations.recorder import recorded

_identity = recorded(array.identity)


class BatchNormalization(Configured):
    """Normalise by the batch while training, else by moving averages, which operations in `UPDATE_OPS` update.

    Raises:
      ValueError: several axes, renorm, or virtual batches.
    """

    settings = listed(
        """axis=-1 momentum=0.99 epsilon=1e-3 center=True scale=True beta_initializer=zeros gamma_initializer=ones
        moving_mean_initializer=zeros moving_variance_initializer=ones beta_regularizer=None gamma_regularizer=None
        beta_constraint=None gamma_constraint=None renorm=False renorm_clipping=None renorm_momentum=0.99 fused=None
        trainable=True virtual_batch_size=None adjustment=None name=None"""
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        given: Any = self.__dict__["axis"]
        axes = given if isinstance(given, list | tuple) else [given]
        if len(axes) != 1 or self.renorm or self.virtual_batch_size is not None or self.adjustment is not None:
            raise ValueError("batch_normalization supports only one axis, no renorm, and no virtual batches.")
        self.axis: int = int(axes[0])

    def build(self, input_shape: Any) -> None:
        """Creates the averages, and what scales and moves."""
        rank = TensorShape(input_shape).ndims or 2
        size = channels_of(input_shape, "BatchNormalization", self.axis)
        self.input_spec = InputSpec(ndim=rank, axes={self.axis: size})

        def weight(name: str, is_there: bool = True, **more: Any) -> Any:
            first = getattr(self, f"{name}_initializer")
            return self.add_weight(name, [size], initializer=first, **more) if is_there else None

        self.gamma = weight(
            "gamma", self.scale, regularizer=self.gamma_regularizer, constraint=self.gamma_constraint
        )  # fmt: skip
        self.beta = weight("beta", self.center, regularizer=self.beta_regularizer, constraint=self.beta_constraint)
        self.moving_mean = weight("moving_mean", trainable=False)
        self.moving_variance = weight("moving_variance", trainable=False)
        self.built = True

    def call(self, inputs: Any, training: Any = False) -> Any:
        """Return the outputs."""
        rank = inputs.shape.ndims or 2
        axis = self.axis % rank
        mean, variance = recorded(normalization.moments)(inputs, [one for one in range(rank) if one != axis])
        # For images, TensorFlow's fused kernel averages the unbiased variance.
        is_image = (rank == 4 and self.fused is not False) or bool(self.fused)
        unbiased = recorded(normalization.unbiased)(variance, inputs) if is_image else variance
        known = known_training(training)
        used = [
            while_training(training, partial(_identity, now), partial(_identity, kept))
            for now, kept in ((mean, self.moving_mean), (variance, self.moving_variance))
        ]
        if known is not False:
            part = 1.0 - self.momentum
            if known is None:
                part = recorded(math.cast)(training, inputs.dtype) * part
            for moving, now in ((self.moving_mean, mean), (self.moving_variance, unbiased)):
                self.add_update(moving.assign_sub((moving - now) * part).op)
        vectors = [*used, self.beta, self.gamma]
        if axis != rank - 1:
            vectors = [None if one is None else recorded(windows.to_axis)(one, inputs, axis) for one in vectors]
        return recorded(normalization.batch_normalization)(inputs, *vectors, self.epsilon)
