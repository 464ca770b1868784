"""`python -m trainband.compat SCRIPT [ARGS]` runs a TensorFlow 1 script; `--check SCRIPT` lists the names it lacks."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

USAGE = """usage: python -m trainband.compat SCRIPT [ARGS]...
       python -m trainband.compat --check SCRIPT...

Run a script of TensorFlow 1 on trainband, or list the names it uses that are not there, without running it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("-h", "--help"):
        print(USAGE)
        return 0 if given else 2
    if given[0] == "--check":
        return _check([Path(one) for one in given[1:]])
    script = Path(given[0])
    if not script.is_file():
        print(f"python -m trainband.compat: there is no script {str(script)!r} in {Path.cwd()}.", file=sys.stderr)
        return 2
    from trainband.cluster import resolve
    from trainband.cluster.resolvers.log_level import follow_environment

    follow_environment()
    from trainband.compat.script import run

    run(script, given[1:], resolve())
    return 0


def _check(scripts: Sequence[Path]) -> int:
    from trainband.compat.check import check_file

    if not scripts:
        print(USAGE)
        return 2
    count = 0
    for script in scripts:
        try:
            found = check_file(script)
        except (OSError, SyntaxError, UnicodeDecodeError) as exc:
            print(f"{script}: {exc}", file=sys.stderr)
            return 2
        for missing in found:
            print(f"{script}:{missing.line}: {missing}")
        count += len(found)
    print(f"{count} name{'s' * (count != 1)} missing" if count else "nothing is missing")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
