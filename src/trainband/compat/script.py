"""Run a script with trainband's module in place of the library that the script imports."""

from __future__ import annotations

import ast
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from trainband.cluster import Cluster
from trainband.compat.finder import install
from trainband.runtime.waiting import Say, say_on_stderr

CLUSTER_FLAGS = ("ps_hosts", "worker_hosts", "job_name", "task_index")
"""The flags that tell scripts of TensorFlow 1 which task they are."""


def run(script: Path, arguments: Sequence[str], cluster: Cluster | None = None, say: Say = say_on_stderr) -> None:
    """Run a script like `python SCRIPT ARGUMENTS`, except for its imports of TensorFlow.

    Args:
      cluster: the cluster and this task, from the launcher; passed to the script by those flags that it defines.
    """
    source = script.read_text(encoding="utf-8")
    more = cluster_arguments(source, arguments, cluster) if cluster is not None else []
    sys.argv = [str(script), *arguments, *more]
    sys.path[0:1] = [str(script.resolve().parent)]
    before = set(sys.modules)
    install(say)
    failure: BaseException | None = None
    try:
        runpy.run_path(str(script), run_name="__main__")
    except BaseException as exc:
        failure = None if isinstance(exc, SystemExit) and not exc.code else exc
        raise
    else:
        if not any(name.partition(".")[0] == "tensorflow" for name in sys.modules.keys() - before):
            say(f"WARNING: {script} has not imported TensorFlow; --tensorflow is for scripts that do: leave it out")
    finally:
        jobs = sys.modules.get("trainband.compat.tf1.sessions.job_store")
        if jobs is not None:  # else the script has had no job
            jobs.end_all(failure)


def cluster_arguments(source: str, arguments: Sequence[str], cluster: Cluster) -> list[str]:
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
    named = _strings(source)
    given = {argument.lstrip("-").partition("=")[0] for argument in arguments if argument.startswith("-")}
    return [f"--{name}={values[name]}" for name in CLUSTER_FLAGS if name in named and name not in given]


def _strings(source: str) -> set[str]:
    """Return the strings in a script without leading dashes: `ps_hosts` for `add_argument("--ps_hosts")`."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return set()
    return {
        node.value.lstrip("-")
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
