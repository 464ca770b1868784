"""Records what Slurm sets in the environment.

`python -m tests.cluster.record_slurm` writes slurm.json beside this file. It needs Slurm; see
`tests/slurm_cluster.py`. What is recorded is the environment of each task, or of the shell.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

from tests.slurm_cluster import SlurmCluster, slurm_cluster

RECORDED = Path(__file__).with_name("slurm.json")

_HETEROGENEOUS = """#!/bin/bash
#SBATCH --partition=cpu --nodes=1 --ntasks=1
#SBATCH hetjob
#SBATCH --partition=main --nodes=2 --ntasks=3
{record} "script of a heterogeneous job"
srun --het-group=0,1 {record} "step over both groups"
srun --het-group=1 {record} "step in one group"
srun --overlap --het-group=1 --nodes=1 --ntasks=1 --nodelist=127.0.0.12 {record} "step of one task in a group"
"""
_SCRIPT = """#!/bin/bash
#SBATCH --nodes=2 --ntasks=6
{record} "script"
srun --nodes=2 --ntasks=2 {record} "step smaller than its job"
"""
_NESTED = """#!/bin/bash
[ "$SLURM_PROCID" = 1 ] || exit 0
sbatch --wait --partition=cpu --ntasks=1 --wrap '{record} "script that a task has submitted"'
salloc --quiet --partition=cpu --ntasks=1 {record} "shell that a task has allocated"
"""


def _record(cluster: SlurmCluster) -> None:
    record = f"{sys.executable} -m tests.cluster.record_slurm"

    def script(text: str) -> str:
        with tempfile.NamedTemporaryFile("w", dir=cluster.directory, suffix=".sh", delete=False) as file:
            file.write(text.replace("{record}", record))
        path = Path(file.name)
        path.chmod(0o755)
        return str(path)

    command = record.split()
    cluster.command("srun", "-N2", "-n4", *command, "step")
    cluster.command("srun", "-N2", "-n5", "--distribution=cyclic", *command, "step, cyclic")
    cluster.command("srun", "-N2", "-n6", "--distribution=plane=2", *command, "step, in planes of two")
    placed = ("-w", "127.0.0.11,127.0.0.12,127.0.0.11,127.0.0.12")
    cluster.command("srun", "-N2", "-n4", "--distribution=arbitrary", *placed, *command, "step, arbitrary")
    cluster.command("srun", "-n1", *command, "srun --pty bash")
    cluster.command("salloc", "--quiet", "-N2", "-n4", *command, "salloc")
    cluster.command("sbatch", "--wait", script(_SCRIPT))
    cluster.command("sbatch", "--wait", script(_HETEROGENEOUS))
    cluster.command("srun", "-N2", "-n2", script(_NESTED))


def main() -> None:
    """Records everything; with an argument, the environment of this process under that name."""
    if len(sys.argv) > 1:
        found = {
            name: value
            for name, value in sorted(os.environ.items())
            # The older names, and what is the recording machine's.
            if name.startswith("SLURM") and "PACK_" not in name and name not in ("SLURM_CONF", "SLURM_SUBMIT_DIR")
        }
        rank = found.get("SLURM_PROCID", "0")
        (Path(os.environ["TRAINBAND_RECORD"]) / f"{sys.argv[1]} {rank}.json").write_text(
            json.dumps(found), encoding="utf-8"
        )
        return
    with slurm_cluster() as cluster, tempfile.TemporaryDirectory() as place:
        os.environ["TRAINBAND_RECORD"] = place
        _record(cluster)
        environments: dict[str, list[dict[str, str]]] = {}
        for file in sorted(Path(place).iterdir()):
            environments.setdefault(file.stem.rpartition(" ")[0], []).append(json.loads(file.read_text("utf-8")))
    RECORDED.write_text(json.dumps(environments, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
