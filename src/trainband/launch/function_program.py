"""Run as a script: the program of a task that calls a function of the launcher's process.

`python -m trainband.launch.function_program PATH`, where `function.py` has written the file.
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
