"""SaverDef: which format of checkpoints a script asks for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar


class SaverDef(SimpleNamespace):
    """What describes a saver. There is one format here, whichever a script names."""

    LEGACY: ClassVar[int] = 0
    V1: ClassVar[int] = 1
    V2: ClassVar[int] = 2
    CheckpointFormatVersion: ClassVar[Any] = SimpleNamespace(LEGACY=0, V1=1, V2=2)
