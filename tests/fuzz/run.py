"""One fuzz target for some seconds: `python -m tests.fuzz.run MODULE FUNCTION SECONDS`.

With atheris, inputs are chosen by what they reach in trainband; without it, they are random. Either begins with the
corpus in `tests/fuzz/corpus/FUNCTION`, and writes an input that fails to `tests/fuzz/found`.
"""

from __future__ import annotations

import importlib
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
CORPUS = HERE / "corpus"
FOUND = HERE / "found"
LONGEST = 4096
LIMIT_S = 20
LIMIT_MB = 4096


def corpus_of(function: str) -> list[bytes]:
    """The inputs that a target begins with."""
    return [path.read_bytes() for path in sorted((CORPUS / function).glob("*"))] or [b""]


def mutated(seed: bytes, dice: random.Random) -> bytes:
    """An input like another."""
    data = bytearray(seed)
    for _ in range(1 + dice.randrange(4)):
        match dice.randrange(4):
            case 0 if data:
                data[dice.randrange(len(data))] = dice.randrange(256)
            case 1:
                place = dice.randrange(len(data) + 1)
                data[place:place] = dice.randbytes(1 + dice.randrange(8))
            case 2 if data:
                place = dice.randrange(len(data))
                del data[place : place + 1 + dice.randrange(8)]
            case _:
                data += dice.randbytes(dice.randrange(64))
    return bytes(data[:LONGEST])


def run_at_random(target: Callable[[bytes], None], function: str, seconds: float) -> int:
    """Tries random inputs; gives how many. One that fails is kept."""
    dice, seeds, count = random.Random(time.time_ns()), corpus_of(function), 0
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        data = dice.choice(seeds) if count < len(seeds) else mutated(dice.choice(seeds), dice)
        count += 1
        try:
            target(data)
        except BaseException:
            FOUND.mkdir(exist_ok=True)
            (FOUND / f"{function}-{count}").write_bytes(data)
            raise
    return count


def main(module: str, function: str, seconds: float) -> None:
    """Runs the target; prints `N inputs` at the end."""
    try:
        import atheris  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        target = getattr(importlib.import_module(module), function)
        print(f"{run_at_random(target, function, seconds)} inputs at random, because atheris is not installed")
        return
    with atheris.instrument_imports(include=["trainband"]):
        target = getattr(importlib.import_module(module), function)
    FOUND.mkdir(exist_ok=True)
    (CORPUS / function).mkdir(parents=True, exist_ok=True)
    options = (
        *(f"-max_total_time={int(seconds)}", f"-max_len={LONGEST}", f"-timeout={LIMIT_S}", f"-rss_limit_mb={LIMIT_MB}"),
        *("-print_final_stats=1", f"-artifact_prefix={FOUND}/{function}-", "-verbosity=1"),
    )
    # What is found goes to the first directory; only what is chosen by hand goes into the tree.
    atheris.Setup([sys.argv[0], *options, str(_scratch(function)), str(CORPUS / function)], target)
    atheris.Fuzz()


def _scratch(function: str) -> Path:
    directory = HERE / "found" / f"reached-{function}"
    directory.mkdir(parents=True, exist_ok=True)
    return directory


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
