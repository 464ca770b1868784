"""Exporting: writes a program in a format, loads it, compares it with the original, and only then puts it in place."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from trainband.checkpoint.new_directory import new_directory
from trainband.errors import ModelError
from trainband.export.artifact import MANIFEST, Artifact, write_manifest
from trainband.export.diagnosis import attempt_with, diagnosed
from trainband.export.targets import target
from trainband.export.targets.base import NO_OPTIONS, Options, Run
from trainband.model.inference import InferenceProgram

TOLERANCE = 1e-4
"""Largest difference of an output from the program's own, as a share of its largest absolute value, or of 1."""

TOLERANCE_INT8 = 0.1
"""The same for 8-bit weights."""


@dataclass(frozen=True, slots=True)
class ExportReport:
    """Result of an export.

    Attributes:
      difference: the largest difference of an output from the program's own, by output.
      examples: number compared.
    """

    artifact: Artifact
    difference: Mapping[str, float]
    examples: int

    def __str__(self) -> str:
        worst = max(self.difference.values(), default=0.0)
        return (
            f"exported {self.artifact.manifest.name} to {self.artifact.path} ({self.artifact.manifest.target}, "
            f"{self.artifact.nbytes:,} bytes); largest difference from predict on {self.examples} "
            f"example{'s' * (self.examples != 1)}: {worst:.2g}"
        )


def export_program(
    program: InferenceProgram,
    out: str | Path,
    to: str,
    *,
    force: bool = False,
    tolerance: float = TOLERANCE,
    options: Options = NO_OPTIONS,
) -> ExportReport:
    """Writes a program into the directory `out`, which appears complete, loaded and compared, or not at all.

    Args:
      program: to export.
      out: the directory to make.
      to: one of `TARGETS`.
      force: whether to replace an earlier export in `out`.
      tolerance: how far outputs may be from the program's own; see `TOLERANCE`.
      options: for some formats only.

    Raises:
      YourError: `out` exists, or a library is missing.
      ModelError: the format cannot hold the program, or computes something else.
    """
    out = Path(out)
    chosen = target(to, options)
    with new_directory(out, mark=MANIFEST, what="an exported model", force=force) as directory:
        try:
            written = chosen.write(program, directory)
            write_manifest(directory, program, to, written, {})
            difference, examples = compare(program, chosen.load(directory, written), to, tolerance)
        except (ModelError, RuntimeError, ValueError) as exc:
            # Also errors of a runtime whose version lacks an operation, or supports it for other shapes only.
            reason = str(exc) if isinstance(exc, ModelError) else f"{program.name} in {to}: {exc}"
            raise ModelError(
                f"{reason.rstrip('. ')}." + diagnosed(program, to, attempt_with(options, compare))
            ) from exc
        manifest = write_manifest(directory, program, to, written, difference)
    return ExportReport(Artifact(out, manifest), difference, examples)


def compare(program: InferenceProgram, run: Run, to: str, tolerance: float = TOLERANCE) -> tuple[dict[str, float], int]:
    """Compares a program with its export on its example, and on a single example if batch sizes may differ.

    Returns:
      The largest difference by output, and the number of examples.

    Raises:
      ModelError: a difference exceeds the tolerance, or is not a number.
    """
    worst: dict[str, float] = {}
    batches = [program.example]
    dynamic = program.signature.batched
    if dynamic:
        batches.append({name: leaf[:1] for name, leaf in program.example.items()})
    with _on_cpu():
        predict = program.compiled()
        pairs = [(predict(batch), run(batch)) for batch in batches]
    for wanted, found in pairs:
        for name, value in wanted.items():
            if name not in found or found[name].shape != value.shape:
                shape = found[name].shape if name in found else "missing"
                raise ModelError(f"{program.name}: the output {name!r} is {shape} in {to}, but {value.shape} in JAX.")
            difference, scale = _difference(value, found[name])
            worst[name] = max(worst.get(name, 0.0), difference)
            if not difference <= tolerance * max(1.0, scale):
                raise ModelError(
                    f"{program.name} computes other values in {to} than in JAX: {name!r} differs by {difference:.3g}, "
                    f"with a largest value of {scale:.3g}; the tolerance is {tolerance:g} of it. Nothing "
                    "was exported."
                )
    return worst, len(next(iter(program.example.values()))) if dynamic else 1


def _on_cpu() -> AbstractContextManager[Any]:
    """Makes JAX compute on the CPU: a GPU rounds products to TF32, other runtimes do not.

    If JAX may not use a CPU, nothing changes.
    """
    try:
        cpu: AbstractContextManager[Any] = jax.default_device(jax.local_devices(backend="cpu")[0])
    except RuntimeError:
        return nullcontext()
    return cpu


def _difference(wanted: NDArray[Any], found: NDArray[Any]) -> tuple[float, float]:
    if not wanted.size:
        return 0.0, 0.0
    one, other = (np.asarray(array, np.float64) for array in (wanted, found))
    same = (one == other) | (np.isnan(one) & np.isnan(other))
    with np.errstate(invalid="ignore"):  # inf - inf, handled by `same`
        apart = np.where(same, 0.0, np.abs(one - other))
    return float(apart.max()), float(np.abs(one[np.isfinite(one)]).max(initial=0.0))
