"""Every fuzz target in turn, each in a process of its own: `python -m tests.fuzz MINUTES`, or `make fuzz MINUTES=n`."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def targets() -> list[tuple[str, str]]:
    """The module and the name of each."""
    found = []
    for path in sorted(HERE.glob("targets_*.py")):
        module = importlib.import_module(f"tests.fuzz.{path.stem}")
        found += [(module.__name__, name) for name in sorted(vars(module)) if name.startswith("fuzz_")]
    return found


def count_of(output: str) -> int:
    """How many inputs a run has tried, by what it printed."""
    found = re.findall(r"stat::number_of_executed_units:\s*(\d+)|^(\d+) inputs at random", output, re.MULTILINE)
    return int(next(filter(None, found[-1]))) if found else 0


def main(minutes: float) -> int:
    """Runs all, shares the time out among them, and prints what each has tried. Returns how many have failed."""
    all_of_them = targets()
    seconds = max(1.0, 60.0 * minutes / len(all_of_them))
    total = failed = 0
    for module, name in all_of_them:
        command = [sys.executable, "-m", "tests.fuzz.run", module, name, str(seconds)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, errors="replace")
        output = done.stdout + done.stderr
        count = count_of(output)
        total += count
        failed += done.returncode != 0
        print(f"{name:<28} {count:>9,} inputs  {'ok' if done.returncode == 0 else 'FAILED'}", flush=True)
        if done.returncode != 0:
            print(output[-6000:], flush=True)
    print(f"{total:,} inputs in {len(all_of_them)} targets, {failed} failed")
    return failed


if __name__ == "__main__":
    sys.exit(1 if main(float(sys.argv[1]) if len(sys.argv) > 1 else 1.0) else 0)
