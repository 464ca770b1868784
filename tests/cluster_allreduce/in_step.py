"""A training of a model of `tests.strategies.models` that can go wrong in every way. Run as a script by the tests."""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from tests.strategies import models

import trainband
from trainband.model.model import Given
from trainband.strategies.base import StepReport


class Led(trainband.Hook):
    """Gives every step a length, says when the first was made, and does what is to go wrong."""

    def __init__(self, flag: argparse.Namespace, rank: int) -> None:
        self._flag = flag
        self._rank = rank
        self._said = False

    def after_run(self, session: trainband.MonitoredSession, report: StepReport) -> None:
        flag = self._flag
        if not self._said:
            print("training", flush=True)
            self._said = True
        time.sleep(flag.step_s)
        if report.global_step < flag.at:
            return
        if flag.fault == "raises in time" and self._rank != flag.of:
            Path(f"{flag.mark}-waits").touch()
            await_file(flag.mark)  # in Python, when the other's process ends
        if flag.fault == "stops" and session.is_chief:
            session.request_stop("enough for now")
        if flag.fault == "asks later" and report.global_step == flag.at + (self._rank == flag.of):
            session.params()
        if self._rank != flag.of:
            return
        match flag.fault:
            case "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            case "dies once" if not Path(flag.mark).exists():
                Path(flag.mark).touch()
                os.kill(os.getpid(), signal.SIGKILL)
            case "stands still":
                time.sleep(600)
            case "asks alone":
                session.params()
            case "raises":
                raise OSError("the disk with the pictures is gone")
            case "raises in time":
                await_file(f"{flag.mark}-waits")
                raise OSError("the disk with the pictures is gone")


def await_file(path: str) -> None:
    while not Path(path).exists():
        time.sleep(0.02)


class Looks(trainband.Hook):
    """Looks at the params every few steps, which all workers do at the same time where they are in parts."""

    def __init__(self, every: int) -> None:
        self._every = every
        self._looked_at = 0

    def after_run(self, session: trainband.MonitoredSession, report: StepReport) -> None:  # noqa: ARG002
        step = session.settle()
        if step // self._every > self._looked_at // self._every:
            session.params()
            self._looked_at = step


def constrained(params: Any, batch: Any) -> Any:
    """The loss of the MLP, by which an activation lies where a `PartitionSpec` alone says."""
    x, y = batch
    hidden = jax.nn.relu(x @ params["hidden"]["kernel"] + params["hidden"]["bias"])
    hidden = jax.lax.with_sharding_constraint(hidden, jax.P("data"))
    logits = hidden @ params["out"]["kernel"] + params["out"]["bias"]
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, y)
    return losses.mean(), {"accuracy": (logits.argmax(-1) == y).mean()}


class Slow:
    """Batches that take long."""

    def __init__(self, batches: list[Any], seconds: float) -> None:
        self._batches = batches
        self._seconds = seconds

    def __iter__(self) -> Iterator[Any]:
        for batch in self._batches:
            time.sleep(self._seconds)
            yield batch


