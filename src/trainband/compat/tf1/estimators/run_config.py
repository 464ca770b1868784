"""RunConfig: how an estimator runs, and which task of which cluster this process is."""

from __future__ import annotations

import copy
from typing import Any

from trainband.cluster.resolvers.tf_config import content
from trainband.compat.tf1.graphs.config import ConfigProto
from trainband.compat.tf1.scripts import logging
from trainband.compat.tf1.sessions.cluster_spec import ClusterSpec

_UNSET = object()


class TaskType:
    """The jobs of a cluster that estimators know."""

    MASTER = "master"
    PS = "ps"
    WORKER = "worker"
    CHIEF = "chief"
    EVALUATOR = "evaluator"


_CHIEFS = (TaskType.CHIEF, TaskType.MASTER)


class RunConfig:
    """How an estimator runs.

    The cluster, and which of its tasks this process is, follow from `TF_CONFIG`. A cluster without a chief has worker 0
    for it.

    Args:
      model_dir: where checkpoints and summaries go.
      tf_random_seed: the seed of each graph.
      save_summary_steps: how many steps apart summaries are written.
      save_checkpoints_steps, save_checkpoints_secs: how often checkpoints are; every 600 s when both are left out.
      session_config: of each session.
      keep_checkpoint_max: how many of the newest checkpoints to keep.
      log_step_count_steps: how many steps apart the loss and the steps per second are logged.
      train_distribute, eval_distribute, experimental_distribute: ignored, with a warning.
      more: older arguments, which change nothing.

    Raises:
      ValueError: both kinds of intervals are given, or `TF_CONFIG` contradicts itself.
    """

    def __init__(
        self,
        model_dir: Any = None,
        tf_random_seed: int | None = None,
        save_summary_steps: int | None = 100,
        save_checkpoints_steps: Any = _UNSET,
        save_checkpoints_secs: Any = _UNSET,
        session_config: ConfigProto | None = None,
        keep_checkpoint_max: int | None = 5,
        keep_checkpoint_every_n_hours: float = 10_000,
        log_step_count_steps: int | None = 100,
        train_distribute: Any = None,
        device_fn: Any = None,
        protocol: str | None = None,
        eval_distribute: Any = None,
        experimental_distribute: Any = None,
        experimental_max_worker_delay_secs: float | None = None,  # noqa: ARG002 - workers wait for the chief
        session_creation_timeout_secs: float = 7200,
        checkpoint_save_graph_def: bool = True,  # noqa: ARG002
        **more: Any,
    ) -> None:
        steps, secs = save_checkpoints_steps, save_checkpoints_secs
        if steps is _UNSET and secs is _UNSET:
            steps, secs = None, 600
        steps, secs = (None if one is _UNSET else one for one in (steps, secs))
        if steps is not None and secs is not None:
            raise ValueError("`save_checkpoints_steps` and `save_checkpoints_secs` cannot be both set.")
        if unknown := more.keys() - _OLDER:
            raise TypeError(f"RunConfig got unexpected arguments {sorted(unknown)}")
        for name, value in (
            ("save_summary_steps", save_summary_steps),
            ("save_checkpoints_steps", steps),
            ("save_checkpoints_secs", secs),
            ("keep_checkpoint_max", keep_checkpoint_max),
        ):
            if value is not None and value < 0:
                raise ValueError(f"{name} should be >= 0")
        self.tf_random_seed = tf_random_seed
        self.save_summary_steps = save_summary_steps
        self.save_checkpoints_steps, self.save_checkpoints_secs = steps, secs
        self.session_config = session_config
        self.keep_checkpoint_max = keep_checkpoint_max
        self.keep_checkpoint_every_n_hours = keep_checkpoint_every_n_hours
        self.log_step_count_steps = log_step_count_steps
        self.device_fn, self.protocol = device_fn, protocol
        self.train_distribute, self.eval_distribute = train_distribute, eval_distribute
        self.session_creation_timeout_secs = session_creation_timeout_secs
        for what in ("train_distribute", "eval_distribute", "experimental_distribute"):
            if {"experimental_distribute": experimental_distribute, **vars(self)}[what] is not None:
                logging.warning("RunConfig: %s is ignored; start one task for each device.", what)
        given = content() or {}
        self._read(given)
        known = given.get("model_dir")
        self.model_dir = str(model_dir) if model_dir is not None else known
        """Where checkpoints and summaries go."""

    def _read(self, config: dict[str, Any]) -> None:
        spec = {job: tasks for job, tasks in (config.get("cluster") or {}).items() if tasks}
        task = config.get("task") or {}
        self.cluster_spec = ClusterSpec(spec)
        self.task_type = str(task.get("type") or TaskType.WORKER)
        self.task_id = int(task.get("index") or 0)
        self.num_ps_replicas = len(spec.get(TaskType.PS, ()))
        chief = next((job for job in _CHIEFS if job in spec), TaskType.WORKER)
        self.num_worker_replicas = sum(len(spec.get(job, ())) for job in {chief, TaskType.WORKER})
        self.is_chief = (self.task_type, self.task_id) == (chief, 0) or not spec
        self.evaluation_master = ""
        self.master = ""
        if not spec:
            self.num_worker_replicas = 1
        elif self.task_type != TaskType.EVALUATOR:
            if self.task_type not in spec or self.task_id not in self.cluster_spec.task_indices(self.task_type):
                raise ValueError(
                    f"TF_CONFIG: {self.task_type}:{self.task_id} is not a task of the cluster {self.cluster_spec}."
                )
            if sum(map(len, spec.values())) > 1:
                self.master = f"grpc://{self.cluster_spec.task_address(self.task_type, self.task_id)}"

    @property
    def service(self) -> dict[str, Any] | None:
        """What `TF_CONFIG` says of the service that runs the job."""
        found: dict[str, Any] | None = (content() or {}).get("service")
        return found

    @property
    def global_id_in_cluster(self) -> int:
        """A number for each task that trains: the chief's is 0."""
        has_chief = any(job in self.cluster_spec.jobs for job in _CHIEFS)
        return self.task_id + (has_chief and self.task_type == TaskType.WORKER)

    @property
    def evaluates_alone(self) -> bool:
        """Whether this is a task that only evaluates."""
        return self.task_type == TaskType.EVALUATOR

    @property
    def keeps_checkpoints(self) -> dict[str, Any]:
        """How often a session saves, as arguments."""
        return {
            "save_checkpoint_secs": self.save_checkpoints_secs,
            "save_checkpoint_steps": self.save_checkpoints_steps,
        }

    def replace(self, **changes: Any) -> RunConfig:
        """Return a copy with other values.

        Raises:
          ValueError: one of them cannot be replaced, or both kinds of intervals are given.
        """
        if unknown := changes.keys() - _REPLACEABLE:
            raise ValueError(f"Replacing {', '.join(sorted(unknown))} is not supported.")
        every = ("save_checkpoints_steps", "save_checkpoints_secs")
        if all(changes.get(one) is not None for one in every):
            raise ValueError("`save_checkpoints_steps` and `save_checkpoints_secs` cannot be both set.")
        copied = copy.copy(self)
        for one, other in (every, every[::-1]):
            if changes.get(one) is not None:
                setattr(copied, other, None)
        for name, value in changes.items():
            setattr(copied, name, value)
        return copied


_REPLACEABLE = {
    "model_dir", "tf_random_seed", "save_summary_steps", "save_checkpoints_steps", "save_checkpoints_secs",
    "session_config", "keep_checkpoint_max", "keep_checkpoint_every_n_hours", "log_step_count_steps",
    "train_distribute", "device_fn", "protocol", "eval_distribute", "session_creation_timeout_secs",
}  # fmt: skip
_OLDER = {"master", "num_cores", "log_device_placement", "gpu_memory_fraction", "evaluation_master"}
"""Arguments of `tf.contrib.learn.RunConfig`."""
