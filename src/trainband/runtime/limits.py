"""Limits of a process's descriptors and threads, and clear errors when they run out.

Called when a task begins, never on import: a program that only inspects its data keeps its limits.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path

from trainband.errors import ResourceExhausted

MOST_DESCRIPTORS = 1 << 20
"""More than any task needs. If the hard limit is unlimited, as in some containers, programs that a task starts would
otherwise take minutes to close every possible descriptor."""

BASE_DESCRIPTORS = 32
"""For a process that has loaded JAX and Arrow, and for what it opens briefly: a dozen, measured, and as many
again."""

DESCRIPTORS_PER_PEER = 8
"""Of a ps for each worker and of a worker for each ps: two connections, the stream's socket, two doorbells, and the
memory in transit. Seven were measured over shared memory, two over the network."""

BASE_THREADS = 16
THREADS_PER_PEER = 2


def raise_descriptor_limit() -> int:
    """Raises the soft limit of open descriptors to the hard one; returns the new limit."""
    try:
        import resource
    except ImportError:  # not on this platform, which has no such limit
        return MOST_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):  # macOS has another limit that it does not expose
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    return MOST_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft


def threads_and_descriptors() -> tuple[int, int]:
    """Returns how many threads and open descriptors this process has; zeros without /proc."""
    process = Path("/proc/self")
    try:
        return len(list((process / "task").iterdir())), len(list((process / "fd").iterdir()))
    except OSError:
        return 0, 0


def require_descriptors(task: str, count: int, why: str) -> None:
    """Raises the limit of open descriptors as far as possible.

    Args:
      task: the task that needs them.
      count: how many.
      why: their purpose, such as `for 64 workers`.

    Raises:
      ResourceExhausted: even then there are too few.
    """
    limit = raise_descriptor_limit()
    if limit < count:
        raise ResourceExhausted(
            f"{task} needs about {count} open descriptors {why}, but may have at most {limit}; before it starts, raise "
            f"the hard limit (ulimit -n {count} as root, LimitNOFILE= of a systemd unit, --ulimit nofile= of a "
            "container), or use fewer tasks."
        )


def require_threads(task: str, count: int, why: str) -> None:
    """Starts `count` threads at once as a test and ends them: gRPC would abort the process if it lacked one.

    Args:
      task: the task that needs them.
      count: how many.
      why: their purpose, such as `for 64 workers`.

    Raises:
      ResourceExhausted: they cannot be started.
    """
    enough = threading.Event()
    made: list[threading.Thread] = []
    try:
        for _ in range(count):
            thread = threading.Thread(target=enough.wait, name="trainband-limit", daemon=True)
            start_thread(thread)
            made.append(thread)
    except ResourceExhausted:
        raise ResourceExhausted(
            f"{task} needs about {count} threads {why}, but can have only {len(made)}; {_ADVICE}, or use fewer tasks."
        ) from None
    finally:
        enough.set()
        for thread in made:
            thread.join()


def start_thread(thread: threading.Thread) -> None:
    """Starts a new thread.

    Raises:
      ResourceExhausted: this process cannot have another one.
    """
    try:
        thread.start()
    except RuntimeError as exc:
        raise no_thread(thread.name, exc) from exc


def no_thread(name: str, exc: RuntimeError) -> ResourceExhausted:
    """Returns the error for a thread that could not be started."""
    return ResourceExhausted(f"the thread {name} cannot be started ({exc}); {_ADVICE}.")


def require(task: str, peers: int, why: str) -> None:
    """Ensures that a task can have the descriptors and threads to talk to this many peers."""
    require_descriptors(task, BASE_DESCRIPTORS + DESCRIPTORS_PER_PEER * peers, why)
    require_threads(task, BASE_THREADS + THREADS_PER_PEER * peers, why)


_ADVICE = "check the limits of processes (ulimit -u), of memory (ulimit -v), and of the container (pids.max)"
