"""TensorFlow 2, by trainband: `import trainband.compat.tf2 as tf`.

What a script computes is noted and run as compiled programs when a value is looked at, so that a loop of operations
under a tape costs little more than one function. `docs/compat.md` says what there is and what differs.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    from trainband.compat.tf2.namespace import find

    return find("tf", name)


def __dir__() -> list[str]:
    from trainband.compat.tf2.names import NAMES
    from trainband.compat.tf2.namespace import inside

    return sorted([*NAMES["tf"], *inside("tf"), "keras"])
