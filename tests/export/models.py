"""The models whose exports are compared, each with weights of its own and without a training."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from numpy.typing import NDArray

import trainband
from trainband.data import digits
from trainband.model.contents import tensor_of
from trainband.model.inference import InferenceProgram
from trainband.model.nnx_parts import Parts
from trainband.model.variables import Variables


@functools.cache
def images() -> NDArray[Any]:
    """The digits' test set: float32[n, h, w] in [0, 1]."""
    pixels = digits.read().test.images
    return np.asarray(pixels, np.float32) / max(1.0, float(pixels.max()))


def mlp() -> InferenceProgram:
    """Two layers as plain params, a weight that nobody needs, and labels beside the probabilities."""
    pixels = images()[0].size
    random = np.random.default_rng(0)
    weights = {
        "params/hidden/kernel": random.normal(0, 0.1, (pixels, 32)).astype(np.float32),
        "params/hidden/bias": random.normal(0, 0.1, 32).astype(np.float32),
        "params/output/kernel": random.normal(0, 0.3, (32, 10)).astype(np.float32),
        "params/unused": np.ones(3, np.float32),
    }

    def predict(params: Any, batch: Any) -> dict[str, Any]:
        flat = batch["images"].reshape(batch["images"].shape[0], -1)
        hidden = jax.nn.relu(flat @ params["hidden"]["kernel"] + params["hidden"]["bias"])
        logits = hidden @ params["output"]["kernel"]
        return {"probabilities": jax.nn.softmax(logits), "label": jnp.argmax(logits, axis=-1)}

    return trainband.Predictor(predict).program(weights, example={"images": images()})


class ConvNet(nnx.Module):
    """Convolutions with batch normalisation and pooling."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.conv1 = nnx.Conv(1, 8, (3, 3), rngs=rngs)
        self.norm1 = nnx.BatchNorm(8, rngs=rngs)
        self.conv2 = nnx.Conv(8, 16, (3, 3), strides=2, rngs=rngs)
        self.norm2 = nnx.BatchNorm(16, rngs=rngs)
        self.dropout = nnx.Dropout(0.3, rngs=rngs)
        self.output = nnx.Linear(16, 10, rngs=rngs)

    def __call__(self, batch: jax.Array) -> jax.Array:
        x = nnx.relu(self.norm1(self.conv1(batch[..., None])))
        x = nnx.max_pool(x, (2, 2), strides=(2, 2))  # type: ignore[no-untyped-call]
        x = nnx.relu(self.norm2(self.conv2(x)))
        x = nnx.avg_pool(x, (2, 2), strides=(1, 1), padding="SAME")  # type: ignore[no-untyped-call]
        return self.output(self.dropout(x.mean(axis=(1, 2))))


class Block(nnx.Module):
    """Attention to what came before, and a layer for each position."""

    def __init__(self, width: int, rngs: nnx.Rngs) -> None:
        self.norm1, self.norm2 = nnx.LayerNorm(width, rngs=rngs), nnx.LayerNorm(width, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(2, width, decode=False, rngs=rngs)
        self.up, self.down = nnx.Linear(width, 32, rngs=rngs), nnx.Linear(32, width, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.attention(self.norm1(x), mask=nnx.make_causal_mask(jnp.ones(x.shape[:2])))
        return x + self.down(nnx.gelu(self.up(self.norm2(x))))


class Transformer(nnx.Module):
    """Token ids to the logits of the next, with embeddings of positions."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.embed = nnx.Embed(20, 16, rngs=rngs)
        self.positions = nnx.Param(jax.random.normal(rngs.params(), (12, 16)))
        self.blocks = nnx.List([Block(16, rngs) for _ in range(2)])
        self.output = nnx.Linear(16, 20, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = self.embed(tokens) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.output(x[:, -1])


def _program(module: nnx.Module, example: NDArray[Any]) -> InferenceProgram:
    random = np.random.default_rng(1)
    params, state = Parts.of(module).values(module)
    leaves = [*jax.tree.leaves(params), *jax.tree.leaves(state)]
    # Averages and variances as after a training, none of them 0 or 1.
    weights = {
        tensor_of(entry): np.asarray(leaf)
        if entry.trained or not jnp.issubdtype(leaf.dtype, jnp.floating)
        else random.uniform(0.5, 1.5, leaf.shape).astype(np.float32)
        for entry, leaf in zip(Variables.of(params, state).entries, leaves, strict=True)
    }

    def predict(model: Any, batch: Any) -> Any:
        return model(batch)

    return trainband.Predictor(predict, module=module).program(weights, example=example)


def convnet() -> InferenceProgram:
    """See `ConvNet`."""
    return _program(ConvNet(nnx.Rngs(0)), images())


def transformer() -> InferenceProgram:
    """See `Transformer`."""
    tokens = np.random.default_rng(0).integers(0, 20, (50, 12)).astype(np.int32)
    return _program(Transformer(nnx.Rngs(0)), tokens)


def keras_model() -> Any:
    """A functional model of Keras with two inputs."""
    import keras
    from keras import layers

    keras.utils.set_random_seed(0)
    image = keras.Input(images().shape[1:], name="image")
    hint = keras.Input((4,), name="hint")
    x = layers.Reshape((*images().shape[1:], 1))(image)
    x = layers.Conv2D(8, 3, activation="relu")(x)
    x = layers.BatchNormalization(name="norm")(x)
    x = layers.Flatten()(layers.MaxPooling2D()(x))
    x = layers.Concatenate()([layers.Dropout(0.2)(x), layers.Dense(3, activation="tanh")(hint)])
    return keras.Model([image, hint], layers.Dense(10, activation="softmax", name="scores")(x), name="two_inputs")


def keras_functional() -> InferenceProgram:
    """See `keras_model`."""
    from trainband.keras.predictor import predictor_of

    hints = np.random.default_rng(2).random((len(images()), 4), np.float32)
    return predictor_of(keras_model()).program(example={"image": images(), "hint": hints})


MODELS = {"mlp": mlp, "convnet": convnet, "transformer": transformer, "keras": keras_functional}
