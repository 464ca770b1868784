"""The Python of another environment: finds it, creates it, and runs scripts in it."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import venv
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trainband.errors import ModelError, YourError
from trainband.runtime.waiting import Say

HERE = Path(__file__).parent
CONVERT_S = 600.0
"""Deadline of one conversion."""
PROBE_S = 120.0
"""Deadline of an interpreter's imports."""
INSTALL_S = 1800.0
"""Deadline of pip."""


@dataclass(frozen=True, slots=True)
class Package:
    """The package of a converter.

    Attributes:
      name: for pip.
      module: for imports.
      stablehlo: its module with StableHLO's versions.
    """

    name: str
    module: str
    stablehlo: str


PACKAGES = {
    "litert": Package("litert-converter", "litert_converter", "litert_converter.mlir.dialects.stablehlo"),
    "saved-model": Package("tensorflow", "tensorflow", "tensorflow.compiler.mlir.stablehlo.stablehlo"),
}
"""Package of each target that is converted in another environment."""


@dataclass(frozen=True, slots=True)
class Converter:
    """An environment with a package.

    Attributes:
      python: its interpreter.
      stablehlo: the version of StableHLO that the package reads.
    """

    python: Path
    stablehlo: str

    @classmethod
    @functools.cache  # the imports of TensorFlow take seconds
    def found(cls, package: Package, given: Path | None, purpose: str) -> Converter:
        """Returns the environment of the given interpreter, or this one.

        Raises:
          YourError: it lacks the package.
        """
        if given is None:
            if find_spec(package.module) is None:
                raise YourError(
                    f"{purpose} needs {package.name}, which is not in this environment. Name a Python that has it "
                    "(--converter PYTHON), or create an environment for it (--make-converter DIRECTORY)."
                )
            given = Path(sys.executable)
        code = f"from {package.stablehlo.rpartition('.')[0]} import stablehlo; print(stablehlo.get_current_version())"
        try:
            probe = subprocess.run(
                [given, "-c", code], stdin=subprocess.DEVNULL, capture_output=True, timeout=PROBE_S, check=False
            )
        except OSError as exc:
            raise YourError(f"cannot run the converter's Python, {given}: {exc.strerror}.") from exc
        except subprocess.TimeoutExpired:
            raise YourError(f"{given} did not import {package.name} within {PROBE_S:.0f} s.") from None
        if probe.returncode:
            raise YourError(
                f"{purpose} needs {package.name}, but {given} cannot import it: "
                f"{_last_line(probe.stderr)}. Install it there ({given} -m pip install {package.name}), or name "
                "another (--converter PYTHON)."
            )
        return cls(given.absolute(), probe.stdout.decode().split()[-1])


def make_environment(directory: Path, package: Package, say: Say) -> Path:
    """Returns the Python of a virtual environment with a package, creating it if missing.

    Raises:
      YourError: the directory holds something else, or the installation failed.
    """
    python = directory / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    if not python.exists():
        if directory.exists() and any(directory.iterdir()):
            raise YourError(f"--make-converter {directory}: this is not a virtual environment; give another directory.")
        say(f"creating a virtual environment in {directory}")
        venv.create(directory, with_pip=True)
    has: list[str | Path] = [
        python,
        "-c",
        f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package.module!r}) is None)",
    ]
    if subprocess.run(has, check=False, timeout=PROBE_S).returncode == 0:
        return python
    say(f"installing {package.name} there, several hundred megabytes; this happens once")
    command: list[str | Path] = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", package.name]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=INSTALL_S, check=False)
    except subprocess.TimeoutExpired:
        raise YourError(f"pip did not install {package.name} within {INSTALL_S:.0f} s.") from None
    if done.returncode:
        raise YourError(f"could not install {package.name} into {directory}: {_last_line(done.stderr)}")
    return python


def run_script(python: Path, script: str, work: Path, request: Mapping[str, Any], purpose: str) -> dict[str, Any]:
    """Runs a script of this folder on a directory, which holds its files and its arguments, `request.json`.

    Returns:
      The contents of `answer.json`, which the script writes.

    Raises:
      ModelError: the program cannot be converted, or the script crashed on it.
      YourError: it cannot be run, or missed its deadline.
    """
    (work / "request.json").write_text(json.dumps(dict(request)), encoding="utf-8")
    answer = work / "answer.json"
    answer.unlink(missing_ok=True)
    try:
        done = subprocess.run(
            [python, HERE / script, work],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=CONVERT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise YourError(f"{purpose}: {python} did not finish within {CONVERT_S:.0f} s and was stopped.") from None
    except OSError as exc:
        raise YourError(f"{purpose}: cannot run {python}: {exc}.") from exc
    if not answer.is_file():
        if done.returncode < 0:  # the program crashed it
            raise ModelError(f"{purpose}: {python} was killed by signal {-done.returncode}")
        raise YourError(f"{purpose}: {python} exited with {done.returncode}: {_last_line(done.stderr)}")
    said: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
    if "error" in said:
        raise ModelError(f"{purpose}: {said['error']}")
    return said


def _last_line(output: bytes) -> str:
    lines = output.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it printed nothing"
