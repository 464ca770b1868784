"""The normalisation layers of `tf.contrib.layers`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainband.compat.ops import array, normalization
from trainband.compat.tf1.graphs.graph_keys import GraphKeys
from trainband.compat.tf1.graphs.record import convert
from trainband.compat.tf1.networks.arg_scope import add_arg_scope
from trainband.compat.tf1.networks.contrib_layers import finished
from trainband.compat.tf1.networks.contrib_parts import of_model
from trainband.compat.tf1.networks.model_variables import model_variable
from trainband.compat.tf1.networks.normalization import BatchNormalization
from trainband.compat.tf1.operations.control_flow import with_dependencies
from trainband.compat.tf1.operations.initializers import Ones, Zeros
from trainband.compat.tf1.operations.recorder import recorded
from trainband.compat.tf1.operations.variable_scope import variable_scope

_FIRST = {"beta": Zeros(), "gamma": Ones(), "moving_mean": Zeros(), "moving_variance": Ones()}


@add_arg_scope
def batch_norm(
    inputs: Any,
    decay: float = 0.999,
    center: bool = True,
    scale: bool = False,
    epsilon: float = 0.001,
    activation_fn: Any = None,
    param_initializers: Any = None,
    param_regularizers: Any = None,
    updates_collections: Any = GraphKeys.UPDATE_OPS,
    is_training: Any = True,
    reuse: Any = None,
    variables_collections: Any = None,
    outputs_collections: Any = None,
    trainable: bool = True,
    batch_weights: Any = None,
    fused: Any = None,
    data_format: str = "NHWC",
    zero_debias_moving_mean: bool = False,
    scope: Any = None,
    renorm: bool = False,
    renorm_clipping: Any = None,
    renorm_decay: float = 0.99,
    adjustment: Any = None,
) -> Any:
    """Normalise by the batch while training, else by moving averages.

    The averages are updated by operations in `updates_collections`; without one, whenever the outputs are computed.

    Raises:
      ValueError: weights, zero-debiased averages, or renorm.
    """
    if batch_weights is not None or zero_debias_moving_mean:
        raise ValueError("batch_norm supports neither batch_weights nor zero_debias_moving_mean.")
    first = {**_FIRST, **(param_initializers or {})}
    regularizers = param_regularizers or {}
    x = convert(inputs)
    with variable_scope(scope, "BatchNorm", reuse=reuse) as opened:
        layer = BatchNormalization(
            axis=1 if data_format.startswith("NC") else -1,
            momentum=decay,
            epsilon=epsilon,
            center=center,
            scale=scale,
            **{f"{name}_initializer": one for name, one in first.items()},
            **{f"{name}_regularizer": regularizers.get(name) for name in ("beta", "gamma")},
            renorm=renorm,
            renorm_clipping=renorm_clipping,
            renorm_momentum=renorm_decay,
            # Unless told otherwise, TensorFlow takes its fused kernel for rows and for images.
            fused=x.shape.ndims in (2, 4) if fused is None else fused,
            adjustment=adjustment,
            trainable=trainable,
            _scope=opened,
            _reuse=reuse,
            _collections=of_model(variables_collections),
            _updates_to=updates_collections,
        )
        outputs = layer(x, training=is_training)
        if updates_collections is None and layer.updates:
            outputs = with_dependencies(layer.updates, outputs)
        return finished(outputs, opened, activation_fn, outputs_collections)


def _scaled(
    x: Any,
    axes: Sequence[int],
    shape: Sequence[Any],
    spread: Sequence[Any],
    *,
    center: bool,
    scale: bool,
    epsilon: float,
    first: Any,
    trainable: bool,
    collections: Any,
) -> Any:
    """Normalise over some axes, then scale and move by variables of a shape, spread to another."""
    wanted, made = {"beta": center, "gamma": scale}, {}
    for name, is_wanted in wanted.items():
        if is_wanted:
            lists = of_model(collections)(name)
            initializer = {**_FIRST, **(first or {})}[name]
            one = model_variable(name, shape, x.dtype, initializer, None, trainable, lists)
            made[name] = recorded(array.reshape)(one, spread) if list(spread) != list(shape) else one
    mean, variance = recorded(normalization.moments)(x, list(axes), keepdims=True)
    return recorded(normalization.batch_normalization)(
        x, mean, variance, made.get("beta"), made.get("gamma"), epsilon
    )  # fmt: skip


@add_arg_scope
def layer_norm(
    inputs: Any,
    center: bool = True,
    scale: bool = True,
    activation_fn: Any = None,
    reuse: Any = None,
    variables_collections: Any = None,
    outputs_collections: Any = None,
    trainable: bool = True,
    begin_norm_axis: int = 1,
    begin_params_axis: int = -1,
    scope: Any = None,
) -> Any:
    """Normalise each example by itself."""
    x = convert(inputs)
    rank = x.shape.ndims or 0
    sizes = x.shape.as_list()[begin_params_axis % rank :]
    if None in sizes:
        raise ValueError(f"Inputs {x.name}: shape[{begin_params_axis}:] is not fully defined: {x.shape}")
    with variable_scope(scope, "LayerNorm", reuse=reuse) as opened:
        outputs = _scaled(
            x,
            range(begin_norm_axis % rank, rank),
            sizes,
            sizes,
            center=center,
            scale=scale,
            epsilon=1e-3 if x.dtype.name == "float16" else 1e-12,
            first=None,
            trainable=trainable,
            collections=variables_collections,
        )
        return finished(outputs, opened, activation_fn, outputs_collections)


@add_arg_scope
def instance_norm(
    inputs: Any,
    center: bool = True,
    scale: bool = True,
    epsilon: float = 1e-6,
    activation_fn: Any = None,
    param_initializers: Any = None,
    reuse: Any = None,
    variables_collections: Any = None,
    outputs_collections: Any = None,
    trainable: bool = True,
    data_format: str = "NHWC",
    scope: Any = None,
) -> Any:
    """Normalise each channel of each example by itself."""
    x = convert(inputs)
    rank = x.shape.ndims or 0
    channels = 1 if data_format.startswith("NC") else rank - 1
    size = x.shape.as_list()[channels]
    with variable_scope(scope, "InstanceNorm", reuse=reuse) as opened:
        outputs = _scaled(
            x,
            [axis for axis in range(1, rank) if axis != channels],
            [size],
            [size] if channels == rank - 1 else [size, *(1,) * (rank - 2)],
            center=center,
            scale=scale,
            epsilon=epsilon,
            first=param_initializers,
            trainable=trainable,
            collections=variables_collections,
        )
        return finished(outputs, opened, activation_fn, outputs_collections)


@add_arg_scope
def group_norm(
    inputs: Any,
    groups: int = 32,
    channels_axis: int = -1,
    reduction_axes: Sequence[int] = (-3, -2),
    center: bool = True,
    scale: bool = True,
    epsilon: float = 1e-6,
    activation_fn: Any = None,
    param_initializers: Any = None,
    reuse: Any = None,
    variables_collections: Any = None,
    outputs_collections: Any = None,
    trainable: bool = True,
    scope: Any = None,
    mean_close_to_zero: bool = False,
) -> Any:
    """Normalise groups of channels of each example by themselves.

    Raises:
      ValueError: the channels cannot be divided into so many groups.
    """
    del mean_close_to_zero
    x = convert(inputs)
    rank = x.shape.ndims or 0
    axis = channels_axis % rank
    channels = x.shape.as_list()[axis]
    if channels is None or channels % groups:
        raise ValueError(f"{channels} channels cannot be divided into {groups} groups.")
    sizes = [recorded(array.shape)(x)[i] if one is None else one for i, one in enumerate(x.shape.as_list())]
    parted = [*sizes[:axis], groups, channels // groups, *sizes[axis + 1 :]]
    over = [one % rank + (one % rank > axis) for one in reduction_axes] + [axis + 1]
    spread = [1] * rank + [1]
    spread[axis : axis + 2] = groups, channels // groups
    with variable_scope(scope, "GroupNorm", reuse=reuse) as opened:
        grouped = _scaled(
            recorded(array.reshape)(x, parted),
            over,
            [channels],
            spread,
            center=center,
            scale=scale,
            epsilon=epsilon,
            first=param_initializers,
            trainable=trainable,
            collections=variables_collections,
        )
        outputs = recorded(array.reshape)(grouped, sizes)
        outputs.set_shape(x.shape)
        return finished(outputs, opened, activation_fn, outputs_collections)
