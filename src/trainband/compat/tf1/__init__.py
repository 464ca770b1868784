"""TensorFlow 1, by trainband: `import trainband.compat.tf1 as tf`.

A script of TensorFlow 1 builds a graph and runs it in sessions, as ever; each run is compiled by JAX, and where the
script has parameter servers and workers, they are trainband's. `docs/compat.md` says what there is and what differs.
"""

from __future__ import annotations

from typing import Any

from trainband.compat.tf1.names import NAMES, inside


def __getattr__(name: str) -> Any:
    from trainband.compat.tf1.namespace import find

    return find("tf", name)


def __dir__() -> list[str]:
    return sorted([*NAMES["tf"], *inside("tf")])
