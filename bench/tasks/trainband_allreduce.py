"""One task of trainband's strategies, as its users write it: run by ``trainband run``.

It keeps the contract of `bench.allreduce`, which see.
"""

from __future__ import annotations

import time
from typing import Any

import jax
import optax

import trainband
from bench.peers.steps import Part, make_parser
from bench.tasks.networks import NETWORKS, ModuleNetwork
from trainband.strategies import StepReport

UPDATES = {"sync": trainband.Sync(), "async": trainband.Async()}
SETTLING = 10
"""The share of the warm-up that is repeated before what is measured."""


def main() -> None:
    """Run the task that the environment names; a ps serves until the job ends."""
    parser = make_parser(__doc__)
    parser.add_argument("--strategy", choices=["mirrored", *UPDATES], required=True)
    parser.add_argument("--steps_a_call", type=int, default=1, help="the trainer's steps_per_execution")
    parser.add_argument("--numpy", action="store_true", help="give NumPy batches, which each step puts on the device")
    flags = parser.parse_args()
    cluster = trainband.cluster.resolve()
    if cluster is None:
        parser.error("there is no cluster; start this by trainband run.")
    trainer = make_trainer(
        flags.model,
        optimizer=optax.adam(flags.learning_rate),
        strategy=make_strategy(flags.strategy, cluster),
        console=False,
        steps_per_execution=flags.steps_a_call,
    )
    part = Part(flags, cluster.task.index)
    with trainer:
        if not flags.numpy:  # not before: JAX's backends begin with the first array, and the strategy must be there
            part.batches = jax.device_put(part.batches, jax.local_devices()[0])
        warm_up = part.problem.warm_up_steps
        probe = Window(warm_up, warm_up + part.problem.probe_steps)
        trainer.fit(part.batches, steps=probe.last, hooks=[Together(part, len(cluster.spec.workers)), probe])
        steps = part.agree(probe.steps_per_s)
        settling = max(warm_up // SETTLING, flags.steps_a_call)
        window = Window(settling, settling + steps, part)
        trainer.fit(part.batches, steps=window.last, hooks=[window])
        part.measured(window.steps, window.steps_per_s)
        part.write_result(trainer.evaluate([part.test]).loss)


def make_strategy(name: str, cluster: trainband.Cluster) -> Any:
    """Make the strategy of this name."""
    if name in UPDATES:
        return trainband.ParameterServer(cluster, update=UPDATES[name])
    return trainband.MultiWorkerMirrored(cluster)


def make_trainer(model: str, **switches: Any) -> trainband.Trainer:
    """Make the trainer of this network."""
    network = NETWORKS[model]
    if isinstance(network, ModuleNetwork):
        return trainband.Trainer.from_nnx(network.module(), network.loss, **switches)
    return trainband.Trainer(init=network.init, loss=network.loss, **switches)


class Together(trainband.Hook):
    """Lets no worker take a second step before all have taken their first, for which they compile."""

    def __init__(self, part: Part, workers: int) -> None:
        """Wait for this many workers."""
        self._part = part
        self._workers = workers

    def after_run(self, session: trainband.MonitoredSession, report: StepReport) -> None:
        """Wait, if this step was the first."""
        del session, report
        self._part.mark("warm")
        self._part.wait_for_all(self._workers, "warm")


class Window(trainband.Hook):
    """Measures the steps of one training run between two of them.

    Args:
      first: the number of the step after which it begins, counted from the beginning of the training.
      last: the number of the step after which it ends.
      part: where to leave the marks of these moments, if anywhere.
    """

    def __init__(self, first: int, last: int, part: Part | None = None) -> None:
        """Measure nothing yet."""
        self.last = last
        self._first = first
        self._part = part
        self._began_at = 0
        self._times: dict[str, float] = {}
        self._steps: dict[str, int] = {}

    @property
    def steps(self) -> int:
        """How many were measured."""
        return self._steps["end"] - self._steps.get("begin", self._steps["end"])

    @property
    def steps_per_s(self) -> float:
        """The speed between the two; 0 where other workers made all those updates."""
        return self.steps / (self._times["end"] - self._times["begin"]) if self.steps else 0.0

    def begin(self, session: trainband.MonitoredSession) -> None:
        """Note the global step that the training begins at."""
        self._began_at = session.global_step

    def after_run(self, session: trainband.MonitoredSession, report: StepReport) -> None:
        """Look whether one of the moments has come."""
        del session
        step = report.global_step - self._began_at
        if step >= self.last:
            self._record_moment("end", step, report)
        elif step >= self._first and not self._times:
            self._record_moment("begin", step, report)

    def end(self, session: trainband.MonitoredSession) -> None:
        """Note the end where another worker made the last update."""
        if "end" not in self._times:
            self._record_moment("end", session.global_step - self._began_at)

    def _record_moment(self, moment: str, step: int, report: StepReport | None = None) -> None:
        if report is not None:
            float(report.loss)  # waits until the step is done
        self._times[moment] = time.perf_counter()
        self._steps[moment] = step
        if self._part is not None:
            self._part.mark(moment)


if __name__ == "__main__":
    main()
