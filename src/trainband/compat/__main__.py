"""`python -m trainband.compat SCRIPT [ARGS]` runs a script of TensorFlow; `--check SCRIPT` lists the names it lacks."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainband.cluster import Cluster

USAGE = """usage: python -m trainband.compat [--tensorflow 1|2] [--convert] SCRIPT [ARGS]...
       python -m trainband.compat --check [--tensorflow 1|2] [--convert] SCRIPT...
       python -m trainband.compat --convert-to FILE SCRIPT

Run a script of TensorFlow on trainband; list the names and arguments that it and its modules use and that are not
there, without running it; or write it as Python 3. With --convert, what is Python 2 is converted in memory first.

Whether a script is one of TensorFlow 1 or 2 follows from what it uses, unless --tensorflow says so.

--check ends with 0 if nothing is missing, 1 if something is, 2 if a file cannot be read, and 3 if one is Python 2."""


@dataclass(slots=True)
class _Options:
    """What stands before SCRIPT."""

    convert: bool = False
    version: int | None = None
    target: str = ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("-h", "--help"):
        print(USAGE)
        return 0 if given else 2
    action, options = _run, _Options()
    while given and given[0].partition("=")[0] in ("--check", "--convert", "--convert-to", "--tensorflow"):
        option, equals, value = given.pop(0).partition("=")
        if option == "--check":
            action = _check
        elif option == "--convert":
            options.convert = True
        else:
            value = value if equals else given.pop(0) if given else ""
            if option == "--convert-to":
                action, options.target = _write, value
            elif value in ("1", "2"):
                options.version = int(value)
            else:
                return _complain(f"--tensorflow takes 1 or 2, got {value!r}.")
    if not given or (action is _write and not options.target):
        print(USAGE)
        return 2
    if not Path(given[0]).is_file():
        return _complain(f"there is no script {given[0]!r} in {Path.cwd()}.")
    from trainband.compat.python2 import NoConverter

    try:
        return action(given, options)
    except NoConverter as exc:
        return _complain(str(exc))


def _run(given: Sequence[str], options: _Options) -> int:
    from trainband.cluster.resolvers.log_level import follow_environment

    follow_environment()
    from trainband.compat.python2 import Python2Error
    from trainband.compat.script import run

    try:
        run(Path(given[0]), given[1:], _cluster(), convert=options.convert, version=options.version)
    except Python2Error as exc:
        return _complain(str(exc))
    return 0


def _cluster() -> Cluster | None:
    """The cluster and this task, for the flags of the script; `None` if its jobs have other names, such as `master`."""
    from trainband.cluster import JOBS, resolve
    from trainband.cluster.resolvers.tf_config import content

    jobs = (content() or {}).get("cluster")
    return None if isinstance(jobs, dict) and not jobs.keys() <= set(JOBS) else resolve()


def _write(given: Sequence[str], options: _Options) -> int:
    from trainband.compat.python2 import as_utf8, converted, read_source

    script = Path(given[0])
    Path(options.target).write_bytes(as_utf8(converted(read_source(script), str(script))))
    return 0


def _check(given: Sequence[str], options: _Options) -> int:
    from trainband.cluster.resolvers.keras_backend import prefer_jax

    prefer_jax()
    from trainband.compat.check import check_files

    worst, count = 0, 0
    for script in map(Path, given):
        try:
            report = check_files(script, options.convert, options.version)
        except (OSError, SyntaxError, UnicodeDecodeError) as exc:
            return _complain(f"{script}: {exc}")
        for path, found in report.missing.items():
            for missing in found:
                print(f"{path}:{missing.line}: {missing}")
            count += len(found)
        for reason in report.python2.values():
            print(reason)
        if report.used:
            because = f" ({report.choice.reason})" if report.choice.reason else ""
            print(f"{script}: {report.coverage}{because}")
        worst = max(worst, 3 if report.python2 else 1 if report.missing else 0)
    if count or worst == 0:
        print(f"{count} name{'s' * (count != 1)} missing" if count else "nothing is missing")
    return worst


def _complain(text: str) -> int:
    print(f"python -m trainband.compat: {text}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
