"""Signature: how one version of TensorFlow calls an operation, and what its arguments mean to the function."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainband.compat.ops.table import Op

Parameter = inspect.Parameter

V1_PARAMETERS = {
    "angle": "input=x name x",
    "atan2": "y=x x=y name",
    "imag": "input=x name x",
    "log_sigmoid": "x=features name features",
    "real": "input=x name x",
    "stop_gradient": "input=x name x",
    "swish": "features -beta=1.0 name",
    "weighted_cross_entropy": "labels=targets logits pos_weight name targets",
    "zeta": "x q=y name y",
}
"""TensorFlow 1's parameters of operations whose entries in the table do not say them; see `Signature.parse`."""


@dataclass(frozen=True, eq=False)
class Signature:
    """The parameters of an operation as scripts write them.

    Attributes:
      shown: the whole, with `name`, and `seed` for random operations.
      aliases: parameters that are other names of the function's own.
      ignored: parameters that change nothing here.
      forbidden: parameters that must be left out.
      needed: parameters that must be given, by any of their names.
    """

    title: str
    shown: inspect.Signature
    aliases: Mapping[str, str]
    ignored: frozenset[str]
    forbidden: frozenset[str]
    needed: tuple[str, ...]
    defaults: Mapping[str, Any]

    @classmethod
    def parse(cls, op: Op, text: str = "") -> Signature:
        """Reads a list of parameters; without one, they are the function's, then `seed` if it is random, and `name`.

        In the list, `old=new` is another name of a parameter, `-x=False` is ignored, and `!x` must be left out. What
        follows `*` is by keyword only.
        """
        own = op.parameters
        words = text.split() or [*own, *(["seed"] if op.random else []), "name"]
        aliases: dict[str, str] = {}
        ignored, forbidden, found = set[str](), set[str](), list[Parameter]()
        kind: Any = Parameter.POSITIONAL_OR_KEYWORD
        optional = False
        aliased = {word.partition("=")[2] for word in words if "=" in word and word[0] != "-"}
        for word in words:
            if word == "*":
                kind = Parameter.KEYWORD_ONLY
                continue
            name, _, target = word.lstrip("-!").partition("=")
            default: Any = None
            if word[0] in "-!":
                (ignored if word[0] == "-" else forbidden).add(name)
                default = ast.literal_eval(target) if target else None
            elif target:
                aliases[name] = target
            elif name in own:
                default = own[name].default
                if own[name].kind is Parameter.VAR_POSITIONAL:
                    found.append(own[name].replace(annotation=Parameter.empty))
                    kind = Parameter.KEYWORD_ONLY
                    continue
                if default is Parameter.empty and (name in aliased or optional):
                    default = None
            optional = optional or (default is not Parameter.empty and kind is Parameter.POSITIONAL_OR_KEYWORD)
            found.append(Parameter(name, kind, default=default))
        return cls(
            title=next(iter((*op.names, *op.v1_names, op.name))).rpartition(".")[2],
            shown=inspect.Signature(found),
            aliases=aliases,
            ignored=frozenset(ignored),
            forbidden=frozenset(forbidden),
            needed=tuple(
                name
                for name, one in own.items()
                if one.default is Parameter.empty and one.kind is not Parameter.VAR_POSITIONAL
            ),
            defaults={name: () if one.kind is Parameter.VAR_POSITIONAL else one.default for name, one in own.items()},
        )

    def bind(self, positional: Sequence[Any], keywords: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """(the function's arguments by name, what else was given: `name` and `seed`).

        Raises:
          TypeError: an argument is missing, or is not there.
          ValueError: one is given that must be left out.
        """
        try:
            given = self.shown.bind(*positional, **keywords).arguments
        except TypeError as exc:
            raise TypeError(f"{self.title}(): {exc}") from None
        values = dict(self.defaults)
        others: dict[str, Any] = {}
        seen: set[str] = set()
        for name, value in given.items():
            if name in self.forbidden:
                if value is not None:
                    raise ValueError(f"Only call `{self.title}` with named arguments (labels=..., logits=..., ...)")
            elif name in self.aliases:
                if value is not None and self.aliases[name] not in seen:
                    values[self.aliases[name]] = value
                    seen.add(self.aliases[name])
            elif name in values:
                if value is not None or self.defaults[name] is None or name in self.needed:
                    values[name] = value
                if value is not None:
                    seen.add(name)
            elif name not in self.ignored:
                others[name] = value
        for name in self.needed:
            if values[name] is Parameter.empty:
                raise TypeError(f"{self.title}() is missing the argument {name!r}.")
        return values, others
