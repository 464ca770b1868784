"""UCX: whether it is installed, what it offers, and whether it starts."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from trainband.cli.doctor.finding import Finding, info, missing, ok, problem
from trainband.cli.doctor.subprocesses import ask, ask_python
from trainband.cluster.resolvers.transport import ucx_settings
from trainband.wire.ucx.library import find

INSTALL = "pip install 'trainband[ucx]'"
_RDMA = ("rc", "ud", "dc", "gga", "srd")
"""Prefixes of UCX's RDMA transports: `rc_verbs`, `dc_mlx5`."""
_GPU = ("cuda", "gdr", "rocm", "ze")

_START = """
import json
from trainband.errors import TransportUnavailable
from trainband.wire.ucx import ucx
try:
    context = ucx()
    context.library.worker_destroy(context.make_worker())
    said = {"version": context.library.version_text}
except (TransportUnavailable, OSError) as exc:
    said = {"error": str(exc)}
print("\\n" + json.dumps(said))
"""


def ucx_library(timeout_s: float, *, has_rdma: bool, is_wanted: bool) -> list[Finding]:
    """Examines UCX.

    Args:
      has_rdma: whether this machine has an RDMA port.
      is_wanted: whether streams must use it, so that a job cannot run without it.
    """
    path = find()
    if not path:
        text = "not installed; streams to other machines go over Arrow Flight"
        if is_wanted:
            text = "not installed, and TRAINBAND_TRANSPORT asks for it"
            return [problem("UCX", text, INSTALL, stops_jobs=True)]
        return [missing("UCX", text, INSTALL)]
    found = [
        _start(path, timeout_s, is_wanted=is_wanted),
        info("library", path),
        *_offers(path, timeout_s, has_rdma=has_rdma),
    ]
    settings = {f"UCX_{name}": value for name, value in sorted(ucx_settings().items())}
    if settings:
        found.append(info("settings", ", ".join(f"{name}={value}" for name, value in settings.items()), **settings))
    return found


def _start(path: str, timeout_s: float, *, is_wanted: bool) -> Finding:
    """Starts UCX in another process, because a C library built for another machine may crash it."""
    answer = ask_python(_START, timeout_s)
    advice = "Check the UCX_* variables that are set; TRAINBAND_TRANSPORT=flight avoids UCX."
    if answer.code is None:
        text = f"does not start within {timeout_s:g} s"
        return problem("UCX", text, advice, stops_jobs=is_wanted, path=path)
    said = json.loads(answer.output.strip().splitlines()[-1]) if answer.code == 0 else {"error": answer.last_error}
    if "error" in said:
        return problem("UCX", said["error"].removeprefix("UCX "), advice, stops_jobs=is_wanted, path=path)
    return ok("UCX", f"{said['version']}, and it starts", path=path, version=said["version"])


def _offers(path: str, timeout_s: float, *, has_rdma: bool) -> list[Finding]:
    """The output of UCX's own program, if it is beside the library."""
    folder = Path(path).parent
    program = next((p for p in (folder.parent / "bin/ucx_info", Path("/usr/bin/ucx_info")) if p.is_file()), None)
    if program is None:
        return [missing("transports", "unknown: ucx_info is not beside the library")]
    search = os.pathsep.join(filter(None, [str(folder), os.environ.get("LD_LIBRARY_PATH", "")]))
    environ = {"LD_LIBRARY_PATH": search} if os.sep in path else {}
    answer = ask([str(program), "-d"], timeout_s, environ)
    if answer.code is None:
        return [missing("transports", f"unknown: ucx_info gave no answer in {timeout_s:g} s")]
    if answer.code:
        return [missing("transports", f"unknown: {answer.last_error}")]
    return describe(parse_ucx_info(answer.output), has_rdma=has_rdma)


def parse_ucx_info(text: str) -> dict[str, list[str]]:
    """The devices of each transport, in the order in which `ucx_info -d` lists them."""
    found: dict[str, list[str]] = {}
    transport = ""
    for line in text.splitlines():
        key, _, value = line.lstrip("# ").partition(":")
        if key == "Transport":
            transport = value.strip()
            found.setdefault(transport, [])
        elif key == "Device" and transport and value.strip() not in found[transport]:
            found[transport].append(value.strip())
    return found


def describe(transports: Mapping[str, Sequence[str]], *, has_rdma: bool) -> list[Finding]:
    """The findings for a list of transports."""
    text = ", ".join(
        name if list(devices) == ["memory"] else f"{name} ({', '.join(devices)})"
        for name, devices in transports.items()
    )
    rdma = [name for name in transports if name.startswith(_RDMA)]
    gpu = [name for name in transports if name.startswith(_GPU)]
    found = [info("transports", text or "none", **{name: list(devices) for name, devices in transports.items()})]
    if rdma:
        found.append(ok("RDMA", ", ".join(rdma), transports=rdma))
    elif has_rdma:
        advice = (
            "Install the UCX of your distribution or network vendor (libucp.so), which then takes precedence over the "
            "wheel: that is built without RDMA."
        )
        found.append(
            problem("RDMA", "this machine has RDMA ports, and this UCX does not use them", advice, transports=[])
        )
    else:
        found.append(info("RDMA", "none; UCX uses TCP between machines", transports=[]))
    found.append(info("GPU memory", ", ".join(gpu) or "no transport of this UCX sends it directly", transports=gpu))
    return found
