"""PodLogs: the output of a job's pods."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Collection
from queue import Empty, SimpleQueue

from trainband.cluster.task import Task
from trainband.errors import ClusterError
from trainband.launch.backend import Watcher
from trainband.launch.kubernetes.api import Api
from trainband.launch.kubernetes.log_follower import LogFollower
from trainband.runtime.formatting import LINE_PREFIX
from trainband.runtime.logs import EVENT_PREFIX


class PodLogs:
    """The logs of a job's pods, by their identifiers, and each task's last lines."""

    def __init__(self, api: Api, tasks: Collection[Task], keep_lines: int) -> None:
        self._api = api
        self._followers: dict[str, LogFollower] = {}
        self._lines: SimpleQueue[tuple[Task, str]] = SimpleQueue()
        self._last_lines = {task: deque[str](maxlen=keep_lines) for task in tasks}

    def __contains__(self, uid: str) -> bool:
        return uid in self._followers

    def follow(self, uid: str, pod: str, task: Task) -> None:
        """Reads the log of a pod from its beginning."""
        self._followers[uid] = LogFollower(self._api, pod, self._enqueuer(task))

    def _enqueuer(self, task: Task) -> Callable[[str], None]:
        return lambda text: self._lines.put((task, text))

    def finish(self, uid: str) -> None:
        """Marks the log of a pod that has ended as complete."""
        if uid in self._followers:
            self._followers[uid].finish()

    def last_lines(self, task: Task) -> list[str]:
        """The last lines that a task has printed. Raises `ClusterError` if the job has no such task."""
        if task not in self._last_lines:
            raise ClusterError(f"this job has no task {task}, only {', '.join(map(str, self._last_lines))}.")
        return list(self._last_lines[task])

    def show(self, watcher: Watcher) -> None:
        """Passes new lines to a watcher."""
        with contextlib.suppress(Empty):
            while True:
                task, text = self._lines.get_nowait()
                self._last_lines[task].append(text)
                # Kubernetes keeps one log for both streams; trainband's own lines were on stderr.
                is_ours = text.startswith((LINE_PREFIX, EVENT_PREFIX))
                watcher.line(task, "stderr" if is_ours else "stdout", text)

    def show_to_the_end(
        self, watcher: Watcher, uids: Collection[str], until: float, clock: Callable[[], float]
    ) -> None:
        """Passes the last lines of these pods, which have ended, to a watcher."""
        while clock() < until:
            self.show(watcher)
            if all(follower.done for uid, follower in self._followers.items() if uid in uids):
                break
            time.sleep(0.02)
        self.show(watcher)

    def close(self) -> None:
        """Ends the reading threads."""
        for follower in self._followers.values():
            follower.close()
