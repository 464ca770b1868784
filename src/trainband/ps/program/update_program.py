"""The update program: an optimizer as StableHLO, so that a ps runs it without the user's code.

`export.py` makes it on the chief, `ps/worker/shard_definer.py` sends it, `check/` checks it, and `compiled_program.py`
runs it on the ps.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax

from trainband.errors import ProtocolError
from trainband.ps.program.signature import Signature

PLATFORM = "cpu"
"""The platform that a ps computes on. The chief may trace on any other."""


@dataclass(frozen=True, slots=True)
class UpdateProgram:
    """Both functions for one shard, serialised."""

    initialise: bytes
    update: bytes
    jax: str = ""
    """The version of JAX that exported them, for messages."""
    signature: Signature | None = None
    """Their arguments and results, if a definition gives them."""
    checked_s: float | None = None
    """Seconds of an update when it was checked; `None` if none was made."""


def unreadable(program: UpdateProgram, sender: str, why: str) -> ProtocolError:
    """The error for a program that this version of JAX cannot run."""
    return ProtocolError(
        f"the update program that {sender} exported with JAX {program.jax or 'of an unknown version'} cannot "
        f"be loaded by JAX {jax.__version__} here ({why}); install one version of JAX on all tasks: it reads "
        "what versions up to six months older, and up to three weeks newer, have exported."
    )
