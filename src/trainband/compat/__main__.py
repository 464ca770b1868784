"""`python -m trainband.compat SCRIPT [ARGS]` runs a TensorFlow 1 script; `--check SCRIPT` lists the names it lacks."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainband.cluster import Cluster

USAGE = """usage: python -m trainband.compat [--convert] SCRIPT [ARGS]...
       python -m trainband.compat --check [--convert] SCRIPT...
       python -m trainband.compat --convert-to FILE SCRIPT

Run a script of TensorFlow 1 on trainband; list the names and arguments that it and its modules use and that are not
there, without running it; or write it as Python 3. With --convert, what is Python 2 is converted in memory first.

--check ends with 0 if nothing is missing, 1 if something is, 2 if a file cannot be read, and 3 if one is Python 2."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("-h", "--help"):
        print(USAGE)
        return 0 if given else 2
    action, convert, target = _run, False, ""
    while given and given[0] in ("--check", "--convert", "--convert-to"):
        option = given.pop(0)
        if option == "--check":
            action = _check
        elif option == "--convert-to":
            action, target = _write, given.pop(0) if given else ""
        else:
            convert = True
    if not given or (action is _write and not target):
        print(USAGE)
        return 2
    if not Path(given[0]).is_file():
        return _complain(f"there is no script {given[0]!r} in {Path.cwd()}.")
    from trainband.compat.python2 import NoConverter

    try:
        return action([target, *given] if action is _write else given, convert)
    except NoConverter as exc:
        return _complain(str(exc))


def _run(given: Sequence[str], convert: bool) -> int:
    from trainband.cluster.resolvers.log_level import follow_environment

    follow_environment()
    from trainband.compat.python2 import Python2Error
    from trainband.compat.script import run

    try:
        run(Path(given[0]), given[1:], _cluster(), convert=convert)
    except Python2Error as exc:
        return _complain(str(exc))
    return 0


def _cluster() -> Cluster | None:
    """The cluster and this task, for the flags of the script; `None` if its jobs have other names, such as `master`."""
    from trainband.cluster import JOBS, resolve
    from trainband.cluster.resolvers.tf_config import content

    jobs = (content() or {}).get("cluster")
    return None if isinstance(jobs, dict) and not jobs.keys() <= set(JOBS) else resolve()


def _write(given: Sequence[str], convert: bool) -> int:
    del convert
    from trainband.compat.python2 import converted, read_source

    target, script = Path(given[0]), Path(given[1])
    target.write_text(converted(read_source(script), str(script)), encoding="utf-8")
    return 0


def _check(given: Sequence[str], convert: bool) -> int:
    from trainband.compat.check import check_files

    worst, count = 0, 0
    for script in map(Path, given):
        try:
            report = check_files(script, convert)
        except (OSError, SyntaxError, UnicodeDecodeError) as exc:
            return _complain(f"{script}: {exc}")
        for path, found in report.missing.items():
            for missing in found:
                print(f"{path}:{missing.line}: {missing}")
            count += len(found)
        for reason in report.python2.values():
            print(reason)
        if report.used:
            print(f"{script}: {report.coverage}")
        worst = max(worst, 3 if report.python2 else 1 if report.missing else 0)
    if count or worst == 0:
        print(f"{count} name{'s' * (count != 1)} missing" if count else "nothing is missing")
    return worst


def _complain(text: str) -> int:
    print(f"python -m trainband.compat: {text}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
