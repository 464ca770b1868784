"""Run as a script: a task's program that calls a function from the launcher's process.

`python -m trainband.launch.function_program PATH`, with a file written by `function.py`.
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path


def main() -> None:
    """Reads the function and calls it, with the modules that the launcher's process could import."""
    with Path(sys.argv.pop()).open("rb") as file:
        sys.path[:] = pickle.load(file)
        function = pickle.load(file)
    function()


if __name__ == "__main__":
    main()
