"""The text format in which Prometheus reads metrics (version 0.0.4): families of samples and their encoding.

Source: https://prometheus.io/docs/instrumenting/exposition_formats/, and for names and units
https://prometheus.io/docs/practices/naming/.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, Protocol, TypeAlias

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels: TypeAlias = tuple[tuple[str, str], ...]
"""Names and values; a value may be any text."""
Sample: TypeAlias = tuple[str, Labels, float]
"""The name of a line, its labels and its value."""


class Metric(Protocol):
    """A family of samples that `exposition` writes."""

    name: str
    """With its unit; a counter's ends in `_total`."""
    description: str
    """For `# HELP`: a sentence."""
    kind: str
    """`counter`, `gauge` or `histogram`."""

    def samples(self) -> Iterable[Sample]:
        """Yields every line."""
        ...


class Family:
    """A counter or gauge.

    Args:
      kind: which of the two.
      name: with its unit; a counter's ends in `_total`.
      description: for `# HELP`.
      values: by labels; more may follow with `set` and `add`.
    """

    def __init__(
        self,
        kind: Literal["counter", "gauge"],
        name: str,
        description: str,
        values: Mapping[Labels, float] | None = None,
    ) -> None:
        self.kind: str = kind
        self.name = name
        self.description = description
        self._values = dict(values or {})

    def set(self, value: float | None, *labels: tuple[str, str]) -> None:
        """Sets a sample; `None` leaves it out."""
        if value is not None:
            self._values[labels] = value

    def add(self, amount: float, *labels: tuple[str, str]) -> None:
        """Adds to a sample."""
        self._values[labels] = self._values.get(labels, 0.0) + amount

    def total(self) -> float:
        """The sum of all samples."""
        return sum(self._values.values())

    def samples(self) -> Iterable[Sample]:
        """Yields every line."""
        return ((self.name, labels, value) for labels, value in self._values.items())


class Families:
    """Counters and gauges by name, in the order in which they were first named."""

    def __init__(self) -> None:
        self._found: dict[str, Family] = {}

    def __iter__(self) -> Iterator[Family]:
        return iter(self._found.values())

    def counter(self, name: str, description: str, value: float | None, *labels: tuple[str, str]) -> None:
        """Sets a sample of a counter; `None` leaves it out."""
        self._family("counter", name, description).set(value, *labels)

    def gauge(self, name: str, description: str, value: float | None, *labels: tuple[str, str]) -> None:
        """Sets a sample of a gauge; `None` leaves it out."""
        self._family("gauge", name, description).set(value, *labels)

    def _family(self, kind: Literal["counter", "gauge"], name: str, description: str) -> Family:
        found = self._found.get(name)
        if found is None:
            found = self._found[name] = Family(kind, name, description)
        return found


def exposition(metrics: Iterable[Metric], common: Labels = ()) -> str:
    """Returns the answer to a scrape.

    Families without samples are left out. Those with the same name are merged, as the format requires; of two samples
    with the same labels, the later one counts.

    Args:
      metrics: in the order in which they appear.
      common: labels of every line.

    Raises:
      ValueError: two metrics with one name have different kinds.
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
    """Of labels that many families share, for example a worker's."""

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
    r"""Returns a label's value with `\`, `"` and newlines escaped.

    Characters that UTF-8 cannot encode, and NUL, at which Prometheus stops reading, become the replacement character.
    """
    text = text.encode("utf-8", "surrogatepass").decode("utf-8", "replace").replace("\0", "\ufffd")
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def number(value: float) -> str:
    """Formats a sample's value."""
    value = float(value)
    if -1e15 < value < 1e15:
        return str(int(value)) if value.is_integer() else repr(value)
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return "NaN" if math.isnan(value) else repr(value)
