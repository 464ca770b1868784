"""Every benchmark runs to its end at its smallest setting, so that none rots between two releases."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from bench.environments import ROOT

SMALLEST = {
    "allreduce": "--rounds 1 --seconds 0.5 --only jax --only trainband-sync --only trainband-mirrored",
    "allreduce --model resnet18": "--rounds 1 --seconds 0.5 --only jax --only trainband-sync --only trainband-mirrored",
    "allreduce --model gpt2": "--rounds 1 --seconds 0.5 --only jax --only trainband-async --only trainband-mirrored",
    "chaos": "--minutes 0.5 --calm 5 --mean 5 --out {out}",
    "checkpoint": "--millions 1 --rounds 1 --saves 1 --every 1 --directory {out}",
    "compat": "--rounds 1 --train_steps 300",
    "compress": "",
    "follow": "--pairs 2 --window 1 --freshness 2",
    "gpu": "--seconds 0.1 --rounds 1",
    "input_path": "--rounds 1 --train_steps 1000 --examples 1000",
    "keras_fit": "--rounds 1 --steps 10 --epochs 3 --only plain --only one-device --only ps --only mirrored",
    "links": "--link veth --rounds 1 --exchanges 1 --millions 1",
    "many_workers": "--rounds 1 --workers 2",
    "ps_mnist": "--rounds 1 --train_steps 300 --case jax-allreduce --case trainband --case trainband-secret",
    "push_pull": "--rounds 1 --exchanges 1 --millions 1 --case socket --case trainband --case trainband-secret",
    "real_sizes": "--case 2x16 --optimizer adam",
    "scaling": "--rounds 1 --seconds 0.5 --ps 1",
    "serve": "--rounds 1 --seconds 0.5 --clients 1 --only trainband --only trainband-binary",
    "standbys": "--rounds 1 --train_steps 300",
    "stragglers": "--rounds 1 --seconds 2 --rule async --picture {out}/stragglers.png",
    "table_store": "--rounds 1 --rows 10000",
    "tables": "--rounds 1 --seconds 0.5 --ids 10000 --ps 1 --batch_size 32 --only jax --only trainband",
    "unequal": "--rounds 1 --seconds 4 --alone 4 --rule sync --picture {out}/unequal.png",
    "watch": "--rounds 2 --window 1 --viewers 2",
}
"""Of each benchmark, the arguments; the programs that it is compared with are left out where they need an environment
of their own."""

NEEDS_TENSORFLOW = ("compat",)
DEADLINE_S = 600.0


def test_all_benchmarks_are_listed() -> None:
    modules = {path.stem for path in (ROOT / "bench").glob("*.py") if "__main__" in path.read_text(encoding="utf-8")}
    assert modules == {name.split()[0] for name in SMALLEST}


@pytest.mark.slow
@pytest.mark.limit(DEADLINE_S + 30.0)
@pytest.mark.parametrize("name", SMALLEST)
def test_it_runs_at_its_smallest_setting(name: str, tmp_path: Path) -> None:
    if name in NEEDS_TENSORFLOW and not (ROOT / ".bench" / "tensorflow").exists():
        pytest.skip("TensorFlow is not in .bench/tensorflow, where `make bench` installs it")
    module, *arguments = f"{name} {SMALLEST[name].format(out=tmp_path)}".split()
    done = subprocess.run(
        (sys.executable, "-m", f"bench.{module}", *arguments),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
