"""Every test here starts its processes through `programs`, which fails a test that leaves one behind."""

from __future__ import annotations

from tests.machines import machines as machines
from tests.programs import ports as ports
from tests.programs import programs as programs
