"""The GPUs that the driver reports, and the devices that JAX sees."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

from trainband.cli.doctor.finding import Finding, info, missing, ok, problem
from trainband.cli.doctor.subprocesses import Answer, ask, ask_python
from trainband.cluster.resolvers.gpus import count_gpus

_JAX = """
import json, jax, jaxlib
devices = [[device.platform, device.device_kind] for device in jax.devices()]
print("\\n" + json.dumps([jax.__version__, jaxlib.__version__, devices]))
"""
_QUERY = ("--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")


def nvidia(timeout_s: float) -> Finding:
    """The GPUs that the driver reports, and how many this process may use."""
    driver = Path("/proc/driver/nvidia")
    models = [
        line.partition(":")[2].strip()
        for path in sorted(driver.glob("gpus/*/information"))
        for line in path.read_text(errors="replace").splitlines()
        if line.startswith("Model:")
    ]
    program = shutil.which("nvidia-smi")
    asked = ask([program, *_QUERY], timeout_s) if program else Answer(127)
    if asked.code is None:
        return problem(
            "NVIDIA GPUs",
            f"nvidia-smi gave no answer in {timeout_s:g} s",
            "Check dmesg for the driver's messages (NVRM).",
        )
    if asked.code == 0 and asked.output.strip():
        models = [line.strip() for line in asked.output.strip().splitlines()]
    if not models and not driver.exists():
        return info("NVIDIA GPUs", "none", models=[], usable=0)
    usable = count_gpus()
    text = counted(models) + (f"; this process may use {usable}" if usable != len(models) else "")
    return ok("NVIDIA GPUs", text, models=models, usable=usable)


def jax(timeout_s: float) -> list[Finding]:
    """JAX's version and devices, from another process, because a stuck driver may hang it."""
    # Otherwise JAX would take most of the memory of every GPU, perhaps from a running job.
    answer = ask_python(_JAX, timeout_s, {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"})
    if answer.code is None:
        advice = "Try again with JAX_PLATFORMS=cpu: if JAX answers then, an accelerator or its driver hangs."
        return [problem("JAX", f"no answer in {timeout_s:g} s", advice, stops_jobs=True)]
    if answer.code:
        advice = "Run `python -c 'import jax; print(jax.devices())'` to see the whole error."
        return [problem("JAX", f"does not start: {answer.last_error}", advice, stops_jobs=True)]
    version, jaxlib, devices = json.loads(answer.output.strip().splitlines()[-1])
    names = [kind if platform == kind else f"{kind} ({platform})" for platform, kind in devices]
    return [
        ok("JAX", f"{version}, jaxlib {jaxlib}", version=version, jaxlib=jaxlib),
        ok("JAX devices", counted(names), platforms=[platform for platform, _ in devices]),
    ]


def accelerators(timeout_s: float) -> list[Finding]:
    """GPUs and JAX's devices, and whether they agree."""
    gpus, found = nvidia(timeout_s), jax(timeout_s)
    platforms = found[-1].facts.get("platforms", [])
    if gpus.facts.get("usable") and platforms and not {"gpu", "cuda"} & set(platforms):
        found.append(missing("JAX on GPUs", "JAX does not see the GPUs", "pip install 'jax[cuda12]'"))
    return [gpus, *found]


def counted(names: list[str]) -> str:
    """Returns the names with their counts, such as `2 × A, B`."""
    return ", ".join(name if n == 1 else f"{n} × {name}" for name, n in Counter(names).items()) or "none"
