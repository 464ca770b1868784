"""Registry of update rules: turns received settings into a rule."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any

from trainband.errors import ProtocolError, Refused
from trainband.ps.rules.asynchronous import Async
from trainband.ps.rules.balance import Balance
from trainband.ps.rules.base import Push, RuleState, Setting, UpdateRule
from trainband.ps.rules.bounded import Bounded
from trainband.ps.rules.synchronous import Sync

RULES: Mapping[str, type[Any]] = {"async": Async, "bounded": Bounded, "sync": Sync}
"""Every rule by its name."""


MOST = 1 << 31
"""Upper bound on anything that a rule counts."""


def describe_rule(settings: Mapping[str, Any]) -> str:
    """Formats a rule for people, with the settings that are not the defaults: `async`, `sync(backups=1)`."""
    name = str(settings.get("name", "?"))
    defaults = {field.name: field.default for field in fields(RULES[name])} if name in RULES else {}
    given = [
        f"{key}={value}"
        for key, value in settings.items()
        if key != "name" and (key not in defaults or value != defaults[key])
    ]
    return f"{name}({', '.join(given)})" if given else name


def rule_of(settings: Mapping[str, Setting]) -> UpdateRule:
    """The rule with these settings. Raises `Refused` if this version has no such rule."""
    arguments = dict(settings)
    name = arguments.pop("name", None)
    if name not in RULES:
        raise Refused(f"unknown update rule {name!r}; expected one of {', '.join(RULES)}.")
    kinds = {field.name: str(field.type) for field in fields(RULES[str(name)])}
    for key, value in arguments.items():
        if key in kinds and not _can_be(value, kinds[key]):
            raise Refused(f"the update rule {name!r} does not accept {key}={value!r}.")
    try:
        rule: UpdateRule = RULES[str(name)](**arguments)
    except (TypeError, ValueError) as exc:
        raise Refused(f"the update rule {name!r} does not accept {arguments}: {exc}.") from exc
    return rule


def check_rule_state(state: RuleState, version: int, held: Collection[tuple[int, int]], sender: str) -> None:
    """Refuses a received rule state that contradicts the rest of its snapshot.

    Args:
      state: as decoded.
      held: (worker, sequence) of each push that the rule has accepted and not yet applied.
      sender: who sent the state, for the message.

    Raises:
      ProtocolError: it is of another version, or has pushes that did not come with it.
    """
    step: Collection[Push] = getattr(state, "step", ())
    balance: Balance | None = getattr(state, "balance", None)
    workers = {*state.ledger.workers, *state.ledger.seen, *state.ledger.dropped, *(push.worker for push in step)}
    if (
        state.version != version
        or any(not 0 <= worker <= MOST for worker in workers)
        or any((push.worker, push.sequence) not in held for push in step)
        or (balance is not None and not balance.is_sound(MOST))
    ):
        raise ProtocolError(f"{sender} sent an update rule's state that contradicts the rest of its snapshot.")


def _can_be(value: Setting, kind: str) -> bool:
    """Whether a received value fits the annotation of a rule's setting."""
    if value is None:
        return "None" in kind
    if isinstance(value, str):
        return "str" in kind
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if "int" in kind:
        return isinstance(value, int) and abs(value) <= MOST
    return math.isfinite(value) and "float" in kind
