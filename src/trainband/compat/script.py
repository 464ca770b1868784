"""Run a script with trainband's module in place of the library that the script imports."""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from trainband.cluster import Cluster
from trainband.cluster.resolvers.keras_backend import prefer_jax
from trainband.compat.finder import install
from trainband.compat.numpy_names import install_numpy_names
from trainband.compat.own_modules import compiled, install_own_modules
from trainband.compat.python2 import explain, parsed, read_source
from trainband.compat.six_names import install_six
from trainband.compat.sources import read_files
from trainband.compat.tf1.scripts import flags as flags  # absl's own flags are defined before the script's
from trainband.compat.tf1.sessions import one_element
from trainband.compat.tf2.keras_import import install_bridge
from trainband.compat.version import Choice, choose
from trainband.runtime.waiting import Say, say_on_stderr

CLUSTER_FLAGS = ("ps_hosts", "worker_hosts", "job_name", "task_index")
"""The flags that tell scripts of TensorFlow 1 which task they are."""


def run(
    script: Path,
    arguments: Sequence[str],
    cluster: Cluster | None = None,
    say: Say = say_on_stderr,
    convert: bool = False,
    version: int | None = None,
) -> None:
    """Run a script like `python SCRIPT ARGUMENTS`, except for its imports of TensorFlow and old names of NumPy.

    Args:
      cluster: the cluster and this task, from the launcher; passed to the script by those flags that it defines.
      convert: convert the script, and the modules beside it that it imports, from Python 2 first, in memory.
      version: of TensorFlow, for which the script is written; if left out, what it uses decides.

    Raises:
      Python2Error: the script is Python 2, and may not be converted.
      NoConverter: it may, but fissix is not installed.
    """
    tree = parsed(read_source(script), str(script), convert)
    more = cluster_arguments(tree, arguments, cluster) if cluster is not None else []
    sys.argv = [str(script), *arguments, *more]
    sys.path[0:1] = [str(script.resolve().parent)]
    before = set(sys.modules)
    choice = Choice(version, "") if version is not None else _choice(script, tree, convert)
    install(say, choice.number, choice.reason)
    if choice.number == 2:
        prefer_jax()
        install_bridge()
    install_numpy_names(say)
    install_six()
    one_element.want(choice.number == 1)
    install_own_modules(script.resolve().parent, convert)
    failure: BaseException | None = None
    try:
        _run_main(script, tree)
        deferred = sys.modules.get("trainband.compat.tf2.eager.deferred")
        if deferred is not None:  # else the script is of version 1
            deferred.DEFERRED.finish()
    except BaseException as exc:
        failure = None if isinstance(exc, SystemExit) and not exc.code else exc
        explain(exc)
        raise
    else:
        if not any(name.partition(".")[0] == "tensorflow" for name in sys.modules.keys() - before):
            say(f"WARNING: {script} has not imported TensorFlow; --tensorflow is for scripts that do: leave it out")
    finally:
        jobs = sys.modules.get("trainband.compat.tf1.sessions.job_store")
        if jobs is not None:  # else the script has had no job
            jobs.end_all(failure)


def _choice(script: Path, tree: ast.Module, convert: bool) -> Choice:
    """The version for which a script and the modules beside it are written."""
    try:
        return choose(read_files(script, convert).trees or {script: tree})
    except (OSError, SyntaxError, UnicodeDecodeError):  # of a module that the script may never import
        return choose({script: tree})


def _run_main(script: Path, tree: ast.Module) -> None:
    main = ModuleType("__main__", ast.get_docstring(tree))
    main.__file__ = str(script)
    main.__builtins__ = builtins  # type: ignore[attr-defined]
    sys.modules["__main__"] = main
    exec(compiled(tree, str(script)), main.__dict__)


def cluster_arguments(tree: ast.Module, arguments: Sequence[str], cluster: Cluster) -> list[str]:
    """Return the cluster as flags: those that the script mentions and that were not passed already."""
    spec, task = cluster.spec, cluster.task
    hosts = {
        "ps_hosts": [spec.address(one) for one in spec.ps],
        "worker_hosts": [spec.address(one) for one in spec.workers],
    }
    index = spec.workers.index(task) if task in spec.workers else task.index
    values = {
        **{name: ",".join(addresses) for name, addresses in hosts.items()},
        "job_name": "worker" if task in spec.workers else task.job,
        "task_index": str(index),
    }
    named = _strings(tree)
    given = {argument.lstrip("-").partition("=")[0] for argument in arguments if argument.startswith("-")}
    return [f"--{name}={values[name]}" for name in CLUSTER_FLAGS if name in named and name not in given]


def _strings(tree: ast.Module) -> set[str]:
    """Return the strings in a script without leading dashes: `ps_hosts` for `add_argument("--ps_hosts")`."""
    return {
        node.value.lstrip("-")
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
