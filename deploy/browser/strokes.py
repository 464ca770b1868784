"""Digits as pen strokes, drawn as the page draws them: what people's drawings on a screen look like.

The scans that come with trainband were stretched to a square and blurred, so a model that has seen nothing else takes
a thin 1 for a 7 and a 6 with a small loop for a 5. `drawings` makes as many others as are wanted from a few ways to
write each digit, each bent, slanted, turned and stretched at random. `rasterise` is `site/ink.js` in Python.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

Point = tuple[float, float]
Stroke = Sequence[Point]

SIDE = 28
BOX = 20.0
"""A digit's longer side, in pixels, with its line; MNIST's digits, too, fill a 20x20 box in 28x28 pixels."""
WIDTH = 2.2
"""Of the line, in pixels."""
POINTS = 24
"""Of each stroke, once resampled."""
STROKES = 2
"""Of a drawing, at most."""


def arc(x: float, y: float, rx: float, ry: float, start: float, end: float) -> list[Point]:
    """A part of an ellipse: its centre, its radii, and the angles in degrees, clockwise from the right (y is down)."""
    angles = np.radians(np.linspace(start, end, 16))
    return [(x + rx * math.cos(angle), y + ry * math.sin(angle)) for angle in angles]


WAYS: dict[int, list[list[Stroke]]] = {
    0: [
        [arc(0.5, 0.5, 0.25, 0.4, -90, 270)],
        [arc(0.5, 0.5, 0.36, 0.4, -60, 310)],
        [arc(0.5, 0.5, 0.25, 0.4, -80, -420)],
    ],
    1: [
        [[(0.5, 0.1), (0.5, 0.9)]],
        [[(0.33, 0.28), (0.52, 0.1), (0.52, 0.9)]],
        [[(0.22, 0.42), (0.55, 0.1), (0.55, 0.9)]],
        [[(0.35, 0.25), (0.52, 0.1), (0.52, 0.9)], [(0.3, 0.9), (0.74, 0.9)]],
        [[(0.42, 0.16), (0.52, 0.1), (0.52, 0.9)]],
    ],
    2: [
        [[*arc(0.5, 0.32, 0.25, 0.22, 190, 380), (0.25, 0.9), (0.8, 0.9)]],
        [[*arc(0.5, 0.3, 0.25, 0.2, 180, 400), *arc(0.35, 0.8, 0.1, 0.08, 300, 60), (0.82, 0.88)]],
        [[*arc(0.5, 0.3, 0.28, 0.2, 200, 410), (0.22, 0.88), (0.5, 0.84), (0.8, 0.92)]],
    ],
    3: [
        [[*arc(0.48, 0.3, 0.22, 0.2, 200, 450), *arc(0.48, 0.7, 0.26, 0.2, -90, 150)]],
        [[(0.25, 0.1), (0.75, 0.1), (0.5, 0.42), *arc(0.48, 0.66, 0.26, 0.24, -80, 150)]],
        [[*arc(0.45, 0.3, 0.25, 0.2, 220, 420), (0.4, 0.48), *arc(0.45, 0.68, 0.3, 0.22, -60, 130)]],
    ],
    4: [
        [[(0.6, 0.1), (0.2, 0.6), (0.85, 0.6)], [(0.65, 0.35), (0.65, 0.92)]],
        [[(0.3, 0.1), (0.27, 0.5), (0.78, 0.5)], [(0.7, 0.1), (0.68, 0.9)]],
        [[(0.62, 0.9), (0.62, 0.1), (0.2, 0.65), (0.85, 0.65)]],
        [[(0.4, 0.1), (0.22, 0.55), (0.8, 0.55)], [(0.58, 0.3), (0.52, 0.95)]],
    ],
    5: [
        [[(0.75, 0.1), (0.3, 0.1), (0.27, 0.45), *arc(0.5, 0.65, 0.25, 0.24, -120, 140)]],
        [[(0.3, 0.1), (0.27, 0.42), *arc(0.48, 0.66, 0.27, 0.24, -110, 150)], [(0.3, 0.1), (0.78, 0.1)]],
        [[(0.7, 0.12), (0.36, 0.12), (0.3, 0.5), *arc(0.46, 0.7, 0.22, 0.2, -90, 160)]],
    ],
    6: [
        [[(0.65, 0.08), (0.42, 0.3), (0.3, 0.6), *arc(0.5, 0.7, 0.2, 0.2, 180, -180)]],
        [[*arc(0.62, 0.5, 0.35, 0.4, -80, -180), *arc(0.5, 0.68, 0.23, 0.22, 180, -170)]],
        [[(0.55, 0.05), (0.34, 0.5), *arc(0.5, 0.76, 0.2, 0.15, 180, -190)]],
        [[*arc(0.6, 0.5, 0.3, 0.42, -70, -270), *arc(0.55, 0.74, 0.2, 0.17, 90, -190)]],
    ],
    7: [
        [[(0.2, 0.12), (0.8, 0.12), (0.42, 0.9)]],
        [[(0.2, 0.12), (0.78, 0.12), (0.45, 0.9)], [(0.32, 0.5), (0.72, 0.5)]],
        [[(0.2, 0.25), (0.22, 0.12), (0.8, 0.12), (0.55, 0.5), (0.48, 0.9)]],
        [[(0.25, 0.14), (0.5, 0.18), (0.75, 0.1), (0.6, 0.5), (0.5, 0.92)]],
    ],
    8: [
        [[*arc(0.5, 0.3, 0.18, 0.19, 90, -270), *arc(0.5, 0.7, 0.23, 0.21, -90, 270)]],
        [[*arc(0.5, 0.3, 0.2, 0.2, -40, -270), *arc(0.5, 0.7, 0.22, 0.2, -90, 250), (0.66, 0.2)]],
        [arc(0.5, 0.3, 0.17, 0.18, 90, -270), arc(0.5, 0.7, 0.22, 0.22, -90, 270)],
    ],
    9: [
        [[*arc(0.48, 0.32, 0.22, 0.22, 0, -360), (0.7, 0.3), (0.66, 0.9)]],
        [[*arc(0.5, 0.3, 0.2, 0.2, -30, -360), (0.7, 0.35), (0.68, 0.7), *arc(0.5, 0.72, 0.18, 0.18, 0, 120)]],
        [[*arc(0.48, 0.3, 0.22, 0.18, -20, -340), (0.68, 0.25), (0.55, 0.9)]],
    ],
}
"""The ways to write each digit: strokes in a square of side 1, x to the right and y down."""


def drawings(count: int, seed: int = 0) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """Random drawings of digits, as many of each way to write one.

    Args:
      count: for each digit.
      seed: of what is random.

    Returns:
      (float32[10 * count, 28, 28] of 0..255, int32[10 * count] the digits).
    """
    random = np.random.default_rng(seed)
    paths, digits = [], []
    for digit, ways in WAYS.items():
        for number in range(count):
            paths.append(_bent(ways[number % len(ways)], random))
            digits.append(digit)
    widths = random.uniform(0.8 * WIDTH, 1.4 * WIDTH, len(paths))
    images = _drawn(np.array(paths, np.float32), widths.astype(np.float32))
    return np.asarray(images), np.array(digits, np.int32)


def rasterise(strokes: Sequence[Stroke], width: float = WIDTH) -> NDArray[np.float32]:
    """A drawing in MNIST's form: float32[28, 28], 0 (paper) to 255 (ink), with the ink's centre of mass in the middle.

    Args:
      strokes: at most `STROKES`, in any unit.
      width: of the line, in pixels.
    """
    image: NDArray[np.float32] = np.asarray(_drawn(_resampled(strokes)[None], np.array([width], np.float32))[0])
    return image


def _resampled(strokes: Sequence[Stroke]) -> NDArray[np.float32]:
    """float32[STROKES, POINTS, 2]; the last stroke stands for those that there are not."""
    found = []
    for stroke in strokes:
        points = np.asarray(stroke, np.float64)
        along = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(points, axis=0), axis=1))])
        at = np.linspace(0.0, along[-1], POINTS)
        found.append(np.stack([np.interp(at, along, points[:, axis]) for axis in (0, 1)], axis=1))
    return np.array(found + found[-1:] * (STROKES - len(found)), np.float32)


def _bent(strokes: Sequence[Stroke], random: np.random.Generator) -> NDArray[np.float32]:
    points: NDArray[Any] = _resampled(strokes)
    for wave in (3.0, 6.0, 9.0):
        phases, heights = random.uniform(0, 2 * np.pi, 2), random.normal(0, 0.06 / wave**0.5, 2)
        points = points + heights * np.sin(wave * points[..., ::-1] + phases)
    angle, slant = random.uniform(-0.22, 0.22), random.uniform(-0.15, 0.35)
    turn = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    stretch = np.array([[random.uniform(0.65, 1.25), -slant], [0.0, 1.0]])
    bent: NDArray[np.float32] = (points @ (turn @ stretch).T).astype(np.float32)
    return bent


@jax.jit
def _drawn(paths: jax.Array, widths: jax.Array) -> jax.Array:
    """float32[n, STROKES, POINTS, 2] and float32[n] -> float32[n, 28, 28]."""
    centres = jnp.arange(SIDE) + 0.5
    pixels = jnp.stack(jnp.meshgrid(centres, centres), axis=-1).reshape(-1, 1, 2)

    def ink(starts: jax.Array, steps: jax.Array, width: jax.Array) -> jax.Array:
        lengths = jnp.maximum((steps**2).sum(-1), 1e-12)
        along = jnp.clip(((pixels - starts) * steps).sum(-1) / lengths, 0.0, 1.0)
        distances = jnp.linalg.norm(pixels - starts - along[..., None] * steps, axis=-1).min(axis=1)
        return jnp.clip(width / 2 + 0.5 - distances, 0.0, 1.0)

    def draw(drawing: tuple[jax.Array, jax.Array]) -> jax.Array:
        path, width = drawing
        low, high = path.min(axis=(0, 1)), path.max(axis=(0, 1))
        path = (path - (low + high) / 2) * (BOX - width) / jnp.maximum((high - low).max(), 1e-6) + SIDE / 2
        starts, steps = path[:, :-1].reshape(-1, 2), jnp.diff(path, axis=1).reshape(-1, 2)
        image = ink(starts, steps, width)
        mass = (image[:, None] * pixels[:, 0]).sum(axis=0) / image.sum()
        return 255.0 * ink(starts + SIDE / 2 - mass, steps, width).reshape(SIDE, SIDE)

    images: jax.Array = jax.lax.map(draw, (paths, widths), batch_size=64)
    return images
