"""The first SIGTERM is a request, and its echo nothing."""

from __future__ import annotations

import os
import signal

from trainband.runtime.signals import PREEMPTED, on_request_to_end


def test_the_echo_of_a_sigterm_does_not_kill() -> None:
    before = signal.getsignal(signal.SIGTERM)
    notes: list[str] = []
    with on_request_to_end(notes.append):
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGTERM)
    assert notes == [PREEMPTED]
    assert signal.getsignal(signal.SIGTERM) == before
