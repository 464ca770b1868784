"""Report: what a compression has saved, and what it has cost."""

from __future__ import annotations

from msgspec import Struct


class TensorReport(Struct, frozen=True, kw_only=True):
    """One tensor that is stored in another way.

    Attributes:
      name: of the tensor.
      stored: how, in a few words.
      nbytes_before, nbytes_after: bytes.
      error: the Euclidean norm of what the weights have changed by, as a share of their own.
      change: the largest change of any output of the program when this tensor alone is compressed, as a share of the
        largest magnitude among its outputs; `None` where there was no program.
    """

    name: str
    stored: str
    nbytes_before: int
    nbytes_after: int
    error: float
    change: float | None = None


class Quality(Struct, frozen=True, kw_only=True):
    """How good predictions are on labelled data.

    Attributes:
      metric: `accuracy`, or `mean squared error` where labels are no classes.
      before, after: its value without and with the compression.
      examples: on how many examples.
    """

    metric: str
    before: float
    after: float
    examples: int


class Report(Struct, frozen=True, kw_only=True):
    """What a compression has saved and cost.

    Attributes:
      nbytes_before, nbytes_after: bytes of all tensors.
      tensors: those that are stored in another way.
      change: the largest change of any output, as a share of the largest magnitude among the outputs; `None` where
        there was no program.
      examples: how many examples `change` was measured on.
      quality: on the data that was given, if any was.
    """

    nbytes_before: int
    nbytes_after: int
    tensors: tuple[TensorReport, ...]
    change: float | None = None
    examples: int = 0
    quality: Quality | None = None

    @property
    def ratio(self) -> float:
        """How many times smaller it is."""
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
