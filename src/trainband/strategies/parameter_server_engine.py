"""ParameterServerEngine: one worker's part in a training run on parameter servers."""

from __future__ import annotations

from trainband.job.checkpoints import RestoreFrom
from trainband.ps.worker.client import JobClient
from trainband.runtime.signals import AskedToEnd
from trainband.strategies.gradient_step import GradientStep
from trainband.strategies.parameter_server_steps import ParameterServerSteps


class ParameterServerEngine:
    """The `Engine` of one worker.

    Args:
      client: joins the job here, and leaves it again on an error.
      step: computes gradients.
      restore: where the job starts from.
      overlap: whether the next gradient is computed while a push and its answer travel.
    """

    def __init__(
        self, client: JobClient, step: GradientStep, restore: RestoreFrom | None, *, overlap: bool = False
    ) -> None:
        self.has_left = False
        """Whether this worker has left the job."""
        self._client = client
        self.values, self.checkpoints, self.peers = client.values, client.checkpoints, client.peers
        try:
            client.join(step.first_values, restore)
            client.checkpoints.find_worker_state()
            self.steps = ParameterServerSteps(client, step, overlap=overlap)
        except BaseException as exc:
            client.leave(str(exc) if isinstance(exc, AskedToEnd) else f"{type(exc).__name__}: {exc}")
            raise

    def close(self, failure: str = "") -> None:
        """Leaves the job; `failure` says why, if something went wrong. Idempotent."""
        self.has_left = True
        self._client.leave(failure)
