"""The functions of `tf.layers`: each makes a layer and calls it."""

from __future__ import annotations

from trainband.compat.tf1.networks.convolution import (
    Conv1D,
    Conv2D,
    Conv2DTranspose,
    Conv3D,
    Conv3DTranspose,
    SeparableConv1D,
    SeparableConv2D,
)
from trainband.compat.tf1.networks.core import Dense, Dropout, Flatten
from trainband.compat.tf1.networks.layer import function_of
from trainband.compat.tf1.networks.normalization import BatchNormalization
from trainband.compat.tf1.networks.pooling import (
    AveragePooling1D,
    AveragePooling2D,
    AveragePooling3D,
    MaxPooling1D,
    MaxPooling2D,
    MaxPooling3D,
)

dense = function_of(Dense)
conv1d, conv2d, conv3d = map(function_of, (Conv1D, Conv2D, Conv3D))
conv2d_transpose, conv3d_transpose = map(function_of, (Conv2DTranspose, Conv3DTranspose))
separable_conv1d, separable_conv2d = map(function_of, (SeparableConv1D, SeparableConv2D))
max_pooling1d, max_pooling2d, max_pooling3d = map(function_of, (MaxPooling1D, MaxPooling2D, MaxPooling3D))
average_pooling1d, average_pooling2d, average_pooling3d = map(
    function_of, (AveragePooling1D, AveragePooling2D, AveragePooling3D)
)
flatten = function_of(Flatten, "name=None data_format='channels_last'")
dropout = function_of(Dropout, "rate=0.5 noise_shape=None seed=None training=False name=None", "training")
batch_normalization = function_of(
    BatchNormalization,
    """axis=-1 momentum=0.99 epsilon=1e-3 center=True scale=True beta_initializer=zeros gamma_initializer=ones
    moving_mean_initializer=zeros moving_variance_initializer=ones beta_regularizer=None gamma_regularizer=None
    beta_constraint=None gamma_constraint=None training=False trainable=True name=None reuse=None renorm=False
    renorm_clipping=None renorm_momentum=0.99 fused=None virtual_batch_size=None adjustment=None""",
    "training",
)
