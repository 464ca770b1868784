"""Report: the savings and the cost of a compression."""

from __future__ import annotations

from msgspec import Struct


class TensorReport(Struct, frozen=True, kw_only=True):
    """Report of one tensor whose storage changed.

    Attributes:
      name: of the tensor.
      stored: how, in a few words.
      nbytes_before, nbytes_after: bytes.
      error: the Euclidean norm of the change of the weights, as a share of their own.
      change: the largest change of any output of the program when only this tensor is compressed, as a share of the
        largest magnitude among its outputs; `None` without a program.
    """

    name: str
    stored: str
    nbytes_before: int
    nbytes_after: int
    error: float
    change: float | None = None


class Quality(Struct, frozen=True, kw_only=True):
    """Quality of predictions on labelled data.

    Attributes:
      metric: `accuracy`, or `mean squared error` unless labels are classes.
      before, after: its value without and with the compression.
      examples: number of examples.
    """

    metric: str
    before: float
    after: float
    examples: int


class Report(Struct, frozen=True, kw_only=True):
    """Savings and cost of a compression.

    Attributes:
      nbytes_before, nbytes_after: bytes of all tensors.
      tensors: those whose storage changed.
      change: the largest change of any output, as a share of the largest magnitude among the outputs; `None` without a
        program.
      examples: the number of examples for `change`.
      quality: on the evaluation data, if any.
    """

    nbytes_before: int
    nbytes_after: int
    tensors: tuple[TensorReport, ...]
    change: float | None = None
    examples: int = 0
    quality: Quality | None = None

    @property
    def ratio(self) -> float:
        """Factor by which it is smaller."""
        return self.nbytes_before / max(1, self.nbytes_after)

    @property
    def worst(self) -> TensorReport | None:
        """The tensor whose compression changes the outputs most; without a program, its own weights."""
        return max(self.tensors, key=lambda one: (one.change or 0.0, one.error), default=None)

    def __str__(self) -> str:
        lines = [f"{self.nbytes_before:,} -> {self.nbytes_after:,} bytes, {self.ratio:.1f} times smaller"]
        if self.quality is not None:
            quality = self.quality
            lines.append(
                f"{quality.metric} {quality.before:.4f} -> {quality.after:.4f} on {quality.examples:,} examples"
            )
        if self.change is not None:
            lines.append(f"outputs change by up to {self.change:.2%} of the largest, on {self.examples:,} examples")
        worst = self.worst
        if worst is not None:
            by = f"{worst.change:.2%} of the largest output" if worst.change is not None else f"{worst.error:.2%}"
            lines.append(f"worst tensor: {worst.name}, by {by}")
        return "; ".join(lines)
