"""The findings of `trainband doctor`: one line each, in sections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


class Mark(StrEnum):
    """The kind of a finding."""

    OK = "ok"
    INFO = "info"
    """Neither good nor bad."""
    MISSING = "missing"
    """An optional thing that is missing or unknown."""
    PROBLEM = "problem"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """The result of one check.

    Attributes:
      name: of the thing that was checked.
      mark: its state.
      text: the result, for people.
      advice: what to do about it; empty if there is nothing to do.
      stops_jobs: whether a job cannot run because of it.
      facts: the result, for programs.
    """

    name: str
    mark: Mark
    text: str
    advice: str = ""
    stops_jobs: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Section:
    """Findings about one subject."""

    title: str
    findings: Sequence[Finding]


def ok(name: str, text: str, /, **facts: Any) -> Finding:
    """A thing that works."""
    return Finding(name=name, mark=Mark.OK, text=text, facts=facts)


def info(name: str, text: str, /, **facts: Any) -> Finding:
    """A neutral fact."""
    return Finding(name=name, mark=Mark.INFO, text=text, facts=facts)


def missing(name: str, text: str, advice: str = "", /, **facts: Any) -> Finding:
    """An optional thing that is missing."""
    return Finding(name=name, mark=Mark.MISSING, text=text, advice=advice, facts=facts)


def problem(name: str, text: str, advice: str, /, *, stops_jobs: bool = False, **facts: Any) -> Finding:
    """A thing that does not work."""
    return Finding(name=name, mark=Mark.PROBLEM, text=text, advice=advice, stops_jobs=stops_jobs, facts=facts)


def stopping(sections: Sequence[Section]) -> list[Finding]:
    """The findings that stop a job."""
    return [finding for section in sections for finding in section.findings if finding.stops_jobs]


def as_json(sections: Sequence[Section]) -> dict[str, Any]:
    """One object for programs; the findings are under their section's title in lower case."""
    return {
        "ok": not stopping(sections),
        "sections": {
            section.title.lower(): [
                asdict(finding) | {"mark": str(finding.mark), "facts": dict(finding.facts)}
                for finding in section.findings
            ]
            for section in sections
        },
    }
