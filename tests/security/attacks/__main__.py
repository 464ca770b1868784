"""Runs attacks on a job of one's own, as another user of this machine with `--user ID`; see the package."""

from __future__ import annotations

import encodings.idna  # noqa: F401 - which Python else loads when it first looks a host up
import os
import sys

from tests.security.attacks import ATTACKS


def main(address: str, names: list[str]) -> int:
    """Runs them, prints what each achieved, and returns how many achieved something."""
    unknown = set(names) - {attack.name for attack in ATTACKS}
    if unknown:
        print(f"no such attack: {', '.join(sorted(unknown))}; there are: {', '.join(one.name for one in ATTACKS)}")
        return 2
    worked = 0
    for attack in ATTACKS:
        if names and attack.name not in names:
            continue
        achieved = attack.run(address)
        worked += bool(achieved)
        print(f"{attack.name}: {f'WORKED: {achieved}' if achieved else 'refused'} ({attack.what})", flush=True)
    return int(worked > 0)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    if arguments[:1] == ["--user"]:  # when all is imported: another user may not be let into where Python lies
        os.setgroups([])
        os.setgid(int(arguments[1]))
        os.setuid(int(arguments[1]))
        del arguments[:2]
    if not arguments:
        print(__doc__)
        sys.exit(2)
    sys.exit(main(arguments[0], arguments[1:]))
