"""Which tasks a script of TensorFlow 2 wants beside its workers, by the strategy that it names."""

from __future__ import annotations

import re
from typing import NamedTuple

_STRATEGIES = re.compile(r"\b(?:\w+\.)*(?:experimental\.)?(\w+Strategy(?:V2)?)\s*\(")
_IN_STEP = {"MultiWorkerMirroredStrategy", "MirroredStrategy", "CentralStorageStrategy", "OneDeviceStrategy"}
_OF_VERSION_1 = re.compile(r"\btf\.train\.Server\b|\bestimator\b|compat\.v1|\bRunConfig\b")


class Wanted(NamedTuple):
    """The tasks.

    Attributes:
      strategy: by which this is known; "" where nothing is. With a ps and without a chief: a strategy that needs a
        chief and is one of several in the script, so that only the user knows.
      ps: whether there is a use for a ps.
      chief: whether a task must coordinate the others.
    """

    strategy: str
    ps: bool
    chief: bool


def wanted_tasks(source: str) -> Wanted:
    """The tasks that a script wants whose source this is."""
    found = set(_STRATEGIES.findall(source)) & (_IN_STEP | {"ParameterServerStrategy"})
    if _OF_VERSION_1.search(source) or not found:
        return Wanted("", ps=True, chief=False)
    if found == {"ParameterServerStrategy"}:
        return Wanted("ParameterServerStrategy", ps=True, chief=True)
    if found <= _IN_STEP:
        return Wanted(min(found), ps=False, chief=False)
    return Wanted("ParameterServerStrategy", ps=True, chief=False)
