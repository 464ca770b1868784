"""How small the digits convnet gets, and at what cost: 8-bit integers, and 80% of the weights pruned.

    python bench/compress.py

Trains the Flax NNX convnet of `examples/flax_digits.py` three times on one device (as it is, for 8-bit integers, and
with pruning) and compresses what came out. Targets: 3.5 times smaller at 0.5 points of accuracy with 8-bit integers, 8
times with 80% of the weights pruned as well. Exits with 1 where one is missed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import optax
from examples.flax_digits import ConvNet, loss
from flax import nnx
from rich.console import Console
from rich.table import Table

import trainband
from trainband.compress import Compressed, Pruning, QuantizationAware, compress
from trainband.export.source import program_of

POINTS = 0.005
"""How much accuracy may be lost, as a share."""


def trained(directory: Path, steps: int, **options: Any) -> tuple[Any, float]:
    """(the program of a convnet trained with these options, its accuracy on held-out digits)."""
    digits = trainband.data.load()
    batches = trainband.data.Batches(digits.train.images, digits.train.labels, batch_size=64, seed=0)
    trainer = trainband.Trainer.from_nnx(
        ConvNet(nnx.Rngs(0)),
        loss,
        optimizer=optax.adam(optax.cosine_decay_schedule(3e-3, steps)),
        console=False,
        say=lambda _: None,
        **options,
    )
    trainer.fit(batches, steps)
    accuracy = trainer.evaluate([(digits.test.images, digits.test.labels)]).metrics["accuracy"]
    trainer.save(directory)
    predictor = trainband.Predictor(
        lambda model, images: model(images), example=digits.test.images[:8], module=ConvNet(nnx.Rngs(0))
    )
    return program_of(directory, predictor), float(accuracy)


def figures(steps: int) -> list[tuple[str, float, Compressed, int]]:
    """(what was done, accuracy of plain training uncompressed, the compressed model, bytes on the disk)."""
    digits = trainband.data.load()
    labelled: dict[str, Any] = {"input": digits.test.images, "labels": digits.test.labels}
    typical: dict[str, Any] = {"input": digits.train.images[:256]}
    pruning = Pruning(sparsity=0.8, begin_step=steps // 6, end_step=5 * steps // 6, every=max(1, steps // 30))
    found = []
    with tempfile.TemporaryDirectory() as home:
        plain, accuracy = trained(Path(home) / "plain", steps)
        aware, _ = trained(Path(home) / "aware", steps, quantization=QuantizationAware())
        sparse, _ = trained(Path(home) / "pruned", steps, pruning=pruning)
        ways: list[tuple[str, Any, dict[str, Any]]] = [
            ("half precision", plain, {"half": True}),
            ("int8 weights", plain, {"int8": True}),
            ("int8 weights and activations", plain, {"int8": True, "calibrate": typical}),
            ("the same, trained for it", aware, {"int8": True, "calibrate": typical}),
            ("80% pruned in training, int8", sparse, {"int8": True}),
            ("the same, and int8 activations", sparse, {"int8": True, "calibrate": typical}),
        ]
        for name, program, settings in ways:
            made = compress(program, evaluate=labelled, **settings)
            path = made.save(Path(home) / "small", force=True)
            found.append((name, accuracy, made, (path / "weights.safetensors").stat().st_size))
    return found


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=300, help="of each training run")
    steps = parser.parse_args().steps
    table = Table("digits convnet")
    for heading in ("bytes", "times smaller", "file", "accuracy", "points lost"):
        table.add_column(heading, justify="right")
    missed = []
    uncompressed = ""
    for name, accuracy, made, file in figures(steps):
        report = made.report
        assert report is not None
        assert report.quality is not None
        uncompressed = f"uncompressed: {accuracy:.2%} of the held-out digits; {report.nbytes_before:,} bytes"
        lost = accuracy - report.quality.after
        table.add_row(
            name,
            f"{report.nbytes_after:,}",
            f"{report.ratio:.2f}",
            f"{file:,}",
            f"{report.quality.after:.2%}",
            f"{100 * lost:+.2f}",
        )
        least = 8.0 if "pruned" in name else 3.5 if "int8" in name else 1.0
        if report.ratio < least or lost > POINTS:
            missed.append(name)
    Console(width=110).print(table)
    print(uncompressed)
    if missed:
        sys.exit(f"targets missed: {'; '.join(missed)}")


if __name__ == "__main__":
    main()
