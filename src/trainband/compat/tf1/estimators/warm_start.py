"""Warm starts: variables that begin with the values of another model's checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainband.compat.tf1.training.warm_start import VocabInfo, warm_start


@dataclass
class WarmStartSettings:
    """Which variables begin with values of a checkpoint.

    Attributes:
      ckpt_to_initialize_from: the checkpoint, or its directory.
      vars_to_warm_start, var_name_to_vocab_info: see `warm_start`.
      var_name_to_prev_var_name: the names in the checkpoint that differ.
    """

    ckpt_to_initialize_from: Any
    vars_to_warm_start: Any = ".*"
    var_name_to_vocab_info: Mapping[str, VocabInfo] | None = None
    var_name_to_prev_var_name: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.ckpt_to_initialize_from:
            raise ValueError("`ckpt_to_initialize_from` MUST be set in WarmStartSettings")
        self.var_name_to_prev_var_name = dict(self.var_name_to_prev_var_name or {})

    @classmethod
    def of(cls, given: Any) -> WarmStartSettings | None:
        """The settings that `warm_start_from` means."""
        if given is None or isinstance(given, cls):
            return given
        if isinstance(given, str | Path):
            return cls(str(given))
        raise ValueError("warm_start_from must be a string or a WarmStartSettings")

    def apply(self) -> None:
        """Makes the variables of the default graph begin so."""
        warm_start(
            self.ckpt_to_initialize_from,
            self.vars_to_warm_start,
            self.var_name_to_vocab_info,
            self.var_name_to_prev_var_name,
        )
