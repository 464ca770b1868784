"""Programs that JAX has compiled, shared by all processes of a test run.

Hundreds of processes compile the same programs; most of the time of a test that starts some went into that.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile

TORN = "ignore:Error reading persistent compilation cache entry"
"""Lets a process compile what another was killed while it wrote."""


def share_compiled_programs(*, optimised: bool) -> None:
    """Sets the environment for that.

    Args:
      optimised: whether programs are compiled as in production, which takes half as long again.
    """
    directory = tempfile.mkdtemp(prefix="trainband-tests-compiled-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = directory
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = str(int(not optimised))
    os.environ["PYTHONWARNINGS"] = TORN
    # Where Python is told to write no bytecode, each process compiles our two hundred files anew: 0.4 s of 1.1.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
