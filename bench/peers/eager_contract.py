"""The common part of the measured TensorFlow 2 scripts; independent of what runs them.

A script takes ``--data X.npz --train_steps N --warm_up_steps W --batch_size B``, makes W steps and then N that are
measured, and prints one line of JSON with steps_per_s and the last step's loss.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def parse_flags(doc: str | None) -> argparse.Namespace:
    """Read the flags that every script has."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--train_steps", type=int, required=True)
    parser.add_argument("--warm_up_steps", type=int, required=True)
    parser.add_argument("--batch_size", type=int, required=True)
    return parser.parse_args()


def digits(data: Path) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the images as float32[n, 784] in [0, 1], and the labels."""
    with np.load(data) as arrays:
        images = arrays["train_images"].reshape(-1, 784).astype(np.float32) / np.float32(255)
        return images, arrays["train_labels"].astype(np.int64)


def timed(losses: Iterator[Any], flags: argparse.Namespace) -> None:
    """Make the steps that this iterator makes, and print how fast it went.

    The last loss of either part is read, so that lazy computation is complete by then.
    """
    for _ in range(flags.warm_up_steps):
        loss = next(losses)
    float(loss)
    begin = time.perf_counter()
    for _ in range(flags.train_steps):
        loss = next(losses)
    last = float(loss)
    steps_per_s = flags.train_steps / (time.perf_counter() - begin)
    print(json.dumps({"steps_per_s": steps_per_s, "loss": last}), flush=True)
