"""Copying a directory to another machine, through a command that runs commands there."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence

from trainband.errors import YourError
from trainband.runtime.waiting import Say

EXCLUDED = (".git", ".venv", "__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache")
COPY_S = 600.0


def copy_directory(source: str, command: Sequence[str], target: str, *, environ: Mapping[str, str], say: Say) -> None:
    """Copies the files of a directory into one on another machine, which is created if missing.

    Files that exist only there stay. Environments, caches and the git history are left out, see `EXCLUDED`.

    Args:
      command: runs a shell command line there, such as `["ssh", "host"]`.

    Raises:
      YourError: it cannot be copied; the message has the machine's reason.
    """
    if shutil.which("tar", path=environ.get("PATH")) is None:
        raise YourError("copying files needs tar, which is not installed here.")
    say(f"copying {source} to {command[-1]}:{target}")
    pack = ["tar", "-czf", "-", *(f"--exclude={name}" for name in EXCLUDED), "-C", source, "."]
    unpack = f"mkdir -p {shlex.quote(target)} && tar -xzf - -C {shlex.quote(target)}"
    with subprocess.Popen(pack, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(environ)) as packing:
        assert packing.stdout is not None
        assert packing.stderr is not None
        try:
            there = subprocess.run(
                [*command, unpack],
                stdin=packing.stdout,
                capture_output=True,
                env=dict(environ),
                timeout=COPY_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            packing.kill()
            raise YourError(f"copying {source} to {command[-1]} took more than {COPY_S:.0f} s.") from None
        except OSError as exc:
            packing.kill()
            raise YourError(f"{command[0]} cannot be run on this machine: {exc.strerror}.") from None
        packing.stdout.close()
        said = (there.stderr or packing.stderr.read()).decode(errors="replace").strip()
    if there.returncode or packing.returncode:
        last = said.splitlines()[-1] if said else f"exit code {there.returncode or packing.returncode}"
        raise YourError(f"{source} cannot be copied to {command[-1]}: {last}.")
