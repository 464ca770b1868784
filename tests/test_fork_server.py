"""Forked processes do what those of a new interpreter do."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.programs import ROOT, Programs
from tests.programs import programs as programs

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process take orphans")

PROGRAM = """
import json, os, signal, sys, warnings
is_forked = "optax" in sys.modules
import jax
shown = lambda name: open(f"/proc/self/{name}").read().rstrip(chr(0)).split(chr(0))
names = ("__file__", "__name__", "__package__", "__spec__")
print(json.dumps({
    "is_forked": is_forked,
    "parent": os.getppid(),
    "leads": os.getpgrp() == os.getpid(),
    "argv": [sys.argv, sys.orig_argv[1:], sys.path, sys.warnoptions],
    "main": [repr(vars(sys.modules["__main__"])[name]) for name in names],
    "filters": [each[0] for each in warnings.filters if each[1] is None and not "scipy" in each[2].__module__],
    "environ": {name: os.environ[name] for name in sorted(os.environ) if name != "LC_TIME"},
    "shown": [entry for entry in shown("environ") if not entry.startswith("LC_TIME=")],
    "command": shown("cmdline"),
    "files": sorted(os.listdir("/proc/self/fd"))[:3],
    "buffered": [sys.stdout.write_through, sys.stderr.write_through, sys.stdout.line_buffering],
    "signals": [str(signal.getsignal(number)) for number in sorted(signal.valid_signals())],
    "settings": [jax.config.jax_platforms, jax.config.jax_enable_x64, jax.device_count()],
}))
sys.stdout.flush()
exec(sys.argv[1])
"""
SERVER = ROOT / "tests" / "fork_server.py"
EXECUTED = {"LC_TIME": "C"}
"""A variable that imports read and the fork server does not have, so that Python is executed."""


def ends(
    programs: Programs, directory: Path, statement: str, environ: dict[str, str]
) -> tuple[dict[str, Any], str, int]:
    """What the program finds, what it prints on stderr, and its exit code."""
    script = directory / "program.py"
    script.write_text(PROGRAM)
    program = programs.python("program", "-W", "ignore::ResourceWarning", str(script), statement, environ=environ)
    code = program.wait()
    return json.loads(program.stdout), program.stderr, code


@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ("1 / 0", 1),
        ("sys.exit(7)", 7),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("raise KeyboardInterrupt", -signal.SIGINT),
    ],
)
def test_a_forked_process_runs_and_ends_like_an_executed_one(
    statement: str, code: int, programs: Programs, tmp_path: Path
) -> None:
    environ = {"PYTHONUNBUFFERED": "1", "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    forked = ends(programs, tmp_path, statement, environ)
    executed = ends(programs, tmp_path, statement, environ | EXECUTED)
    assert forked[0].pop("is_forked")
    assert not executed[0].pop("is_forked")
    for name, found in executed[0].items():
        assert forked[0][name] == found, name
    assert forked[1:] == executed[1:]
    assert forked[2] == code


@pytest.mark.parametrize("environ", [{"JAX_ENABLE_X64": "1"}, {"JAX_ENABLE_X64": "0"}])
def test_a_setting_that_imports_read_takes_effect(environ: dict[str, str], programs: Programs, tmp_path: Path) -> None:
    found, _, code = ends(programs, tmp_path, "", environ)
    assert code == 0
    assert found["settings"][1] is (environ["JAX_ENABLE_X64"] == "1")
    assert not found["is_forked"]


def test_a_module_beside_the_script_shadows_an_installed_one(programs: Programs, tmp_path: Path) -> None:
    (tmp_path / "optax.py").write_text("found = 'beside the script'")
    found, stderr, code = ends(programs, tmp_path, "import optax; sys.exit(optax.found)", {})
    assert (stderr, code) == ("beside the script\n", 1)
    assert not found["is_forked"]


def test_a_killed_server_is_started_again(programs: Programs, tmp_path: Path) -> None:
    before, _, _ = ends(programs, tmp_path, "", {})
    server = next(child for child in psutil.Process().children() if str(SERVER) in child.cmdline())
    server.kill()
    server.wait()
    after, _, _ = ends(programs, tmp_path, "", {})
    assert before == after