def strategy_of(flag: argparse.Namespace, cluster: Any) -> Any:
    limits = {"timeout_s": flag.timeout_s, "start_s": flag.start_s}
    match flag.strategy:
        case "mirrored":
            return trainband.MultiWorkerMirrored(cluster, **limits)
        case "tensor":
            rules = models.RULES[flag.model]
            data = 4 if flag.fault == "large mesh" else 1
            return trainband.ModelParallel({"data": data, "model": -1}, rules, cluster=cluster, **limits)
        case "fsdp":
            is_other = flag.fault == "other rules" and cluster.training_index == flag.of
            rules = trainband.auto_fsdp(smallest=2**20 if is_other else 64)
            return trainband.ModelParallel({"data": -1}, rules, cluster=cluster, **limits)
        case "sync":
            return trainband.ParameterServer(cluster, update=trainband.Sync())
        case "local":
            return trainband.ParameterServer(cluster, update=trainband.Sync(), local=trainband.Mirrored())
        case _:
            return trainband.OneDevice()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--strategy", default="mirrored")
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--dir")
    parser.add_argument("--save_steps", type=int, default=5)
    parser.add_argument("--per_call", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--save", help="where to save by hand, when all is done")
    parser.add_argument("--validate", action="store_true")
    parser.add_argument("--validate_last", action="store_true", help="after what is to go wrong")
    parser.add_argument("--looks", type=int, default=0)
    parser.add_argument("--step_s", type=float, default=0.0)
    parser.add_argument("--timeout_s", type=float, default=30.0)
    parser.add_argument("--start_s", type=float, default=60.0)
    parser.add_argument("--fault", default="")
    parser.add_argument("--of", type=int, default=1)
    parser.add_argument("--at", type=int, default=6)
    parser.add_argument("--mark", default="")
    flag = parser.parse_args()

    cluster = trainband.cluster.resolve()
    rank = cluster.training_index if cluster is not None else 0
    if flag.fault == "accelerators":
        models.use_programs_of_accelerators()
    if flag.fault == "JAX first":
        jax.devices()
    if flag.fault == "another port" and rank == 0:
        taken = socket.create_server(("", int(cluster.address.rpartition(":")[2])))  # type: ignore[union-attr]
        taken.listen()
    if flag.fault == "other devices" and rank == flag.of:
        jax.config.update("jax_num_cpu_devices", 2)
    if flag.fault == "other mesh" and rank == flag.of:
        flag.strategy = "fsdp"
    strategy = strategy_of(flag, cluster)
    if flag.fault == "fails first" and rank == flag.of:
        await_file(flag.mark)
        raise OSError("the disk with the pictures is gone")
    if flag.fault == "ends first" and rank == flag.of:
        await_file(flag.mark)
        sys.exit("the flags are wrong")
    if flag.fault == "dies first" and rank == flag.of:
        await_file(flag.mark)
        os.kill(os.getpid(), signal.SIGKILL)
    if flag.fault == "twice":
        strategy_of(flag, cluster)
    model = models.MODELS[flag.model]()
    if flag.fault == "other model" and rank == flag.of:
        model = models.MODELS["convnet"]()
    if flag.fault == "other values":
        first = model["init"]
        copies = 2 if rank == flag.of else 1
        model["init"] = Given(lambda: jax.tree.map(lambda leaf: jnp.repeat(leaf, copies, 0), first(jax.random.key(0))))
    if flag.fault == "other init" and rank == flag.of:
        drawn = model["init"]
        model["init"] = lambda key: drawn(jax.random.fold_in(key, 1))
    more = {}
    if flag.fault == "other transform" and rank == flag.of:
        more["worker_transform"] = optax.clip_by_global_norm(0.1)
    if flag.fault == "other dtype" and rank == flag.of:
        more["compute_dtype"] = jnp.bfloat16
    if flag.fault == "other metrics" and rank == flag.of:
        usual = model["loss"]
        model["loss"] = lambda params, batch: (usual(params, batch)[0], {})
    per_call = flag.per_call + 1 if flag.fault == "other steps" and rank == flag.of else flag.per_call
    optimizer = optax.adam(0.1) if flag.fault == "other optimizer" and rank == flag.of else models.optimizer()
    if flag.fault == "keys":
        optimizer = optax.chain(optimizer, optax.add_noise(eta=0.0, gamma=0.0, key=jax.random.key(0)))
    if flag.fault == "other numbers":
        optimizer = optax.sgd(0.1 if rank != flag.of else 0.2)
    if flag.fault in ("scalars", "other kind"):
        of_arrays = model["loss"]
        model["loss"] = lambda params, batch: of_arrays(params, batch["b"])
    if flag.fault == "constrained":
        model["loss"] = constrained
    trainer = trainband.Trainer(
        **model, optimizer=optimizer, strategy=strategy, console=False, steps_per_execution=per_call, **more
    )
    alone = cluster is None or flag.strategy == "tensor"
    ranks = 1 if cluster is None or alone else len(cluster.spec.workers)
    size = models.SIZE + 2 if flag.fault == "other batch" and rank == flag.of else models.SIZE
    batches = models.batches(flag.steps, size, 0 if alone else rank, ranks)
    if flag.fault in ("scalars", "other kind"):
        batches = [{"a": np.float32(1.0), "b": batch} for batch in batches]
    if flag.fault == "other data" and rank == flag.of:
        batches = batches[::-1]
    if flag.fault == "other kind" and rank == flag.of:
        batches = jax.device_put(batches, jax.local_devices()[0])
    steps: int | None = flag.steps
    if flag.fault in ("used up", "not finite"):
        steps, batches = None, batches[: flag.at] if rank == flag.of else batches
    if flag.fault == "not finite" and rank == flag.of:
        batches[-1][0][:] = np.nan
    validation: Any = models.batches(1) if flag.validate else None
    if flag.fault == "evaluates long":
        validation = Slow(models.batches(1), flag.timeout_s + 2.0)
    hooks: list[trainband.Hook] = [Led(flag, rank)]
    if flag.looks:
        hooks.append(Looks(flag.looks))
    if flag.validate_last:
        hooks.append(trainband.ValidationHook(models.batches(1), every_steps=4))
    if flag.fault == "evaluates first" and rank == flag.of:
        trainer.evaluate(Slow(models.batches(1), flag.start_s + 2.0))
    if flag.fault == "asks first" and rank == flag.of:
        trainer.params  # noqa: B018 - an exchange
    result = trainer.fit(
        batches,
        steps,
        checkpoint_dir=None if flag.fault == "no directory" and rank == flag.of else flag.dir,
        save_steps=flag.save_steps,
        hooks=hooks,
        validation=validation,
        every=4,
    )
    if flag.fault == "stops":
        print(f"{result.task} had enough at global step {result.global_step}: {result.stopped}", flush=True)
        result = trainer.fit(batches, flag.steps)
    if flag.fault == "another trainer":
        trainer = trainband.Trainer(**model, optimizer=optax.adam(0.1), strategy=strategy, console=False)
        result = trainer.fit(batches, 2 * flag.steps)
    print(f"{result.task} is done at global step {result.global_step}: {result.stopped}", flush=True)
    if flag.fault == "other evaluation":
        trainer.evaluate(models.batches(1, models.SIZE, rank, ranks))
    if flag.fault == "predicts instead" and rank != flag.of:
        trainer.evaluate(models.batches(1))
    elif flag.fault == "predicts instead":
        trainer.predict(constrained, models.batches(1))
    if flag.fault == "uneven evaluation":
        trainer.evaluate(models.batches(1 + rank))
    if flag.fault == "evaluates alone":
        if rank == flag.of:
            trainer.evaluate(models.batches(1))
        return
    if flag.save is not None:
        trainer.save(flag.save)
    params, state = trainer.params, trainer.model_state  # where they are in parts, all must ask
    if flag.out is not None and trainer.is_chief:
        values = [float(x) for leaf in jax.tree.leaves((params, state)) for x in np.ravel(leaf)]
        evaluations = [evaluation.global_step for evaluation in result.evaluations]
        found = {"step": result.global_step, "params": values, "evaluations": evaluations}
        flag.out.write_text(json.dumps(found), encoding="utf-8")
    trainer.close()


def in_a_line(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Prints an error that ends the script: those that are raised on purpose in a line."""
    if isinstance(error, trainband.TrainbandError | OSError):
        print(f"error: {kind.__name__}: {error}", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


if __name__ == "__main__":
    sys.excepthook = in_a_line
    main()
