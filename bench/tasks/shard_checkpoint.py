"""One task of `bench.checkpoint`: the shard of one ps and its saver, without the rest of a ps.

The contract: flags ``--role save|restore --millions M --directory DIR``. Each role prints one line of JSON: nbytes of
the shard, seconds until it was written or adopted, and extra_bytes, by how much the memory of the process grew
meanwhile at most. Updates continue beside a save, which also prints update_s, of an update without it,
and blocked_s, how much longer than that the slowest update beside the save took. It saves twice and prints a list of
each: the first save takes memory that later ones use again. The second one is committed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from numpy.typing import NDArray

from bench.tasks.large_model import BYTES_PER_PARAM, LEARNING_RATE, shapes
from trainband import Async, GreedyBytes
from trainband.checkpoint import CheckpointDirectory, Manifest
from trainband.model.variables import Variables
from trainband.ps.program.compiled_program import CompiledProgram
from trainband.ps.shard.allowed_directories import AllowedDirectories
from trainband.ps.shard.saver import ShardSaver
from trainband.ps.shard.shard import Shard
from trainband.ps.worker.plan import Plan
from trainband.wire.messages import calls as m

UPDATES_BESIDE = 4
NEVER_S = 1e6


class OneShard:
    """A shard under Adam and its saver."""

    def __init__(self, millions: int, directory: Path) -> None:
        """Compile the update; there are no values yet."""
        structs = {name: jax.ShapeDtypeStruct(shape, np.float32) for name, shape in shapes(millions).items()}
        plan = Plan.of(Variables.of(structs), optax.adam(LEARNING_RATE), GreedyBytes(), Async(), 1)
        optimizer = plan.shard_optimizer(0)
        self.shard = Shard(plan.layout.shards[0], CompiledProgram(optimizer.export(), "the benchmark"))
        self.lock = threading.Lock()
        self.saver = ShardSaver(
            self.shard,
            optimizer.state_contents,
            (0, 1),
            self.lock,
            directories=AllowedDirectories([directory], "ps:0"),
            seen=dict,
            sources=dict,
        )

    def update(self, gradient: Sequence[NDArray[Any]]) -> float:
        """Make an update; return its seconds."""
        begin = time.perf_counter()
        with self.lock:
            self.shard.update(gradient)
            self.saver.after_update()
        return time.perf_counter() - begin


class Growth:
    """How much the memory of this process grows, from here."""

    def __init__(self) -> None:
        """Forget the peak so far."""
        Path("/proc/self/clear_refs").write_text("5")
        self._before = _memory_bytes("VmRSS")

    def most_bytes(self) -> int:
        """Return the most by which it has grown."""
        return _memory_bytes("VmHWM") - self._before


def _memory_bytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) << 10
    raise SystemExit(f"/proc/self/status has no {field}")


def save(millions: int, directory: Path) -> dict[str, Any]:
    """Save twice beside updates."""
    one = OneShard(millions, directory)
    values = [np.random.default_rng(0).random(block.size, np.float32) for block in one.shard.layout.blocks]
    one.shard.initialise(values)
    update_s = statistics.median([one.update(values) for _ in range(5)][2:])
    checkpoints = CheckpointDirectory(directory, print)
    found: dict[str, Any] = {"seconds": [], "extra_bytes": [], "blocked_s": [], "update_s": update_s}
    for token in ("first", "second"):
        partial = checkpoints.create_partial(one.shard.version)
        growth, begin = Growth(), time.perf_counter()
        with one.lock:
            one.saver.save(m.Save(0, "", token, str(partial), 0))
        slowest_s = max(one.update(values) for _ in range(UPDATES_BESIDE))
        one.saver.close(NEVER_S)
        found["seconds"].append(time.perf_counter() - begin)
        found["blocked_s"].append(max(0.0, slowest_s - update_s))
        found["extra_bytes"].append(growth.most_bytes())
        state = one.saver.state(m.SaveQuestion(0, "", token, False), (), str)
        if state.part is None:
            raise SystemExit(state.failure)
        if token == "first":
            (partial / state.part.file).unlink()
            continue
        about: dict[str, Any] = {"created_at": 1.0, "trainband": "a benchmark", "strategy": "a benchmark"}
        checkpoints.commit(partial, Manifest(global_step=state.version, parts=(state.part,), **about))
    return found


def restore(millions: int, directory: Path) -> dict[str, Any]:
    """Restore the newest checkpoint."""
    one = OneShard(millions, directory)
    checkpoint = CheckpointDirectory(directory, print).newest()
    if checkpoint is None:
        raise SystemExit(f"There is no checkpoint in {directory}.")
    jax.block_until_ready(jax.device_put(np.ones(1, np.float32)))
    growth, begin = Growth(), time.perf_counter()
    with one.lock:
        one.saver.restore(m.Restore(0, "", "one", str(checkpoint.path)))
    one.saver.close(NEVER_S)
    state = one.saver.restore_state("one")
    if state.failure:
        raise SystemExit(state.failure)
    one.saver.adopt(m.Adopt(0, "", "one", checkpoint.global_step))
    return {"seconds": time.perf_counter() - begin, "extra_bytes": growth.most_bytes()}


def main() -> None:
    """Run the role that the flags name."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--role", choices=["save", "restore"], required=True)
    parser.add_argument("--millions", type=int, required=True)
    parser.add_argument("--directory", type=Path, required=True)
    flags = parser.parse_args()
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # as a ps does
    result = {"save": save, "restore": restore}[flags.role](flags.millions, flags.directory)
    print(json.dumps({"nbytes": BYTES_PER_PARAM * flags.millions * 1_000_000, **result}), flush=True)


if __name__ == "__main__":
    main()
