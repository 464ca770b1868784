"""Every test here starts its processes through `programs`, which fails a test that leaves one behind."""

from __future__ import annotations

import fcntl
import hashlib
import json
from pathlib import Path
from typing import Any, Protocol

import pytest
from tests.machines import machines as machines
from tests.programs import Programs
from tests.programs import ports as ports
from tests.programs import programs as programs


class OnOneDevice(Protocol):
    """Gives what one device comes to with these flags of `tests.cluster_allreduce.in_step`."""

    def __call__(self, *flags: str) -> Any: ...


@pytest.fixture
def on_one_device(programs: Programs, shared_directory: Path) -> OnOneDevice:
    """Computes what many tests compare with, once in a run of the tests."""

    def found(*flags: str) -> Any:
        out = shared_directory / f"one-device-{hashlib.sha256(repr(flags).encode()).hexdigest()[:16]}.json"
        with out.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not out.exists():
                command = ("-m", "tests.cluster_allreduce.in_step", "--strategy=one", *flags, f"--out={out}.new")
                programs.python("alone", *command).succeed()
                Path(f"{out}.new").rename(out)
        return json.loads(out.read_text(encoding="utf-8"))

    return found
