"""Asks every ps of a job for its status, ten times a second, and prints each answer as one line of JSON.

The contract: flags ``--ps_hosts A,B``. A line: at_s (monotonic), ps, and status, null where there was no answer, else
version, seats (of each, what it says of itself), live (the workers that it counts) and chief. It ends with the process
that started it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time

from trainband.errors import TrainbandError
from trainband.monitor.inquiry import Inquiry

EVERY_S = 0.1
TIMEOUT_S = 0.5


def main() -> None:
    """Ask from one thread for each ps, so that a silent one does not delay the others."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ps_hosts", required=True)
    hosts = parser.parse_args().ps_hosts.split(",")
    parent = os.getppid()
    for ps, address in enumerate(hosts):
        threading.Thread(target=watch, args=(ps, address), daemon=True).start()
    while os.getppid() == parent:
        time.sleep(EVERY_S)


def watch(ps: int, address: str) -> None:
    """Ask one ps for ever."""
    while True:
        try:
            with Inquiry(address, TIMEOUT_S) as inquiry:
                while True:
                    poll(ps, inquiry)
        except TrainbandError:
            print_status(ps, None)
            time.sleep(EVERY_S)


def poll(ps: int, inquiry: Inquiry) -> None:
    """Ask once, tell the answer, and wait until it is time again."""
    asked_s = time.monotonic()
    answer = inquiry.ask()
    live = [worker.task for worker in answer.workers if worker.presence == "live"]
    replicas = [
        {
            "shard": replica.shard,
            "role": replica.role,
            "standby": replica.term.standby,
            "term": replica.term.number,
            "version": replica.version,
        }
        for replica in answer.replicas
    ]
    print_status(ps, {"version": answer.version, "replicas": replicas, "live": live, "chief": answer.chief})
    time.sleep(max(0.0, asked_s + EVERY_S - time.monotonic()))


def print_status(ps: int, status: dict[str, object] | None) -> None:
    """Print one line, whole: there are several threads."""
    sys.stdout.write(json.dumps({"at_s": time.monotonic(), "ps": ps, "status": status}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
