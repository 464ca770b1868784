"""What reads bytes that a stranger may have written into a file, an environment or a worker state.

Each target takes any bytes. It swallows the one typed error that a caller of what it tries is told to expect, and lets
everything else escape, which is a bug. What is understood is also used, as a caller would.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from trainband.checkpoint import Part, PartReader, Piece, Stored, decode, encode
from trainband.checkpoint.lock import holder_of
from trainband.cluster.resolvers import tf_config
from trainband.data import idx
from trainband.data.leases import LeaseRequest, PieceLedger
from trainband.errors import ClusterError, DamagedCheckpoint, DataError, ProtocolError
from trainband.model.worker_state import WorkerState, redistributed

PART_PIECES = tuple(
    Stored(piece, piece.key, f"xxh3_128:{0:032x}")
    for piece in (Piece("a", (2, 3), "float32", 0, 2), Piece("b", (), "int32", 0, 1))
)
"""What the manifest says of the part that `fuzz_part_header` reads."""


def fuzz_manifest(data: bytes) -> None:
    """A checkpoint's manifest."""
    try:
        manifest = decode(data, "manifest.json")
    except DamagedCheckpoint:
        return
    assert decode(encode(manifest), "manifest.json").tensors == manifest.tensors


def fuzz_part_header(data: bytes) -> None:
    """A safetensors file of a checkpoint whose manifest is as it was."""
    if len(data) < sum(stored.piece.nbytes for stored in PART_PIECES):
        return
    part = Part("part", len(data), 0, 0, PART_PIECES)
    with tempfile.NamedTemporaryFile() as file:
        os.write(file.fileno(), data)
        try:
            with PartReader(Path(file.name), part) as reader:
                for stored in PART_PIECES:
                    reader.read(stored, 0, 1, check=False)
                    reader.verify(stored)
        except DamagedCheckpoint:
            return


def fuzz_lock(data: bytes) -> None:
    """The file that says who writes into a directory; what says nothing is no error."""
    holder = holder_of(data)
    assert holder is None or "/" not in holder.token


def fuzz_worker_state(data: bytes) -> None:
    """What a worker leaves with a ps."""
    try:
        state = WorkerState.received(data, "worker:0")
    except ProtocolError:
        return
    assert all(one.values.dtype.name == one.dtype for one in state.carry)
    redistributed({0: state}, ["worker:0", "worker:1"])
    json.dumps(state.position)


def fuzz_idx(data: bytes) -> None:
    """A data file, compressed or not."""
    for ndim in (1, 3):
        try:
            idx.parse(data, ndim, name="a file")
        except DataError:
            continue


def fuzz_tf_config(data: bytes) -> None:
    """The cluster in the environment, whose bytes Python gives as text."""
    try:
        cluster = tf_config.resolve({tf_config.VARIABLE: data.decode("utf-8", "surrogateescape")})
    except ClusterError as exc:
        str(exc).encode(errors="surrogateescape")
        return
    if cluster is not None:
        assert tf_config.resolve({tf_config.VARIABLE: tf_config.write(cluster)}) == cluster


def fuzz_lease_record(data: bytes) -> None:
    """A ledger of pieces out of a checkpoint."""
    try:
        _lease(PieceLedger.from_record(data.decode("utf-8", "surrogateescape")))
    except DataError:
        return


def fuzz_lease_copy(data: bytes) -> None:
    """A ledger of pieces as a primary sends it to its standby."""
    try:
        _lease(PieceLedger.from_copy(data))
    except DataError:
        return


def _lease(ledger: PieceLedger) -> None:
    ledger.lease(0, LeaseRequest("data", ledger.settings, iterator="new"))
    PieceLedger.from_copy(ledger.copy())
    PieceLedger.from_record(ledger.record())
    ledger.release_all_but([1])
