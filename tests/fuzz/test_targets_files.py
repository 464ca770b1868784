"""A few hundred mutations of something valid for each target; a long run belongs to a fuzzer."""

from __future__ import annotations

import gzip
import json
import random
import re
import struct
from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from safetensors.numpy import save

from tests.checkpoint import samples
from tests.fuzz import targets_files as targets
from trainband.checkpoint import Part, encode
from trainband.data import idx
from trainband.data.leases import LeaseRequest, PieceLedger
from trainband.data.pieces import SourceSettings
from trainband.errors import DataError
from trainband.model.worker_state import WorkerState

MUTATIONS = 300
PIECES = [b"[" * 2000, b"9" * 5000, b"-1", b"1e999", b"NaN", b"null", b'"\\ud800"', b"\xff" * 9, b"\0" * 9, b"\x1b[2J"]


def mutated(data: bytes, dice: random.Random) -> bytes:
    """The same with one to three places altered, cut out, doubled, or replaced by what parsers stumble over."""
    out = bytearray(data)
    for _ in range(dice.randint(1, 3)):
        at = dice.randrange(len(out) + 1)
        end = min(len(out), at + dice.choice([0, 1, 1, 2, 8]))
        match dice.randrange(5):
            case 0:
                out[at:end] = dice.randbytes(end - at)
            case 1:
                del out[at:end]
            case 2:
                out[at:at] = out[max(0, at - 20) : at]
            case 3:
                out[at:end] = dice.choice(PIECES)
            case _:
                del out[at:]
    return bytes(out)


def manifest() -> bytes:
    pieces = targets.PART_PIECES
    part = Part("part", 100, 0, 0, pieces)
    return encode(samples.manifest((part,), trainings=(0, 3), metrics={"loss": 0.5}, sources={"a": "{}"}))


def ledger() -> PieceLedger:
    made = PieceLedger(SourceSettings(examples=25, piece=3, epochs=2, seed=0, shuffle=False))
    for worker in range(3):
        made.lease(worker, LeaseRequest("data", made.settings, iterator=f"{worker}"))
    made.release(1)
    return made


INDEXED = bytes((0, 0, 8, 1)) + struct.pack(">I", 5) + b"12345"
CONFIG = {"cluster": {"ps": ["a:1"], "worker": {"0": "b:2", "3": "[::1]:3"}}, "task": {"type": "worker", "index": 3}}
POSITION = json.dumps({"passes": 1, "batches": 2, "beyond": 0, "state": {"value": {"epoch": 3, "examples": 5}}})
HOLDER = {"owner": "worker:0", "host": "a", "pid": 1, "process_start": 2, "machine": "", "acquired_at": 3.0}

VALID: list[tuple[Callable[[bytes], None], bytes]] = [
    (targets.fuzz_manifest, manifest()),
    (targets.fuzz_part_header, save({"a": np.zeros((2, 3), np.float32), "b": np.array(1, np.int32)})),
    (targets.fuzz_lock, json.dumps({**HOLDER, "lease_s": 1.0, "token": "ab"}).encode()),
    (
        targets.fuzz_worker_state,
        WorkerState.pack("worker:0", 1, 2, POSITION, [np.zeros((2, 3), np.float32)]).to_bytes(),
    ),
    (targets.fuzz_idx, INDEXED),
    (targets.fuzz_idx, gzip.compress(INDEXED, mtime=0)),
    (targets.fuzz_tf_config, json.dumps(CONFIG).encode()),
    (targets.fuzz_lease_record, ledger().record().encode()),
    (targets.fuzz_lease_copy, ledger().copy()),
    (targets.fuzz_idx, bytes.fromhex("00000803ffffffffff07080100000000")),
]


@pytest.mark.parametrize(("target", "valid"), VALID, ids=lambda one: getattr(one, "__name__", ""))
def test_whatever_comes_is_understood_or_one_typed_error(target: Callable[[bytes], None], valid: bytes) -> None:
    dice = random.Random(7)
    target(valid)
    for _ in range(MUTATIONS):
        data = mutated(valid, dice)
        try:
            target(data)
        except BaseException as exc:
            exc.add_note(f"of {data[:500]!r}")
            raise


NUMBERS = [b"1" + b"0" * 30, b"18446744073709551615", b"1e308", b"-1", b"null", b"[]"]


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize(
    ("target", "valid"),
    [VALID[0], VALID[2], VALID[6], VALID[7]],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_any_number_may_be_any_other(target: Callable[[bytes], None], valid: bytes, number: bytes) -> None:
    for found in re.finditer(rb"(?<=[ :,\[])\d+(?=[,\]}\n])", valid):
        target(valid[: found.start()] + number + valid[found.end() :])


def test_a_gzip_bomb_is_not_unpacked() -> None:
    """30 kB of it would become 30 MB, of which its idx header says nothing."""
    bomb = gzip.compress(INDEXED + bytes(30_000_000))
    with pytest.raises(DataError, match=r"too long: .* it has 14"):
        idx.parse(bomb, 1, name="a bomb")
    greedy = gzip.compress(bytes((0, 0, 8, 3)) + struct.pack(">3I", *[0xFFFFFFFF] * 3))
    with pytest.raises(DataError, match="at most"):
        idx.parse(greedy, 3, name="a bomb")


def test_a_copy_with_numbers_out_of_range_is_none() -> None:
    copy = msgspec.msgpack.decode(ledger().copy())
    for field, value in (("repeated", -1), ("book", {**copy["book"], "next": [5, 0]})):
        with pytest.raises(DataError, match="not the copy of a ledger"):
            PieceLedger.from_copy(msgspec.msgpack.encode({**copy, field: value}))
