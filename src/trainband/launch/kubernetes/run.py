"""KubernetesRun: a job on Kubernetes, from its objects to its outcome."""

from __future__ import annotations

import signal
import time
from typing import Any, Self

from trainband.cluster.spec import ClusterSpec
from trainband.cluster.task import Task
from trainband.errors import ClusterError, DeadlineExceeded, TrainbandError, Unreachable
from trainband.launch.backend import Watcher
from trainband.launch.events import Outcome, describe_status
from trainband.launch.interrupts import Interrupts
from trainband.launch.kubernetes.api import Api, ApiRefusal, quota_in_words
from trainband.launch.kubernetes.job_objects import JobObjects
from trainband.launch.kubernetes.manifest import KubernetesJob, Object
from trainband.launch.kubernetes.pod_logs import PodLogs
from trainband.launch.kubernetes.pod_template import RUN_LABEL
from trainband.launch.kubernetes.pods import Pod, read_pod
from trainband.launch.kubernetes.reminder import Reminder
from trainband.runtime.waiting import say_on_stderr

_LINES_S = 0.1
"""Between two reads of the lines."""
_EVENTS_S = 5.0
_LAST_LINES_S = 10.0
"""How long to wait for the end of the logs once the job has ended."""
_PS_S = 60.0
"""How long to wait for the ps to exit after every other task has succeeded."""
_SILENT_S = 300.0
"""For how long the API server may not answer."""
_KILL_S = 30.0
"""How long to wait for pods to disappear after their grace period."""


