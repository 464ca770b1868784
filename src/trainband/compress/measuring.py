"""Measuring: how far a compressed model's predictions differ from the model's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from trainband.compress.activations import LABELS, batches
from trainband.compress.compressed import Compressed
from trainband.compress.encodings import Plain, describe, nbytes_of
from trainband.compress.report import Quality, Report, TensorReport
from trainband.errors import DataError
from trainband.model.inference import InferenceProgram

COMPARED = 256
"""The most examples on which tensors are compared one by one."""

Arrays = Mapping[str, NDArray[Any]]
Outputs = dict[str, NDArray[Any]]


def measured(
    tensors: Arrays, compressed: Compressed, program: InferenceProgram | None, evaluate: Arrays | None
) -> Report:
    """Returns the report of a compression.

    Args:
      tensors: before the compression.
      compressed: the result.
      program: with the original tensors; without one, only the weights are compared.
      evaluate: the program's inputs by name and `labels`, one for each example; outputs are also compared on these,
        or else on the program's example.

    Raises:
      DataError: there are no labels, or they do not fit the outputs; or the inputs do not fit the program.
    """
    decoded = compressed.tensors()
    changed = [
        name
        for name, encoding in compressed.encodings.items()
        if not isinstance(encoding, Plain) or encoding.stored != encoding.dtype
    ]
    changes: dict[str, float] = {}
    change, examples, quality = None, 0, None
    if program is not None:
        inputs = dict(program.example)
        if evaluate is not None:
            inputs = {name: array for name, array in evaluate.items() if name != LABELS}
            quality = _quality(program, compressed.program(program), inputs, evaluate)
        inputs = {name: array[:COMPARED] if array.ndim else array for name, array in inputs.items()}
        changes, change, examples = _changes(program, compressed, decoded, changed, inputs)
    return Report(
        nbytes_before=sum(array.nbytes for array in tensors.values()),
        nbytes_after=compressed.nbytes,
        tensors=tuple(
            TensorReport(
                name=name,
                stored=describe(compressed.encodings[name]),
                nbytes_before=tensors[name].nbytes,
                nbytes_after=nbytes_of(compressed.encodings[name]),
                error=_relative(tensors[name], decoded[name]),
                change=changes.get(name),
            )
            for name in changed
        ),
        change=change,
        examples=examples,
        quality=quality,
    )


def _changes(
    program: InferenceProgram, compressed: Compressed, decoded: Arrays, changed: list[str], inputs: Arrays
) -> tuple[dict[str, float], float, int]:
    """Returns the change of outputs by each tensor alone, and by all, and the number of examples."""
    function = jax.jit(program.function)
    weights = jax.device_put(dict(program.weights))
    data = list(batches(program.signature, inputs, "the data to compare on"))

    def outputs(held: Any) -> list[Outputs]:
        return [jax.tree.map(np.asarray, function(held, batch)) for batch in data]

    wanted = outputs(weights)
    alone = {name: _change(wanted, outputs({**weights, name: decoded[name]})) for name in changed}
    predict = compressed.program(program).compiled()
    count = sum(len(next(iter(batch.values()))) for batch in data) if program.signature.batched else len(data)
    return alone, _change(wanted, [predict(batch) for batch in data]), count


def _change(wanted: list[Outputs], found: list[Outputs]) -> float:
    worst = 0.0
    for name in wanted[0]:
        one, other = (np.concatenate([np.ravel(part[name]) for part in parts]) for parts in (wanted, found))
        one, other = one.astype(np.float64), other.astype(np.float64)
        scale = np.abs(one[np.isfinite(one)]).max(initial=0.0)
        apart = np.where(one == other, 0.0, np.abs(one - other))
        worst = max(worst, float(apart.max(initial=0.0) / (scale or 1.0)))
    return worst


def _quality(program: InferenceProgram, compressed: InferenceProgram, inputs: Arrays, evaluate: Arrays) -> Quality:
    if LABELS not in evaluate:
        raise DataError(
            f"the data to evaluate on has {', '.join(evaluate) or 'nothing'}; it must have an array named {LABELS!r} "
            f"beside {program.signature.expected()}."
        )
    labels = np.asarray(evaluate[LABELS])
    count = next((len(array) for array in inputs.values() if array.ndim), 0)
    if not labels.ndim or len(labels) != count:
        raise DataError(f"the data to evaluate on has {count} examples and labels of the shape {list(labels.shape)}.")
    metric, before = _score(program.compiled(), program, inputs, labels)
    _, after = _score(compressed.compiled(), program, inputs, labels)
    return Quality(metric=metric, before=before, after=after, examples=count)


def _score(
    predict: Callable[[Arrays], Outputs], program: InferenceProgram, inputs: Arrays, labels: NDArray[Any]
) -> tuple[str, float]:
    """Returns the name of the metric, and its mean."""
    total, start = 0.0, 0
    metric = ""
    for batch in batches(program.signature, inputs, "the data to evaluate on"):
        outputs = predict(batch)
        if len(outputs) != 1:
            raise DataError(
                f"{program.name} has the outputs {', '.join(outputs)}; to evaluate it, give a function with one output."
            )
        (found,) = outputs.values()
        wanted = labels[start : start + (len(found) if found.ndim else 1)]
        start += len(wanted)
        classes = np.issubdtype(labels.dtype, np.integer)
        if classes and found.shape[:-1] == wanted.shape:
            metric, scores = "accuracy", found.argmax(-1) == wanted
        elif found.shape == wanted.shape:
            metric = "accuracy" if classes else "mean squared error"
            scores = found == wanted if classes else (found.astype(np.float64) - wanted) ** 2
        else:
            raise DataError(
                f"labels are {labels.dtype}{list(labels.shape)}, but {program.name} returns "
                f"{found.dtype}{list(found.shape)}: neither a score per class nor the shape of the labels."
            )
        total += float(np.mean(scores)) * len(wanted)
    return metric, total / max(1, start)


def _relative(one: NDArray[Any], other: NDArray[Any]) -> float:
    one, other = one.astype(np.float64), other.astype(np.float64)
    return float(np.linalg.norm(one - other) / (np.linalg.norm(one) or 1.0))
