"""Where the peers' interpreters come from: TensorFlow and PyTorch are never installed beside trainband."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parent.parent
TENSORFLOW = "2.21"
TORCH = "2.13"
TORCH_NEEDS = ("filelock", "fsspec", "jinja2", "markupsafe", "mpmath", "networkx", "numpy", "setuptools", "sympy")
_HOME = ROOT / ".bench"


def tensorflow_python(given: Path | None = None, *, also: str = "") -> Path:
    """Return a Python interpreter that has TensorFlow, making a virtual environment for it if needed.

    Args:
      given: an interpreter with it installed, which is checked; None for the one in ``.bench/tensorflow``.
      also: another package that it must have, such as ``tf_keras``, of the same version.

    Returns:
      The interpreter's path.

    Raises:
      click.ClickException: the given interpreter has not what is wanted, or the installation failed.
    """
    if given is not None:
        found = _tensorflow_version(given)
        if found is None:
            raise click.ClickException(f"{given} has no TensorFlow; leave --tensorflow-python out to install it.")
        if not _is_wanted(found):
            click.echo(f"Note: {given} has TensorFlow {found}; the published figures are of {TENSORFLOW}.", err=True)
        if also and _version(given, also) is None:
            raise click.ClickException(f"{given} has no {also}; leave --tensorflow-python out to install it.")
        return given.absolute()
    python = _HOME / "tensorflow" / "bin" / "python"
    if not _is_wanted(_tensorflow_version(python)):
        _make(python, f"TensorFlow {TENSORFLOW}")
        if not _install(python, f"tensorflow=={TENSORFLOW}.*"):
            raise click.ClickException("TensorFlow could not be installed; give an interpreter by --tensorflow-python.")
    if also and _version(python, also) is None and not _install(python, f"{also}=={TENSORFLOW}.*"):
        raise click.ClickException(f"{also} could not be installed; give an interpreter by --tensorflow-python.")
    return python


def torch_python(given: Path | None = None) -> Path:
    """Return a Python interpreter that has PyTorch, making a virtual environment for it if needed.

    PyTorch's own dependencies are gigabytes of libraries for GPUs, which a build for the CPU can do without. So it is
    first installed with those alone that are Python, and with all only where it cannot be imported then.

    Args:
      given: an interpreter with it installed, which is checked; None for the one in ``.bench/torch``.

    Returns:
      The interpreter's path.

    Raises:
      click.ClickException: the given interpreter has no PyTorch, or the installation failed.
    """
    if given is not None:
        if not has_torch(given):
            raise click.ClickException(f"{given} has no PyTorch; leave --torch-python out to install it.")
        return given.absolute()
    python = _HOME / "torch" / "bin" / "python"
    if has_torch(python) and _imports(python, "torch"):
        return python
    _make(python, f"PyTorch {TORCH}")
    wanted = f"torch=={TORCH}.*"
    without = _install(python, "--no-deps", wanted, "typing-extensions", *TORCH_NEEDS) and _imports(python, "torch")
    if not (without or (_install(python, wanted, "numpy") and _imports(python, "torch"))):
        raise click.ClickException("PyTorch could not be installed; give an interpreter by --torch-python.")
    return python


def serving_python(given: Path | None = None) -> Path:
    """Return a Python interpreter that has the peers of `bench/serve.py`, making a virtual environment if needed.

    Args:
      given: an interpreter with them installed, which is checked; None for the one in ``.bench/serving``.

    Returns:
      The interpreter's path.

    Raises:
      click.ClickException: the given interpreter lacks one, or the installation failed.
    """
    wanted = ("jax", "fastapi", "uvicorn", "litserve", "uvloop", "httptools")
    python = given or _HOME / "serving" / "bin" / "python"
    lacking = [package for package in wanted if _version(python, package) is None]
    if lacking and given is not None:
        raise click.ClickException(f"{given} has no {lacking[0]}; leave --peer-python out to install it.")
    if lacking:
        _make(python, "FastAPI and LitServe")
        if not _install(python, *wanted):
            raise click.ClickException("the peers could not be installed; give an interpreter by --peer-python.")
    return python.absolute()


def has_torch(python: Path) -> bool:
    """Say whether an interpreter has PyTorch."""
    return _version(python, "torch") is not None


def our_environment(workers: int) -> dict[str, str]:
    """Return the variables for tasks in our own interpreter: XLA's, as `trainband run` sets them, and the code's place.

    Each of the processes would otherwise start as many compute threads as there are cores, and they get in each
    other's way.
    """
    threads = str(max(1, (os.cpu_count() or 1) // workers))
    paths = os.pathsep.join(filter(None, [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    return {
        "NPROC": threads,
        "PJRT_NPROC": threads,
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": paths,
        "UCX_TLS": "tcp",  # whatever network cards this machine has
        "TRAINBAND_TRUSTED_FABRIC": "1",  # the loopback interface: streams may take UCX
        "PYTHONDONTWRITEBYTECODE": "",  # an installed package has its bytecode
    }


def peer_environment(workers: int) -> dict[str, str]:
    """Return the variables for a peer in its own interpreter: `bench` alone, and PyTorch's threads as torchrun does.

    TensorFlow heeds none of these; it decides for itself, as it does for its users.
    """
    threads = str(max(1, (os.cpu_count() or 1) // workers))
    return {"OMP_NUM_THREADS": threads, "PYTHONPATH": str(ROOT)}


def _make(python: Path, what: str) -> None:
    """Make the virtual environment of this interpreter."""
    click.echo(f"Installing {what} into {python.parents[1]}; this happens once.", err=True)
    _HOME.mkdir(exist_ok=True)
    (_HOME / ".gitignore").write_text("*\n")  # the directory hides itself, whatever the repository ignores
    venv.create(python.parents[1], with_pip=True, clear=True)


def _install(python: Path, *arguments: str) -> bool:
    """Have pip install something; say whether it did."""
    command = [str(python), "-m", "pip", "install", "--quiet", *arguments]
    return subprocess.run(command, stdout=sys.stderr).returncode == 0  # our standard output may be JSON for a program


def _imports(python: Path, package: str) -> bool:
    """Say whether an interpreter can import a package."""
    return subprocess.run([python, "-c", f"import {package}"], capture_output=True).returncode == 0


def _is_wanted(version: str | None) -> bool:
    return version is not None and version.startswith(f"{TENSORFLOW}.")


def _tensorflow_version(python: Path) -> str | None:
    return _version(python, "tensorflow")


def _version(python: Path, package: str) -> str | None:
    """Ask an interpreter for a package's version, without importing that (it takes seconds)."""
    program = f"from importlib.metadata import version; print(version({package!r}))"
    try:
        done = subprocess.run([python, "-c", program], capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
