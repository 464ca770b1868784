"""What `trainband doctor` finds: one line each, in sections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


class Mark(StrEnum):
    """How a finding is to be taken."""

    OK = "ok"
    INFO = "info"
    """Neither good nor bad."""
    MISSING = "missing"
    """An optional thing that is not here, or cannot be told."""
    PROBLEM = "problem"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
      name: of the thing.
      mark: how it is.
      text: what was found, for people.
      advice: what to do about it; empty where there is nothing to do.
      stops_jobs: whether a job cannot run because of it.
      facts: the same for programs.
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
    """Something that is as it should be."""
    return Finding(name=name, mark=Mark.OK, text=text, facts=facts)


def info(name: str, text: str, /, **facts: Any) -> Finding:
    """Something that is good to know."""
    return Finding(name=name, mark=Mark.INFO, text=text, facts=facts)


def missing(name: str, text: str, advice: str = "", /, **facts: Any) -> Finding:
    """Something optional that is not here."""
    return Finding(name=name, mark=Mark.MISSING, text=text, advice=advice, facts=facts)


def problem(name: str, text: str, advice: str, /, *, stops_jobs: bool = False, **facts: Any) -> Finding:
    """Something that does not work."""
    return Finding(name=name, mark=Mark.PROBLEM, text=text, advice=advice, stops_jobs=stops_jobs, facts=facts)


def stopping(sections: Sequence[Section]) -> list[Finding]:
    """The findings because of which a job cannot run."""
    return [finding for section in sections for finding in section.findings if finding.stops_jobs]


def as_json(sections: Sequence[Section]) -> dict[str, Any]:
    """One object for programs; the findings stand under their section's title in lower case."""
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