class KubernetesRun:
    """A job on Kubernetes, as a `Run`.

    Args:
      poll_s: seconds between two polls of the pods.
      image_s: seconds to wait for an image that cannot be pulled.
    """

    def __init__(
        self,
        job: KubernetesJob,
        api: Api,
        watcher: Watcher,
        *,
        poll_s: float = 1.0,
        image_s: float = 180.0,
    ) -> None:
        self._job = job
        self._api = api
        self._watcher = watcher
        self._poll_s, self._image_s = poll_s, image_s
        self._tasks = frozenset(job.spec.tasks())
        self._alive = self._tasks
        self._objects = JobObjects(job, api, watcher.report)
        self._logs = PodLogs(api, self._tasks, watcher.keep_lines)
        self._pods: dict[str, Pod] = {}
        self._present: frozenset[str] = frozenset()
        """The identifiers of existing pods; others are remembered for how they ended."""
        self._reminder = Reminder(watcher.report, time.monotonic)
        self._without_image: dict[str, float] = {}
        self._silent_since: float | None = None
        self._polled_events_s = 0.0
        self._interrupts: Interrupts | None = None
        self._signals: list[int] = []
        """Those received."""
        self._trained_s: float | None = None

    @property
    def spec(self) -> ClusterSpec | None:
        """`None`: the addresses are names that only pods can resolve, so no command here can use them."""
        return None

    @property
    def alive(self) -> frozenset[Task]:
        """The tasks that are not known to have exited."""
        return self._alive

    @property
    def has_been_joined(self) -> bool:
        """True: it is not known here."""
        return True

    @property
    def shared_directory(self) -> None:
        """`None`: pods are remote."""

    def last_lines(self, task: Task) -> list[str]:
        return self._logs.last_lines(task)

    def __enter__(self) -> Self:
        self._interrupts = Interrupts()
        try:
            self._objects.make()
        except BaseException:
            self._close(quiet=True)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._watcher = Watcher()  # the old one may have failed
        self._close(quiet=kind is not None)

    def interrupt(self, signal_number: int) -> None:
        """Makes `wait` end the tasks, as if this process had received the signal. Any thread may call it."""
        if self._interrupts is not None:
            self._interrupts.send(signal_number)

    def wait(self, timeout_s: float | None = None) -> Outcome:
        """Follows the job until it has ended.

        Raises:
          ClusterError: it has not been started.
          DeadlineExceeded: it has not ended within `timeout_s`.
          Unreachable: the API server has not answered for too long.
        """
        interrupts = self._interrupts
        if interrupts is None:
            raise ClusterError("the tasks have not been started; use the run in a with statement.")
        until = None if timeout_s is None else time.monotonic() + timeout_s
        with interrupts.signals():
            next_look = time.monotonic()
            while True:
                for number in interrupts.read(min(_LINES_S, self._poll_s)):
                    self._end(number)
                self._logs.show(self._watcher)
                if time.monotonic() < next_look:
                    continue
                outcome = self._poll()
                if outcome is not None:
                    self._read_to_the_end()
                    # The caller shows the last lines of a failed task.
                    if outcome.kind == "failed" and outcome.failed is None:
                        self._watcher.report(f"the job has failed: {outcome.reason}")
                    return outcome
                if until is not None and time.monotonic() >= until:
                    names = ", ".join(sorted(map(str, self._alive)))
                    raise DeadlineExceeded(f"{names} did not exit within {timeout_s:g} s.")
                next_look = time.monotonic() + self._poll_s

    def _poll(self) -> Outcome | None:
        """Polls the cluster; returns the outcome if the job has ended."""
        try:
            self._poll_pods()
            outcome = self._interrupted() if self._signals else self._ended()
            if not self._signals and outcome is None:
                self._poll_events()
            self._silent_since = None
        except (Unreachable, ApiRefusal) as exc:
            if isinstance(exc, ApiRefusal) and exc.status not in (429, 500, 502, 503, 504):
                raise
            now = time.monotonic()
            if self._silent_since is None:
                self._silent_since = now
            if now - self._silent_since > _SILENT_S:
                raise Unreachable(f"{exc} It has not answered for {now - self._silent_since:.0f} s.") from None
            self._reminder.report("api", f"{exc} The job continues; trying again.")
            return None
        return outcome

    def _poll_pods(self) -> None:
        found = {pod.uid: pod for pod in map(read_pod, self._objects.list_all("Pod")) if pod is not None}
        now = time.monotonic()
        for uid, pod in found.items():
            before = self._pods.get(uid)
            if pod.started and uid not in self._logs:
                self._watcher.started(pod.task)
                self._logs.follow(uid, pod.name, pod.task)
            if pod.exit_code is not None and (before is None or before.exit_code is None):
                self._has_exited(pod)
            if pod.waits_for:
                self._reminder.report(uid, f"{pod.task} is waiting for {pod.waits_for}")
            if not pod.lacks_image:
                self._without_image.pop(uid, None)
            else:
                self._without_image.setdefault(uid, now)
        for uid in self._pods.keys() - found.keys():  # deleted: its log ends with it
            self._logs.finish(uid)
            self._without_image.pop(uid, None)
        self._pods = {**{uid: pod for uid, pod in self._pods.items() if pod.exit_code is not None}, **found}
        self._present = frozenset(found)
        self._alive = frozenset(task for task in self._tasks if not self._is_over(task))

    def _is_over(self, task: Task) -> bool:
        pods = [pod for pod in self._pods.values() if pod.task == task]
        return any(pod.exit_code == 0 for pod in pods) or (
            bool(pods) and all(pod.exit_code is not None for pod in pods) and bool(self._signals)
        )

    def _has_exited(self, pod: Pod) -> None:
        self._logs.finish(pod.uid)
        if pod.exit_code and not self._signals:
            how = pod.reason or describe_status(pod.status)
            excused = ", because its node was drained or reclaimed: Kubernetes restarts it" if pod.excused else ""
            self._watcher.report(f"{pod.task} failed ({how}){excused}")

    def _poll_events(self) -> None:
        """Reports why pods are not created, for example a quota."""
        if time.monotonic() - self._polled_events_s < _EVENTS_S or len(self._present) >= len(self._alive):
            return
        self._polled_events_s = time.monotonic()
        try:
            events = self._api.warnings()
        except ApiRefusal as exc:
            if exc.status != 403:
                raise
            self._reminder.report("events", f"cannot find out why pods are missing: {exc}")
            return
        for event in events:
            about = event.get("involvedObject") or {}
            name = about.get("name", "")
            if about.get("kind") in ("Job", "JobSet") and (
                name == self._job.name or name.startswith(f"{self._job.name}-")
            ):
                message = str(event.get("message") or event.get("reason") or "")
                text = quota_in_words(message) or message
                self._reminder.report((name, text), f"pods of {name} cannot be created: {text}")

    def _ended(self) -> Outcome | None:
        """Returns the outcome if Kubernetes reports the job as complete or failed."""
        for uid, since in self._without_image.items():
            if time.monotonic() - since > self._image_s:
                pod = self._pods[uid]
                reason = f"waited {time.monotonic() - since:.0f} s for {pod.waits_for}"
                return Outcome(kind="failed", exit_code=1, failed=pod.task, reason=reason)
        try:
            states = (
                [self._api.read("JobSet", self._job.name)]
                if self._job.kind == "jobset"
                else self._objects.list_all("Job")
            )
        except ApiRefusal as exc:
            if exc.status != 404:
                raise
            states = []
        if not states:
            return Outcome(kind="failed", exit_code=1, reason=f"the job {self._job.name} was deleted")
        said = [_conditions(one) for one in states]
        for conditions in said:
            if "Failed" in conditions:
                return self._failure(str(conditions["Failed"].get("message") or ""))
        if all("Complete" in one or "Completed" in one for one in said):
            return Outcome(kind="succeeded", exit_code=0)
        if all(task.job == "ps" for task in self._alive):
            if self._trained_s is None:
                self._trained_s = time.monotonic()
            if time.monotonic() - self._trained_s > _PS_S and self._alive:
                names = ", ".join(sorted(map(str, self._alive)))
                self._watcher.report(f"every worker has succeeded, and {names} did not exit within {_PS_S:.0f} s")
                return Outcome(kind="succeeded", exit_code=0)
        return None

    def _failure(self, message: str) -> Outcome:
        failed = sorted(
            (pod for pod in self._pods.values() if pod.exit_code and not pod.excused), key=lambda pod: pod.finished
        )
        if not failed:
            return Outcome(kind="failed", exit_code=1, reason=message or "Kubernetes reports that it failed")
        allowed = self._job.restarts if self._job.spec.ps or self._job.kind == "job" else 0
        counts = {pod.task: sum(other.task == pod.task for other in failed) for pod in failed}
        first = next((pod for pod in failed if counts[pod.task] > allowed), failed[0])
        last = [pod for pod in failed if pod.task == first.task][-1]
        outcome = Outcome.of_failure(last.task, last.status)
        if not last.reason:
            return outcome
        return Outcome(kind="failed", exit_code=outcome.exit_code, failed=last.task, reason=last.reason)

    def _end(self, number: int) -> None:
        """Ends the job: at the first signal with a grace period, at the second without."""
        self._signals.append(number)
        if len(self._signals) == 1:
            self._watcher.report(
                f"ending the tasks, which have {self._job.grace_s} s to save; a second signal kills them"
            )
        try:
            if len(self._signals) == 1:
                self._objects.delete()
            elif len(self._signals) == 2:
                for uid in self._present:
                    self._api.delete("Pod", self._pods[uid].name, grace_s=0)
        except (Unreachable, ApiRefusal) as exc:
            self._watcher.report(f"{exc} Trying again when the launcher ends.")

    def _interrupted(self) -> Outcome | None:
        if self._present:
            self._reminder.report("pods", f"waiting for {len(self._present)} pods to end")
            return None
        number = self._signals[0]
        name = signal.Signals(number).name
        return Outcome(kind="interrupted", exit_code=128 + number, reason=f"ended by {name}")

    def _close(self, *, quiet: bool) -> None:
        try:
            self._objects.delete()
            until = time.monotonic() + self._job.grace_s + _KILL_S
            while pods := self._objects.list_all("Pod"):
                if time.monotonic() > until:
                    names = ", ".join(one["metadata"]["name"] for one in pods)
                    raise DeadlineExceeded(f"the pods {names} still exist after their deletion.")
                self._reminder.report("pods", f"waiting for {len(pods)} pods to end")
                time.sleep(min(self._poll_s, 1.0))
        except BaseException as exc:  # also a second Ctrl-C
            left = " ".join(f"{kind.lower()}/{name}" for kind, name in self._objects.left)
            say_on_stderr(
                f"objects of the job may be left: {exc or type(exc).__name__} To delete them: kubectl delete -n "
                f"{self._api.namespace} {left or f'pods -l {RUN_LABEL}={self._job.name}'}"
            )
            if not (quiet and isinstance(exc, TrainbandError)):
                raise
        finally:
            self._logs.close()
            self._api.close()
            if self._interrupts is not None:
                self._interrupts.close()
                self._interrupts = None

    def _read_to_the_end(self) -> None:
        ended = {uid for uid, pod in self._pods.items() if pod.exit_code is not None or uid not in self._present}
        self._logs.show_to_the_end(self._watcher, ended, time.monotonic() + _LAST_LINES_S, time.monotonic)


def _conditions(content: Object) -> dict[str, Any]:
    """Returns the true conditions of an object, by their types."""
    found = (content.get("status") or {}).get("conditions") or ()
    return {one["type"]: one for one in found if one.get("status") == "True"}
