"""A trace of some steps of a whole job, for Perfetto and chrome://tracing.

The format is the "Trace Event Format" of Chrome: a JSON object with `traceEvents`, times in microseconds.
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from trainband.checkpoint.disk import write_durably
from trainband.monitor.clocks import Shift, shifts
from trainband.runtime.step_recording import PushTimes, StepRecording

Event = dict[str, Any]

NAMES = {"data": "wait for data", "compute": "compute", "send": "encode and send", "wait": "wait for ps"}
"""Names of a worker's spans, as shown."""


def trace_of(recordings: Sequence[StepRecording], jax_events: Mapping[str, Sequence[Event]] | None = None) -> Event:
    """Returns all recordings on one clock.

    Each worker is a process with a thread for its steps; each ps, one with a thread for its updates and one for the
    pushes of each worker; the network, one with a thread for each direction between two tasks.

    Args:
      jax_events: by task, the events of JAX's profiler: complete events whose `ts` are microseconds of the task's
        clock.
    """
    return _Trace(recordings, jax_events or {}).made()


def write_trace(path: Path, trace: Event) -> None:
    """Writes a trace, compressed; Perfetto reads it."""
    write_durably(path, gzip.compress(msgspec.json.encode(trace), 6, mtime=0))


class _Trace:
    def __init__(self, recordings: Sequence[StepRecording], jax_events: Mapping[str, Sequence[Event]]) -> None:
        self._recordings = sorted(recordings, key=lambda one: _order(one.task))
        self._jax_events = jax_events
        self._shifts = shifts(self._recordings)
        self._events: list[Event] = []
        self._threads: dict[tuple[str, str], tuple[int, int]] = {}
        self._processes: dict[str, int] = {}
        self._updates: set[tuple[str, float, float]] = set()

    def made(self) -> Event:
        for recording in self._recordings:
            self._steps(recording)
        for recording in self._recordings:
            for push in recording.pushes:
                self._push(recording.task, push)
        for recording in self._recordings:
            self._jax(recording.task)
        begin = min((event["ts"] for event in self._events), default=0.0)
        for event in self._events:
            event["ts"] = round(event["ts"] - begin, 3)
        return {
            "displayTimeUnit": "ms",
            "otherData": {
                "clock uncertainty in microseconds": {
                    task: _microseconds(shift) for task, shift in sorted(self._shifts.items())
                }
            },
            "traceEvents": [*self._names(), *sorted(self._events, key=lambda event: (event["ts"], -event["dur"]))],
        }

    def _steps(self, recording: StepRecording) -> None:
        task, bounds = recording.task, [span for span in recording.spans if span.name == "step"]
        for span in bounds:
            self._add(
                task,
                "steps",
                "step",
                self._at(task, span.begin),
                self._at(task, span.end),
                global_step=span.global_step,
            )
        first = min((span.begin for span in bounds), default=0.0)
        for span in recording.spans:
            if span.name != "step":
                begin = max(span.begin, first)
                self._add(
                    task, "steps", NAMES.get(span.name, span.name), self._at(task, begin), self._at(task, span.end)
                )

    def _push(self, worker: str, push: PushTimes) -> None:
        moments, ps = push.moments, push.ps
        if moments is None:
            return
        begin, received = self._at(worker, push.begin), self._at(worker, push.received)
        came, taken, began, ended, answered, sent = (
            self._at(ps, moment)
            for moment in (moments.came, moments.taken, moments.began, moments.ended, moments.answered, moments.sent)
        )
        pushes = f"pushes of {worker}"
        self._add("network", f"{worker} → {ps}", "gradient", begin, came, bytes=push.nbytes)
        self._add("network", f"{ps} → {worker}", "params", sent, received, bytes=push.answer_nbytes)
        self._add(ps, pushes, "check the gradient", came, taken)
        if moments.began and moments.began >= moments.taken:
            self._add(ps, pushes, "rule: wait for the update", taken, began)
            self._add(ps, pushes, "update", began, ended)
            self._add(ps, pushes, "rule: release the worker", ended, answered)
        else:
            self._add(ps, pushes, "rule", taken, answered)
        self._add(ps, pushes, "standby and params", answered, sent)
        update = (ps, moments.began, moments.ended)
        if moments.began and update not in self._updates:
            self._updates.add(update)
            self._add(ps, "updates", "update", began, ended)

    def _jax(self, task: str) -> None:
        shift = self._shifts[task].seconds
        for event in self._jax_events.get(task, ()):
            begin = event["ts"] / 1e6 + shift
            self._add(task, f"JAX: {event['thread']}", event["name"], begin, begin + event["dur"] / 1e6)

    def _at(self, task: str, moment: float) -> float:
        return moment + self._shifts[task].seconds

    def _add(self, process: str, thread: str, name: str, begin: float, end: float, **args: Any) -> None:
        pid, tid = self._place(process, thread)
        event: Event = {
            "ph": "X",
            "pid": pid,
            "tid": tid,
            "name": name,
            "ts": 1e6 * begin,
            "dur": round(max(0.0, 1e6 * (end - begin)), 3),
        }
        self._events.append({**event, "args": args} if args else event)

    def _place(self, process: str, thread: str) -> tuple[int, int]:
        pid = self._processes.setdefault(process, len(self._processes) + 1)
        return self._threads.setdefault((process, thread), (pid, len(self._threads) + 1))

    def _names(self) -> list[Event]:
        """Returns the metadata: workers first, then the network, then the ps."""
        events: list[Event] = []
        for rank, process in enumerate(sorted(self._processes, key=_order)):
            pid = self._processes[process]
            events.append({"ph": "M", "pid": pid, "name": "process_name", "args": {"name": process}})
            events.append({"ph": "M", "pid": pid, "name": "process_sort_index", "args": {"sort_index": rank}})
            shift = self._shifts.get(process)
            if shift is not None and shift.uncertainty_s:
                wrong = _microseconds(shift)
                label = "placed by the wall clock" if wrong is None else f"clock known to {wrong:,.0f} µs"
                events.append({"ph": "M", "pid": pid, "name": "process_labels", "args": {"labels": label}})
        for rank, ((_, thread), (pid, tid)) in enumerate(sorted(self._threads.items(), key=_thread_order)):
            events.append({"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": thread}})
            events.append(
                {"ph": "M", "pid": pid, "tid": tid, "name": "thread_sort_index", "args": {"sort_index": rank}}
            )
        return events


def _microseconds(shift: Shift) -> float | None:
    return None if shift.uncertainty_s == float("inf") else round(1e6 * shift.uncertainty_s, 1)


def _thread_order(item: tuple[tuple[str, str], tuple[int, int]]) -> tuple[bool, tuple[tuple[int, str, int], ...]]:
    """Sorts a task's own threads before those for other tasks."""
    words = item[0][1].split()
    return "JAX:" in words, tuple(_order(word) for word in words if ":" in word)


def _order(task: str) -> tuple[int, str, int]:
    job, _, index = task.partition(":")
    rank = {"network": 1, "ps": 2}.get(job, 0)
    return rank, job, int(index) if index.isdecimal() else 0
