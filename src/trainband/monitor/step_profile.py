"""StepProfile: one task's recording of some steps, in a file beside those of other tasks."""

from __future__ import annotations

import errno
import gzip
import io
import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from trainband.checkpoint.disk import write_durably
from trainband.errors import YourError
from trainband.monitor.trace import Event, trace_of, write_trace
from trainband.runtime.regular_files import UnusableFile, read_regular
from trainband.runtime.step_recording import StepRecording

SUFFIX = ".recording.gz"
TRACE = "trace.json.gz"
CLOCK = "trainband clock"
"""An event of JAX's profiler whose time on the task's clock is known."""
MOST_JAX_EVENTS = 100_000
"""Events of a task; later ones are dropped, so that a browser can still show the trace."""


MOST_BYTES = 1 << 30
"""Bytes of a file, packed and unpacked."""


class JaxEvent(Struct, frozen=True, array_like=True):
    """An event seen by JAX's profiler."""

    thread: str
    name: str
    ts: float
    """Microseconds of the task's clock."""
    dur: float
    """Microseconds."""


class StepProfile(Struct, frozen=True):
    """Some steps of one task."""

    job: str
    """Id of the job; empty if unknown."""
    recording: StepRecording
    jax_events: tuple[JaxEvent, ...] = ()


def save_profile(directory: Path, profile: StepProfile) -> Path:
    """Writes a profile, and the trace of all profiles of the job in the directory.

    Each task of a job on a shared file system calls this when it is done; the last one makes the complete trace.

    Args:
      directory: created if missing.
      profile: of this task.

    Returns:
      The trace.

    Raises:
      OSError: the file system refuses.
    """
    directory.mkdir(parents=True, exist_ok=True)
    name = profile.recording.task.replace(":", "-")
    write_durably(directory / f"{name}{SUFFIX}", gzip.compress(msgspec.msgpack.encode(profile), 1, mtime=0))
    profiles = [one for one in read_profiles(directory) if one.job == profile.job]
    path = directory / TRACE
    write_trace(path, trace_of_profiles(profiles))
    return path


def read_profiles(directory: Path) -> list[StepProfile]:
    """Returns all profiles in a directory.

    Raises:
      YourError: one of them is not a profile.
      OSError: the file system refuses.
    """
    profiles = []
    for path in sorted(directory.glob(f"*{SUFFIX}")):
        try:
            profiles.append(msgspec.msgpack.decode(_unpacked(path), type=StepProfile))
        except (msgspec.MsgspecError, EOFError, zlib.error, gzip.BadGzipFile, UnusableFile) as exc:
            raise YourError(f"{path} is not a recording of steps ({exc}); delete it.") from exc
    return profiles


def _unpacked(path: Path) -> bytes:
    with gzip.GzipFile(fileobj=io.BytesIO(read_regular(path, MOST_BYTES))) as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise UnusableFile(errno.EFBIG, f"it unpacks to more than {MOST_BYTES:,} bytes", str(path))
    return data


def trace_of_profiles(profiles: Sequence[StepProfile]) -> Event:
    """Returns the trace of several profiles; see `trace_of`."""
    events = {one.recording.task: [msgspec.structs.asdict(event) for event in one.jax_events] for one in profiles}
    return trace_of([one.recording for one in profiles], events)


def jax_events_in(directory: Path, clock_s: float) -> tuple[JaxEvent, ...]:
    """Reads events that JAX's profiler has written with `create_perfetto_trace`.

    Args:
      clock_s: time of the annotation `CLOCK`, by the task's clock.
      clock_s: when `CLOCK` was annotated, by the task's clock.
    """
    paths = sorted(directory.glob("plugins/profile/*/perfetto_trace.json.gz"))
    if not paths:
        return ()
    events: list[dict[str, Any]] = json.loads(_unpacked(paths[-1]))["traceEvents"]
    mark = next((event for event in events if event.get("name") == CLOCK), None)
    if mark is None:
        return ()
    shift = 1e6 * clock_s - mark["ts"]
    processes: dict[int, str] = {}
    threads: dict[tuple[int, int], str] = {}
    for event in events:
        if event.get("ph") == "M" and event["name"] == "process_name":
            processes[event["pid"]] = event["args"]["name"]
        elif event.get("ph") == "M" and event["name"] == "thread_name":
            threads[event["pid"], event["tid"]] = event["args"]["name"]
    return tuple(
        JaxEvent(
            f"{processes.get(event['pid'], event['pid'])} {threads.get((event['pid'], event['tid']), event['tid'])}",
            event["name"],
            event["ts"] + shift,
            event["dur"],
        )
        for event in events
        if event.get("ph") == "X" and event["dur"] >= 0.01 and event is not mark
    )[:MOST_JAX_EVENTS]
