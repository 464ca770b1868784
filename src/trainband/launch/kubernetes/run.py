"""KubernetesRun: a job on Kubernetes from its objects to its outcome."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Self

from trainband.cluster.spec import ClusterSpec
from trainband.cluster.task import Task
from trainband.errors import ClusterError, DeadlineExceeded, TrainbandError, Unreachable
from trainband.launch.backends.base import Watcher
from trainband.launch.events import Outcome, describe_status
from trainband.launch.kubernetes.api import Api, ApiRefusal, quota_in_words
from trainband.launch.kubernetes.log_follower import LogFollower
from trainband.launch.kubernetes.manifest import KubernetesJob, Object, objects
from trainband.launch.kubernetes.pod_template import RUN_LABEL
from trainband.launch.kubernetes.pods import Pod, read_pod
from trainband.launch.kubernetes.reminder import Reminder
from trainband.runtime.formatting import LINE_PREFIX
from trainband.runtime.logs import EVENT_PREFIX
from trainband.runtime.signals import signal_pipe
from trainband.runtime.waiting import say_on_stderr

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LINES_S = 0.1
"""Between two looks at the lines that have come."""
_EVENTS_S = 5.0
_LAST_LINES_S = 10.0
"""For the end of the logs, once the job has ended."""
_PS_S = 60.0
"""For the ps to exit, after every other task has succeeded."""
_KILL_S = 30.0
"""For pods to be gone, after their grace period."""


class KubernetesRun:
    """A job's objects, its pods and their logs. See `Run` for what each method does.

    Args:
      job: what is to be made.
      api: of the cluster, in the namespace of the job.
      watcher: who is told what happens.
      poll_s: seconds between two looks at the pods.
      image_s: for how long an image that cannot be pulled is waited for.
      silence_s: for how long the API server may give no answer.
      clock: monotonic seconds.
    """

    def __init__(
        self,
        job: KubernetesJob,
        api: Api,
        watcher: Watcher,
        *,
        poll_s: float = 1.0,
        image_s: float = 180.0,
        silence_s: float = 300.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._job = job
        self._api = api
        self._watcher = watcher
        self._poll_s, self._image_s, self._silence_s = poll_s, image_s, silence_s
        self._clock = clock
        self._spec = job.spec
        self._alive = frozenset(self._spec.tasks())
        self._made: list[tuple[str, str]] = []
        """Kind and name of what is to be deleted, in the order in which it was made."""
        self._pods: dict[str, Pod] = {}
        self._present: frozenset[str] = frozenset()
        """The pods that there are, by their identifiers; others are remembered for how they ended."""
        self._followers: dict[str, LogFollower] = {}
        self._heard: SimpleQueue[tuple[Task, str]] = SimpleQueue()
        self._last_lines = {task: deque[str](maxlen=watcher.keep_lines) for task in self._alive}
        self._reminder = Reminder(watcher.note, clock)
        self._without_image: dict[str, float] = {}
        self._silent_since: float | None = None
        self._looked_at_events_s = 0.0
        self._interrupts = 0
        self._signal = 0
        self._inbox: tuple[int, int] | None = None
        self._trained_s: float | None = None

    @property
    def spec(self) -> ClusterSpec | None:
        """`None`: the addresses are names that only pods can look up, and no command here can use them."""
        return None

    @property
    def alive(self) -> frozenset[Task]:
        """The tasks that are not known to have exited."""
        return self._alive

    @property
    def has_been_joined(self) -> bool:
        """True: nobody here knows better."""
        return True

    @property
    def shared_directory(self) -> None:
        """None: pods are elsewhere."""

    def last_lines(self, task: Task) -> list[str]:
        """The last lines that a task has printed.

        Raises:
          ClusterError: there is no such task.
        """
        if task not in self._last_lines:
            raise ClusterError(f"this job has no task {task}, only {', '.join(map(str, self._last_lines))}.")
        return list(self._last_lines[task])

    def __enter__(self) -> Self:
        self._inbox = os.pipe()
        os.set_blocking(self._inbox[1], False)
        try:
            self._make()
        except BaseException:
            self._close(quiet=True)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None:
            self._watcher = Watcher()  # it may itself be what failed
        self._close(quiet=kind is not None)

    def interrupt(self, signal_number: int) -> None:
        """Has `wait` end the tasks, as if this process had received the signal. Any thread may call it."""
        if self._inbox is not None:
            with contextlib.suppress(BlockingIOError):  # 65536 unread signals say enough
                os.write(self._inbox[1], bytes([signal_number]))

    def wait(self, timeout_s: float | None = None) -> Outcome:
        """Follows the job until it has ended.

        Raises:
          ClusterError: it has not been started.
          DeadlineExceeded: it has not ended in time.
          Unreachable: the API server has not answered for too long.
        """
        if self._inbox is None:
            raise ClusterError("the tasks have not been started: enter the run with `with` first.")
        until = None if timeout_s is None else self._clock() + timeout_s
        with signal_pipe(_SIGNALS) as signals:
            inboxes = [self._inbox[0], *([signals] if signals is not None else [])]
            next_look = self._clock()
            while True:
                ready, _, _ = select.select(inboxes, [], [], min(_LINES_S, self._poll_s))
                for inbox in ready:
                    for number in os.read(inbox, 64):
                        self._end(number)
                self._print()
                if self._clock() < next_look:
                    continue
                outcome = self._look()
                if outcome is not None:
                    self._read_to_the_end()
                    # Of a task that has failed, whoever waits shows the last lines.
                    if outcome.kind == "failed" and outcome.failed is None:
                        self._watcher.note(f"the job has failed: {outcome.reason}")
                    return outcome
                if until is not None and self._clock() >= until:
                    names = ", ".join(sorted(map(str, self._alive)))
                    raise DeadlineExceeded(f"{names} did not exit within {timeout_s:g} s.")
                next_look = self._clock() + self._poll_s

    def _make(self) -> None:
        """Makes the objects. What is deleted first has the others as its own, so that they go with it."""
        job = self._job
        made = objects(job)
        claims = [one for one in made if one["kind"] == "PersistentVolumeClaim"]
        root = next(one for one in made if one["kind"] in ("JobSet", "Service"))
        for claim in claims:
            self._make_claim(claim)
        owner = self._make_one(root)
        for one in made:
            if one is not root and one not in claims:
                self._make_one(one, owner)
        self._watcher.note(
            f"the job is {root['kind']} {job.name} in the namespace {self._api.namespace}; its {len(self._alive)} pods "
            f"have the label {RUN_LABEL}={job.name}"
        )

    def _make_claim(self, claim: Object) -> None:
        name = claim["metadata"]["name"]
        try:
            self._api.create(claim)
        except ApiRefusal as exc:
            if exc.status != 409:
                raise
            self._watcher.note(f"the volume claim {name} exists already and is used")
            return
        self._watcher.note(
            f"the volume claim {name} stays when the job has ended, with the checkpoints; to delete it: kubectl delete "
            f"pvc {name} -n {self._api.namespace}"
        )

    def _make_one(self, content: Object, owner: Object | None = None) -> Object:
        if owner is not None:
            reference = {
                "apiVersion": owner["apiVersion"],
                "kind": owner["kind"],
                "name": owner["metadata"]["name"],
                "uid": owner["metadata"]["uid"],
            }
            content = {**content, "metadata": {**content["metadata"], "ownerReferences": [reference]}}
        made = self._api.create(content)
        self._made.append((content["kind"], content["metadata"]["name"]))
        return {"apiVersion": content["apiVersion"], "kind": content["kind"], **made}

    def _look(self) -> Outcome | None:
        """Looks at the cluster, and returns the outcome where the job has ended."""
        try:
            self._look_at_pods()
            outcome = self._interrupted() if self._interrupts else self._ended()
            if not self._interrupts and outcome is None:
                self._look_at_events()
            self._silent_since = None
        except (Unreachable, ApiRefusal) as exc:
            if isinstance(exc, ApiRefusal) and exc.status not in (429, 500, 502, 503, 504):
                raise
            now = self._clock()
            if self._silent_since is None:
                self._silent_since = now
            if now - self._silent_since > self._silence_s:
                raise Unreachable(f"{exc} It has been asked for {now - self._silent_since:.0f} s.") from None
            self._reminder.say("api", f"{exc} The job goes on; it is asked again.")
            return None
        return outcome

    def _look_at_pods(self) -> None:
        found = {pod.uid: pod for pod in map(read_pod, self._list("Pod")) if pod is not None}
        now = self._clock()
        for uid, pod in found.items():
            before = self._pods.get(uid)
            if pod.started and uid not in self._followers:
                self._watcher.started(pod.task)
                self._followers[uid] = LogFollower(self._api, pod.name, self._put(pod.task))
            if pod.exit_code is not None and (before is None or before.exit_code is None):
                self._has_exited(pod)
            if pod.waits_for:
                self._reminder.say(uid, f"{pod.task} waits for {pod.waits_for}")
            if not pod.lacks_image:
                self._without_image.pop(uid, None)
            else:
                self._without_image.setdefault(uid, now)
        for uid in self._pods.keys() - found.keys():  # deleted: its log ends with it
            if uid in self._followers:
                self._followers[uid].finish()
            self._without_image.pop(uid, None)
        self._pods = {**{uid: pod for uid, pod in self._pods.items() if pod.exit_code is not None}, **found}
        self._present = frozenset(found)
        ended = {task for task in self._last_lines if self._is_over(task)}
        self._alive = frozenset(self._last_lines.keys() - ended)

    def _is_over(self, task: Task) -> bool:
        pods = [pod for pod in self._pods.values() if pod.task == task]
        return any(pod.exit_code == 0 for pod in pods) or (
            bool(pods) and all(pod.exit_code is not None for pod in pods) and bool(self._interrupts)
        )

    def _has_exited(self, pod: Pod) -> None:
        if pod.uid in self._followers:
            self._followers[pod.uid].finish()
        if pod.exit_code and not self._interrupts:
            how = pod.reason or describe_status(pod.status)
            excused = ", because its node was drained or reclaimed: Kubernetes restarts it" if pod.excused else ""
            self._watcher.note(f"{pod.task} has failed ({how}){excused}")

    def _look_at_events(self) -> None:
        """Says why pods are not even made: a quota, say."""
        if self._clock() - self._looked_at_events_s < _EVENTS_S or len(self._present) >= len(self._alive):
            return
        self._looked_at_events_s = self._clock()
        try:
            events = self._api.warnings()
        except ApiRefusal as exc:
            if exc.status != 403:
                raise
            self._reminder.say("events", f"why pods are missing cannot be told: {exc}")
            return
        for event in events:
            about = event.get("involvedObject") or {}
            name = about.get("name", "")
            if about.get("kind") in ("Job", "JobSet") and (
                name == self._job.name or name.startswith(f"{self._job.name}-")
            ):
                message = str(event.get("message") or event.get("reason") or "")
                text = quota_in_words(message) or message
                self._reminder.say((name, text), f"pods of {name} cannot be made: {text}")

    def _ended(self) -> Outcome | None:
        """The outcome, where Kubernetes says that the job is complete or has failed."""
        for uid, since in self._without_image.items():
            if self._clock() - since > self._image_s:
                pod = self._pods[uid]
                reason = f"waited {self._clock() - since:.0f} s for {pod.waits_for}"
                return Outcome(kind="failed", exit_code=1, failed=pod.task, reason=reason)
        try:
            states = [self._api.read("JobSet", self._job.name)] if self._job.kind == "jobset" else self._list("Job")
        except ApiRefusal as exc:
            if exc.status != 404:
                raise
            states = []
        if not states:
            return Outcome(kind="failed", exit_code=1, reason=f"somebody has deleted the job {self._job.name}")
        said = [_conditions(one) for one in states]
        for conditions in said:
            if "Failed" in conditions:
                return self._failure(str(conditions["Failed"].get("message") or ""))
        if all("Complete" in one or "Completed" in one for one in said):
            return Outcome(kind="succeeded", exit_code=0)
        if all(task.job == "ps" for task in self._alive):
            if self._trained_s is None:
                self._trained_s = self._clock()
            if self._clock() - self._trained_s > _PS_S and self._alive:
                names = ", ".join(sorted(map(str, self._alive)))
                self._watcher.note(f"every worker has succeeded, and {names} did not exit within {_PS_S:.0f} s")
                return Outcome(kind="succeeded", exit_code=0)
        return None

    def _failure(self, message: str) -> Outcome:
        failed = sorted(
            (pod for pod in self._pods.values() if pod.exit_code and not pod.excused), key=lambda pod: pod.finished
        )
        if not failed:
            return Outcome(kind="failed", exit_code=1, reason=message or "Kubernetes says that it has failed")
        allowed = self._job.restarts if self._spec.ps or self._job.kind == "job" else 0
        counts = {pod.task: sum(other.task == pod.task for other in failed) for pod in failed}
        first = next((pod for pod in failed if counts[pod.task] > allowed), failed[0])
        last = [pod for pod in failed if pod.task == first.task][-1]
        outcome = Outcome.of_failure(last.task, last.status)
        if not last.reason:
            return outcome
        return Outcome(kind="failed", exit_code=outcome.exit_code, failed=last.task, reason=last.reason)

    def _end(self, number: int) -> None:
        """Ends the job: at the first signal with a grace period, at the second without."""
        self._interrupts += 1
        if self._interrupts == 1:
            self._signal = number
            self._watcher.note(f"ending the tasks, which have {self._job.grace_s} s to save; once more kills them")
        try:
            if self._interrupts == 1:
                self._delete()
            elif self._interrupts == 2:
                for uid in self._present:
                    self._api.delete("Pod", self._pods[uid].name, grace_s=0)
        except (Unreachable, ApiRefusal) as exc:
            self._watcher.note(f"{exc} It is asked again as the launcher ends.")

    def _interrupted(self) -> Outcome | None:
        if self._present:
            self._reminder.say("pods", f"waiting for {len(self._present)} pods to end")
            return None
        name = signal.Signals(self._signal).name
        return Outcome(kind="interrupted", exit_code=128 + self._signal, reason=f"{name} has ended it")

    def _delete(self) -> None:
        """Deletes what was made: Jobs before the service by which their pods find one another."""
        while self._made:
            kind, name = self._made[-1]
            self._api.delete(kind, name)
            self._made.pop()

    def _close(self, *, quiet: bool) -> None:
        try:
            self._delete()
            until = self._clock() + self._job.grace_s + _KILL_S
            while pods := self._list("Pod"):
                if self._clock() > until:
                    names = ", ".join(one["metadata"]["name"] for one in pods)
                    raise DeadlineExceeded(f"the pods {names} are still there, though they have been deleted.")
                self._reminder.say("pods", f"waiting for {len(pods)} pods to end")
                time.sleep(min(self._poll_s, 1.0))
        except BaseException as exc:  # also a second Ctrl-C
            left = " ".join(f"{kind.lower()}/{name}" for kind, name in self._made)
            say_on_stderr(
                f"what the job has made may be left: {exc or type(exc).__name__} To delete it: kubectl delete -n "
                f"{self._api.namespace} {left or f'pods -l {RUN_LABEL}={self._job.name}'}"
            )
            if not (quiet and isinstance(exc, TrainbandError)):
                raise
        finally:
            for follower in self._followers.values():
                follower.close()
            self._api.close()
            if self._inbox is not None:
                for descriptor in self._inbox:
                    os.close(descriptor)
                self._inbox = None

    def _read_to_the_end(self) -> None:
        """Hands on what the tasks have printed last."""
        until = self._clock() + _LAST_LINES_S
        ended = {uid for uid, pod in self._pods.items() if pod.exit_code is not None or uid not in self._present}
        while self._clock() < until:
            self._print()
            if all(follower.done for uid, follower in self._followers.items() if uid in ended):
                break
            time.sleep(0.02)
        self._print()

    def _print(self) -> None:
        for task, text in self._drain():
            self._last_lines[task].append(text)
            # Kubernetes keeps one log for both streams; what trainband itself says was on stderr.
            is_ours = text.startswith((LINE_PREFIX, EVENT_PREFIX))
            self._watcher.line(task, "stderr" if is_ours else "stdout", text)

    def _drain(self) -> Iterator[tuple[Task, str]]:
        with contextlib.suppress(Empty):
            while True:
                yield self._heard.get_nowait()

    def _put(self, task: Task) -> Callable[[str], None]:
        return lambda text: self._heard.put((task, text))

    def _list(self, kind: str) -> list[Object]:
        return self._api.list_all(kind, f"{RUN_LABEL}={self._job.name}")


def _conditions(content: Object) -> dict[str, Any]:
    """Those of an object that hold, by their types."""
    found = (content.get("status") or {}).get("conditions") or ()
    return {one["type"]: one for one in found if one.get("status") == "True"}
