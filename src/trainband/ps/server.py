"""Server: serves one task of a cluster, for people who start tasks themselves."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from trainband.cluster import Cluster, ClusterSpec, Task
from trainband.cluster.identity import Identity
from trainband.cluster.resolvers.joined import report_joined
from trainband.cluster.task_metrics import publish
from trainband.errors import ClusterError, PeerError
from trainband.ps.metrics import ps_families
from trainband.ps.program.check.checker import SHARED, CheckedPrograms
from trainband.ps.program.compiled_program import CompileProgram
from trainband.ps.program.limits import ProgramLimits
from trainband.ps.service.service import ParameterService
from trainband.runtime import SYSTEM, Runtime, signals
from trainband.runtime.logs import add_position
from trainband.runtime.system import freeze_loaded_objects
from trainband.runtime.waiting import Say, Waiting, say_on_stderr
from trainband.wire.messages import calls as m
from trainband.wire.messages.codec import decode
from trainband.wire.network import Network
from trainband.wire.transport import Listener, Timeouts, Transport


class Server:
    """Serves one task of a cluster, with the meaning of `tf.distribute.Server`.

    A ps task listens on its address from construction on and holds a shard of the variables. A worker task
    does not listen (in trainband workers call, and only ps answer), so its server only names it and waits.

    Args:
      cluster: a `ClusterSpec`, a mapping that makes one, or a `Cluster`, which names this task.
      job_name: `ps`, `worker`, `chief` or `evaluator`; not with a `Cluster`.
      task_index: the number of the task in its job; not with a `Cluster`.
      transport: carries the bytes; the default is Arrow Flight, with shared memory between tasks of one machine, and
        with the security set in the environment (see `trainband.cluster.resolve_credentials`) or, on a loopback
        address, the user's own secret.
      timeouts: how long to wait for each event.
      say: prints lines for people.
      checkpoint_dir: the directory, or several, below which a ps may read and write checkpoints, and nowhere else.
        `None`: those that `TRAINBAND_CHECKPOINT_DIR` names, else the current directory and that of temporary files.
      runtime: its clock and threads; by default this machine's.
      program_limits: the size, memory, work and time that a chief's update program may take.

    Raises:
      ClusterError: the cluster has no such task, its address is not one of this machine, or other machines reach it
        and there is no security.
      AddressInUse: another process has the port.
      ResourceExhausted: a ps cannot have the descriptors or threads that it needs for the cluster's workers.
    """

    def __init__(
        self,
        cluster: Cluster | ClusterSpec | Mapping[str, Sequence[str]],
        *,
        job_name: str | None = None,
        task_index: int | None = None,
        transport: Transport | None = None,
        timeouts: Timeouts | None = None,
        say: Say = say_on_stderr,
        checkpoint_dir: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
        runtime: Runtime = SYSTEM,
        program_limits: ProgramLimits | None = None,
    ) -> None:
        if isinstance(cluster, Cluster):
            if job_name is not None or task_index is not None:
                raise ClusterError("Server: a Cluster already names its task; leave job_name and task_index out.")
            self._cluster = cluster
        elif job_name is None or task_index is None:
            raise ClusterError("Server: give job_name and task_index to name the task of this process.")
        else:
            spec = cluster if isinstance(cluster, ClusterSpec) else ClusterSpec(cluster)
            self._cluster = Cluster(spec=spec, task=Task(job_name, task_index))
        self._timeouts = timeouts or Timeouts()
        incarnation = runtime.token()
        if self._cluster.is_ps and transport is None:
            SHARED.prepare()  # before the secret is read: a fork would have a copy of it
        transport = transport or Network(say=say)
        self._transport = transport.speaking_as(Identity(str(self._cluster.task), incarnation))
        self._say = say
        self._runtime = runtime
        self._program_limits = program_limits
        self._listener: Listener | None = None
        self._service: ParameterService | None = None
        self._closing = runtime.lock()
        if self._cluster.is_ps:
            workers = len(self._cluster.spec.workers)
            runtime.require_room(str(self._cluster.task), workers, f"for {workers} workers")
            self._service = self._new_service(
                cluster=self._cluster,
                timeouts=self._timeouts,
                say=say,
                checkpoint_dirs=[checkpoint_dir] if isinstance(checkpoint_dir, str | os.PathLike) else checkpoint_dir,
                incarnation=incarnation,
                transport=self._transport,
                runtime=runtime,
            )
            self._listener = self._transport.listen(self._cluster.address, self._service, self._timeouts)

    def _new_service(self, *, compile_program: CompileProgram | None = None, **settings: Any) -> ParameterService:
        if compile_program is None:
            compile_program = CheckedPrograms(self._program_limits, say=self._say)
            compile_program.prepare()  # while it may still fork: before the transport has threads and JAX its devices
        return ParameterService(compile_program=compile_program, **settings)

    @property
    def cluster(self) -> Cluster:
        """The cluster, and which of its tasks this is."""
        return self._cluster

    @property
    def target(self) -> str:
        """The task's address as a URL, `grpc://host:port`."""
        return f"grpc://{self._cluster.address}"

    def join(self) -> str:
        """Blocks until the job has ended; returns the reason for people.

        On a ps this serves. On any other task it waits until no ps answers.

        A ps that gets SIGTERM in the main thread serves until the workers have left the job, but 15 s at most: they may
        have been asked to end at the same time, and the chief saves first.

        Raises:
          SystemExit: SIGTERM has ended a ps before its job was complete; the code is 143.
          CheckpointError: on a ps, values were lost, and no worker can restore them.
          DeadlineExceeded: on a ps, every worker was lost before the job was complete, and none came back.
          AddressInUse, YourError: on a ps, metrics cannot be served at the address set in the environment.
        """
        if self._service is not None:
            report_joined()
            freeze_loaded_objects()
            service, lifecycle = self._service, self._service.lifecycle
            self._say(f"{self._cluster.task} is at {self._cluster.address}")
            try:
                with self._shown(service), self._runtime.on_request_to_end(lambda _: lifecycle.dismiss(), ctrl_c=False):
                    reason = lifecycle.run()
            finally:
                self.shutdown()
            self._say(f"{self._cluster.task} ends: {reason}")
            if lifecycle.cut_short:
                raise SystemExit(signals.EXIT_CODES[signals.PREEMPTED])
            return reason
        return self._await_end()

    def shutdown(self) -> None:
        """Stops listening; open streams get `Timeouts.grace_s` to end. Idempotent."""
        with self._closing:
            if self._service is not None:
                self._service.lifecycle.stop()
            if self._listener is not None:
                self._listener.stop(self._timeouts.grace_s)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    @contextmanager
    def _shown(self, service: ParameterService) -> Iterator[None]:
        """A context in which metrics and the log show the ps's work."""
        with ExitStack() as stack:
            stack.callback(add_position(service.position))
            stack.callback(publish(self._cluster, lambda: list(ps_families([service.status()])), self._say))
            yield

    def _await_end(self) -> str:
        """Waits for the end of the job. A silent ps may be restarting, or its standby about to take over."""
        spec = self._cluster.spec
        waiting = Waiting(None, self._say, self._runtime.clock)
        last: m.JobState | None = None
        heard_at = 0.0
        connections = {str(ps): self._transport.connect(spec.address(ps), self._timeouts) for ps in spec.ps}
        names = ", ".join(connections)
        try:
            while True:
                for name, connection in connections.items():
                    try:
                        body = connection.call("state", timeout_s=self._timeouts.heartbeat_s)
                    except PeerError:
                        continue
                    last, heard_at = decode(body, m.JobState, name), waiting.waited_s
                    waiting.check(f"the job to end (global step {last.version})", "")
                    break
                else:
                    over = last is not None and last.fit > 0 and last.version >= last.last_version
                    grace_s = self._timeouts.start_s if last is None else 0.0 if over else self._timeouts.lease_s
                    if waiting.waited_s - heard_at > grace_s:
                        return f"{names} has ended" if len(connections) == 1 else f"{names} have ended"
                    waiting.check(f"{names} to come {'up' if last is None else 'back'}", "")
                self._runtime.sleep(self._timeouts.heartbeat_s)
        finally:
            for connection in connections.values():
                connection.close()
