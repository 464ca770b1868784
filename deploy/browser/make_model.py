"""Trains the model of the drawing pad on trainband's handwritten digits and exports it; takes less than a minute.

    python make_model.py                        writes site/model, ONNX for the page
    python make_model.py --save ../runs/digits  keeps a checkpoint, too: for other formats, compression and serving,
                                                each with --model make_model.py:predictor

The digits that come with trainband are 1442 scans of 8x8 pixels, enlarged to MNIST's 28x28. What people draw on a
screen is sharper, thinner and less upright. So every scan is trained on in several variants (shifted, scaled, slanted,
turned, of another contrast), and drawings made of pen strokes are added (`strokes.py`).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.scipy.ndimage import map_coordinates
from numpy.typing import NDArray
from strokes import SIDE, drawings

import trainband

HERE = Path(__file__).parent
VARIANTS = 8
DRAWINGS = 900
"""Of each digit."""


class DigitsNet(nnx.Module):
    """Two convolutions with batch normalisation on a smoothed image, and dropout before the last layer."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.conv1 = nnx.Conv(1, 16, (5, 5), strides=2, rngs=rngs)
        self.norm1 = nnx.BatchNorm(16, momentum=0.9, rngs=rngs)
        self.conv2 = nnx.Conv(16, 32, (5, 5), strides=2, rngs=rngs)
        self.norm2 = nnx.BatchNorm(32, momentum=0.9, rngs=rngs)
        self.dropout = nnx.Dropout(0.3, rngs=rngs)
        self.output = nnx.Linear(7 * 7 * 32, 10, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        """float32[n, 28, 28] of 0 (paper) to 255 (ink) -> logits, float32[n, 10]."""
        x = nnx.avg_pool(images[..., None] / 255.0, (3, 3), padding="SAME")
        x = nnx.relu(self.norm1(self.conv1(x)))
        x = nnx.relu(self.norm2(self.conv2(x)))
        return self.output(self.dropout(x.reshape(x.shape[0], -1)))


def loss(model: DigitsNet, batch: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, dict[str, Any]]:
    """The cross-entropy, and the accuracy beside it."""
    images, labels = batch
    logits = model(images)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return losses.mean(), {"accuracy": (logits.argmax(axis=-1) == labels).mean()}


def predict(model: DigitsNet, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """What is exported: images, float32[batch, 28, 28] of 0..255 -> probabilities, float32[batch, 10]."""
    return {"probabilities": jax.nn.softmax(model(batch["images"]))}


predictor = trainband.Predictor(
    predict,
    module=DigitsNet(nnx.Rngs(0)),
    example={"images": trainband.data.load().test.images[:1].astype(np.float32)},
)
"""For `trainband export`, `compress` and `serve`."""


@jax.jit
def varied(images: jax.Array, key: jax.Array) -> jax.Array:
    """Each image shifted, scaled, slanted, turned, and drawn with another line, at random.

    Args:
      images: float32[n, 28, 28], 0..255.
      key: random.

    Returns:
      float32[n, 28, 28], 0..255.
    """
    count = len(images)
    draws = jax.random.uniform(key, (7, count), minval=-1.0, maxval=1.0)
    angle, slant = 0.26 * draws[0], 0.25 * draws[1]
    tall = 1.0 + 0.12 * draws[2]
    wide = tall * (0.9 + 0.3 * draws[3])
    turn = jnp.stack([jnp.stack([jnp.cos(angle), -jnp.sin(angle)]), jnp.stack([jnp.sin(angle), jnp.cos(angle)])])
    shear = jnp.stack([jnp.stack([1 / tall, jnp.zeros(count)]), jnp.stack([slant, 1 / wide])])
    matrices = jnp.einsum("ijn,jkn->nik", turn, shear)
    shifts = 1.5 * draws[4:6].T
    centre = (SIDE - 1) / 2
    grid = jnp.stack(jnp.meshgrid(jnp.arange(SIDE), jnp.arange(SIDE), indexing="ij")) - centre
    at = jnp.einsum("nij,jyx->niyx", matrices, grid) + centre + shifts[:, :, None, None]
    moved = jax.vmap(lambda image, where: map_coordinates(image, list(where), order=1))(images, at) / 255.0
    contrast = 1.0 + 1.5 * jnp.maximum(
        draws[6], 0.0
    )  # the scans are blurred; what is drawn on a screen has sharp edges
    level = 0.5 - 0.12 * draws[6]
    return 255.0 * jnp.clip((moved - level[:, None, None]) * contrast[:, None, None] + level[:, None, None], 0.0, 1.0)


def training_data(images: NDArray[np.uint8], labels: NDArray[np.int32]) -> trainband.data.Batches:
    """The scans, `VARIANTS` of each, and drawings."""
    plain = jnp.asarray(images, jnp.float32)
    scans = [plain, *(varied(plain, key) for key in jax.random.split(jax.random.key(0), VARIANTS))]
    drawn, digits = drawings(DRAWINGS)
    return trainband.data.Batches(
        np.concatenate([*scans, drawn]), np.concatenate([*[labels] * len(scans), digits]), batch_size=64
    )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=HERE / "site" / "model", help="where the model for the page goes")
    parser.add_argument("--save", type=Path, help="a directory for a checkpoint")
    parser.add_argument("--steps", type=int, default=1200, help="updates  [default: 1200]")
    flags = parser.parse_args()

    digits = trainband.data.load()
    train, test = digits.train, digits.test
    images = test.images.astype(np.float32)
    model = DigitsNet(nnx.Rngs(0))
    optimizer = optax.adam(optax.cosine_decay_schedule(3e-3, flags.steps))
    trainer = trainband.Trainer.from_nnx(model, loss, optimizer=optimizer)
    trainer.fit(training_data(train.images, train.labels), steps=flags.steps)
    print(f"held out: {trainer.evaluate([(images, test.labels)])}")
    if flags.save:
        trainer.save(flags.save)
    print(trainer.export(predict, {"images": images}, flags.out, to="onnx", force=True))


if __name__ == "__main__":
    try:
        main()
    except trainband.TrainbandError as error:
        sys.exit(f"error: {error}")
