"""From a rule's settings, as they travel, back to the rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainband.errors import Refused
from trainband.ps.rules.asynchronous import Async
from trainband.ps.rules.base import Setting, UpdateRule
from trainband.ps.rules.bounded import Bounded
from trainband.ps.rules.synchronous import Sync

RULES: Mapping[str, type[Any]] = {"async": Async, "bounded": Bounded, "sync": Sync}
"""Every rule by its name."""


def rule_of(settings: Mapping[str, Setting]) -> UpdateRule:
    """The rule with these settings. Raises `Refused` for one that this version does not have."""
    arguments = dict(settings)
    name = arguments.pop("name", None)
    if name not in RULES:
        raise Refused(f"no update rule is called {name!r} here; there are {', '.join(RULES)}.")
    try:
        rule: UpdateRule = RULES[str(name)](**arguments)
    except (TypeError, ValueError) as exc:
        raise Refused(f"the update rule {name!r} cannot have the settings {arguments}: {exc}.") from exc
    return rule
