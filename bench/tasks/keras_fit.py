"""`model.fit` of a Keras model: plain, or under one of trainband's strategies. One task of `bench.keras_fit`.

It keeps the contract of `bench.keras_fit`, which see.
"""

from __future__ import annotations

import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import trainband
from bench.peers.keras_epochs import make_parser, measure


def main() -> None:
    """Train as the flags say."""
    parser = make_parser(__doc__)
    parser.add_argument("--strategy", choices=["plain", "one-device", "ps", "mirrored"], required=True)
    flags = parser.parse_args()
    strategy: trainband.OneDevice | trainband.ParameterServer | trainband.MultiWorkerMirrored | None = None
    if flags.strategy == "one-device":
        strategy = trainband.OneDevice()
    elif flags.strategy == "ps":
        strategy = trainband.ParameterServer(trainband.cluster.resolve())
    elif flags.strategy == "mirrored":
        strategy = trainband.MultiWorkerMirrored(trainband.cluster.resolve())
    if strategy is None:
        measure(keras, flags)
    else:
        with strategy.scope():
            measure(keras, flags, chief=strategy.is_chief)


if __name__ == "__main__":
    main()
