"""The text format in which Prometheus reads metrics (version 0.0.4): families of samples, and how they are written.

Source: https://prometheus.io/docs/instrumenting/exposition_formats/, and for names and units
https://prometheus.io/docs/practices/naming/.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Literal, Protocol, TypeAlias

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels: TypeAlias = tuple[tuple[str, str], ...]
"""Names and values; a value may be any text."""
Sample: TypeAlias = tuple[str, Labels, float]
"""The name of a line, its labels and its value."""


class Metric(Protocol):
    """What `exposition` writes: a family of samples."""

    @property
    def name(self) -> str:
        """With its unit; that of a counter ends in `_total`."""
        ...

    @property
    def description(self) -> str:
        """For `# HELP`: a sentence."""
        ...

    @property
    def kind(self) -> str:
        """`counter`, `gauge` or `histogram`."""
        ...

    def samples(self) -> Iterable[Sample]:
        """Every line."""
        ...


class Family:
    """A counter or gauge whose values are known.

    Args:
      kind: which of the two.
      name: with its unit; that of a counter ends in `_total`.
      description: for `# HELP`.
      values: by labels; more may follow with `add`.
    """

    def __init__(
        self,
        kind: Literal["counter", "gauge"],
        name: str,
        description: str,
        values: Mapping[Labels, float] | None = None,
    ) -> None:
        self.kind = kind
        self.name = name
        self.description = description
        self._values = dict(values or {})

    def add(self, value: float | None, *labels: tuple[str, str]) -> None:
        """Adds a sample; none where the value is `None`."""
        if value is not None:
            self._values[labels] = value

    def samples(self) -> Iterable[Sample]:
        """Every line."""
        return ((self.name, labels, value) for labels, value in self._values.items())


def exposition(metrics: Iterable[Metric], common: Labels = ()) -> str:
    """What a scrape is answered with.

    Families without samples are left out. Those of the same name become one, as the format demands; of two samples with
    the same labels, the later one counts.

    Args:
      metrics: in the order in which they appear.
      common: labels of every line.

    Raises:
      ValueError: two metrics of one name are of different kinds.
    """
    first: dict[str, Metric] = {}
    found: dict[str, dict[tuple[str, Labels], float]] = {}
    for metric in metrics:
        before = first.setdefault(metric.name, metric)
        if before.kind != metric.kind:
            raise ValueError(f"the metric {metric.name} is a {before.kind} and a {metric.kind}.")
        lines = found.setdefault(metric.name, {})
        for name, labels, value in metric.samples():
            lines[name, labels] = value
    text: list[str] = []
    written: dict[Labels, str] = {}
    """Of labels that many families share: those of a worker, say."""

    def label_text(labels: Labels) -> str:
        found = written.get(labels)
        if found is None:
            inner = ",".join(f"{key}={quoted(text)}" for key, text in (*common, *labels))
            found = written[labels] = f"{{{inner}}}" if inner else ""
        return found

    for name, metric in first.items():
        if found[name]:
            text += [f"# HELP {name} {_help(metric.description)}", f"# TYPE {name} {metric.kind}"]
            text += [f"{line}{label_text(labels)} {number(value)}" for (line, labels), value in found[name].items()]
    return "".join(f"{line}\n" for line in text)


def _help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def quoted(text: str) -> str:
    r"""A label's value, in which only `\`, `"` and newlines are written otherwise.

    What no UTF-8 can hold, and NUL, at which Prometheus stops reading, become the replacement character.
    """
    text = text.encode("utf-8", "surrogatepass").decode("utf-8", "replace").replace("\0", "\ufffd")
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def number(value: float) -> str:
    """A sample's value."""
    value = float(value)
    if -1e15 < value < 1e15:
        return str(int(value)) if value.is_integer() else repr(value)
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return "NaN" if math.isnan(value) else repr(value)
