"""Run as a script on another machine, by ssh or srun: tells a launcher about that machine before it starts tasks.

`python -m trainband.launch.remote_machine < pipe > pipe`

Each line on standard input is a JSON object with a request, answered by a JSON object on standard output, see `answer`.
Ports stay reserved until others are requested, or until the input ends or brings no line for a minute, because the
launcher is gone then.
"""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Mapping
from typing import Any

from trainband.launch.machines.remote_input import SILENT_S
from trainband.launch.machines.this_machine import cores
from trainband.launch.ports import ReservedPorts
from trainband.version import VERSION

ANY = "0.0.0.0"


class RemoteMachine:
    """Answers a remote launcher's questions about this machine."""

    def __init__(self) -> None:
        self._reserved: ReservedPorts | None = None

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answers `{"ports": how many, "directory": where tasks are to run}`.

        Returns:
          the `ports`, the `version` of trainband, the `cores`, the `time` in seconds since 1970, and whether the
          directory `exists`.
        """
        before, self._reserved = self._reserved, ReservedPorts(int(request["ports"]), ANY)
        if before is not None:
            before.close()
        return {
            "ports": self._reserved.ports,
            "version": VERSION,
            "cores": cores(),
            "time": time.time(),
            "exists": os.path.isdir(request["directory"]),  # noqa: PTH112 - light to start
        }

    def close(self) -> None:
        """Releases the ports."""
        if self._reserved is not None:
            self._reserved.close()


def main() -> None:
    """Answers the launcher until it is gone."""
    machine = RemoteMachine()
    data = b""
    try:
        while select.select([0], [], [], SILENT_S)[0] and (read := os.read(0, 1 << 16)):
            *lines, data = (data + read).split(b"\n")
            for line in filter(None, lines):
                print(json.dumps(machine.answer(json.loads(line))), flush=True)
    finally:
        machine.close()


if __name__ == "__main__":
    main()
