"""What the strategies of one process do with four devices. Run as a script, which has them; writes what it found."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from tests.strategies import models

import trainband
from trainband.spmd.engine import SpmdEngine

STEPS = 8
TENSOR = {"data": 2, "model": 2}
NAMES = ("OneDevice", "Mirrored", "central", "two", "tensor", "fsdp")
"""Of the strategies."""
QUICK = ("OneDevice", "Mirrored", "tensor", "fsdp")
"""Where the others are only tried by `make test-all`."""


def silent(_: str) -> None:
    """What is said is not looked at here."""


def strategies(model: str) -> dict[str, Callable[[], Any]]:
    """All that train in one process."""
    return {
        "OneDevice": lambda: trainband.OneDevice(say=silent),
        "Mirrored": lambda: trainband.Mirrored(say=silent),
        "central": lambda: trainband.Mirrored(central_storage=True, say=silent),
        "two": lambda: trainband.Mirrored(["cpu:1", "cpu:3"], say=silent),
        "tensor": lambda: trainband.ModelParallel(TENSOR, models.RULES[model], say=silent),
        "fsdp": lambda: trainband.ModelParallel({"data": -1}, trainband.auto_fsdp(smallest=64), say=silent),
    }


def trainer(model: str, strategy: Any, **changes: Any) -> trainband.Trainer:
    return trainband.Trainer(
        **{**models.MODELS[model](), "optimizer": models.optimizer(), "strategy": strategy, "console": False, **changes}
    )


def flat(trained: trainband.Trainer) -> list[float]:
    leaves = jax.tree.leaves((trained.params, trained.model_state))
    return [float(x) for leaf in leaves for x in np.ravel(leaf)]


def same_params(model: str, names: Sequence[str]) -> dict[str, Any]:
    """The params after some steps under these strategies, and an evaluation."""
    found = {}
    for name in names:
        trained = trainer(model, strategies(model)[name]())
        trained.fit(models.batches(STEPS), STEPS)
        evaluation = trained.evaluate([*models.batches(1), *models.batches(1, size=7)])
        found[name] = {"params": flat(trained), "loss": evaluation.loss, "accuracy": evaluation.metrics["accuracy"]}
    return found


def switches(names: Sequence[str]) -> dict[str, Any]:
    """Every switch of the Trainer, under each of these strategies."""
    found: dict[str, Any] = {}
    switches: dict[str, dict[str, Any]] = {
        "accumulate": {"accumulate": 2},
        "bf16": {"compute_dtype": jnp.bfloat16},
        "remat": {"remat": True},
        "policy": {"remat": jax.checkpoint_policies.dots_saveable},
        "not donated": {"donate": False},
        "transform": {"worker_transform": optax.clip_by_global_norm(0.1)},
        "pruning": {"pruning": trainband.compress.Pruning(sparsity=0.7)},
    }
    for switch, changes in switches.items():
        found[switch] = {}
        for name in names:
            trained = trainer("mlp", strategies("mlp")[name](), **changes)
            trained.fit(models.batches(4), 2)
            found[switch][name] = flat(trained)
    return found


def executions(names: Sequence[str]) -> dict[str, Any]:
    """Several steps in a call: to an exact end, with a gradient that is refused on the way, and to the data's end."""
    found: dict[str, Any] = {}
    for per_call in (1, 3):
        found[str(per_call)] = {}
        for name in names:
            batches = models.batches(7)
            batches[4][0][-1, 0] = np.nan
            trained = trainer("convnet", strategies("convnet")[name](), steps_per_execution=per_call, say=silent)
            first = trained.fit(batches, 8)
            second = trained.fit(batches[:4])
            found[str(per_call)][name] = {
                "params": flat(trained),
                "steps": (first.global_step, first.refused, second.global_step, second.refused, second.examples),
                "losses": [*first.history[:, 1][:4], *second.history[:, 1]],
            }
    return found


def checkpoints(directory: Path) -> dict[str, Any]:
    """What is saved under each, restored under one device; and what is saved under that, under each."""
    found: dict[str, Any] = {}
    for name, make in strategies("mlp").items():
        trained = trainer("mlp", make())
        trained.fit(models.batches(3), 3)
        trained.save(directory / name)
        found[name] = {"itself": flat(trained)}
        for other, other_make in strategies("mlp").items():
            if "OneDevice" not in (name, other):
                continue
            restored = trainer("mlp", other_make(), say=silent)
            restored.restore(directory / name)
            at_first = flat(restored)
            restored.fit(models.batches(1), 1)
            found[name][other] = {"params": at_first, "step": restored.global_step, "after": flat(restored)}
    return found


def padded() -> dict[str, Any]:
    """A batch that four devices do not divide, beside one device."""
    batches = models.batches(4, size=3)  # fewer than there are devices
    found: dict[str, Any] = {}
    cases: dict[str, tuple[str, Any, dict[str, Any]]] = {
        "mean": ("transformer", ("OneDevice", "Mirrored", "tensor"), {}),
        "state": ("convnet", ("OneDevice", "Mirrored"), {"accumulate": 2}),
        "call": ("mlp", ("OneDevice", "Mirrored"), {"steps_per_execution": 2}),
    }
    for name, (model, under, changes) in cases.items():
        found[name] = {}
        for strategy in under:
            trained = trainer(model, strategies(model)[strategy](), fixed_shapes=False, **changes)
            result = trained.fit(batches)
            found[name][strategy] = {"params": flat(trained), "examples": result.examples}
    said: list[str] = []
    trainer("mlp", trainband.Mirrored(say=said.append)).fit(batches[:1])
    refuse = trainband.Mirrored(remainder="refuse", say=silent)
    found["refused"] = refusal(lambda: trainer("mlp", refuse).fit(batches, 1))
    found["said"] = said
    return found


def refusals() -> dict[str, str]:
    """What is said of meshes and rules that cannot be."""

    def parallel(mesh: Any, rules: Any = (), model: str = "mlp") -> str:
        return refusal(
            lambda: trainer(model, trainband.ModelParallel(mesh, rules, say=silent)).fit(models.batches(1), 1)
        )

    return {
        "too large": parallel({"data": 2, "model": 4}),
        "too small": parallel({"data": 3}),
        "no rest": parallel({"data": -1, "model": 3}),
        "a word": parallel({"data": 4}, [("hidden/kernel", "data")]),
        "two rests": parallel({"data": -1, "model": -1}),
        "no place": parallel({"data": 0}),
        "no match": parallel({"data": 4}, [("encoder/.*", (None, "data"))]),
        "no axis": parallel({"data": 4}, [("hidden/kernel", (None, "model"))]),
        "too many axes": parallel({"data": 4}, [("hidden/bias", (None, "data"))]),
        "twice": parallel({"data": 4}, [("hidden/kernel", ("data", "data"))]),
        "not divided": parallel({"data": 1, "model": 4}, [("conv", ("model",))], "convnet"),
        "no rules": parallel({"data": 4}, None),
        "not called": parallel({"data": 4}, trainband.auto_fsdp),
        "no pair": parallel({"data": 4}, [("hidden/kernel", None, "data")]),
        "no pattern at all": parallel({"data": 4}, [(None, ("data",))]),
        "a number": parallel({"data": 4}, [("hidden/kernel", (None, 1))]),
        "no mesh": parallel([("data", 4)]),
        "no pattern": refusal(lambda: trainband.ModelParallel({"data": 4}, [("(", ("data",))])),
        "same device": refusal(lambda: trainband.Mirrored(["cpu:0", "cpu:0"], say=silent).mesh()),
        "strict": refusal(lambda: trainband.Mirrored("gpu", strict=True, say=silent).mesh()),
        "remainder": refusal(lambda: trainband.Mirrored(remainder="drop")),
    }


def refusal(call: Callable[[], Any]) -> str:
    try:
        call()
    except trainband.TrainbandError as exc:
        return f"{type(exc).__name__}: {exc}"
    return "it was not refused"


def shape_of(model: str = "mlp") -> Any:
    return jax.eval_shape(models.MODELS[model]()["init"], jax.random.key(0))


def descriptions() -> dict[str, Any]:
    """What each says of where things lie, and what a device really has."""
    found = {}
    for name, make in strategies("mlp").items():
        strategy = make()
        description = strategy.describe(shape_of(), models.optimizer())
        engine = strategy.start(trainer("mlp", strategy)._model)  # noqa: SLF001 - what lies on the devices
        assert isinstance(engine, SpmdEngine)
        held: dict[str, int] = {}
        for leaf in jax.tree.leaves(engine.values._state.now[:2]):  # noqa: SLF001
            for shard in leaf.addressable_shards:
                held[str(shard.device)] = held.get(str(shard.device), 0) + shard.data.nbytes
        found[name] = {
            "text": str(description),
            "told": description.nbytes,
            "held": held,
            "replicas": strategy.num_replicas,
            "batch": strategy.global_batch(10),
            "placed": str(jax.tree.leaves(strategy.global_batch(models.batches(1)[0]))[0].sharding.spec),
        }
    return found


def coupled() -> dict[str, Any]:
    """A loss that is no mean over the examples, on one device and on four."""

    def loss(params: Any, batch: Any) -> Any:
        x, y = batch
        hidden = jax.nn.relu(x @ params["hidden"]["kernel"])
        near = hidden @ hidden.T
        return jnp.where(y[:, None] == y[None, :], -near, jnp.log1p(jnp.exp(near))).mean()

    found = {}
    for name in ("OneDevice", "Mirrored"):
        trained = trainer("mlp", strategies("mlp")[name](), loss=loss)
        trained.fit(models.batches(2), 2)
        found[name] = flat(trained)
    return found


def constrained() -> dict[str, Any]:
    """A loss that says where its activations lie."""
    return {name: _constrained(name) for name in ("OneDevice", "Mirrored", "central", "tensor", "fsdp")}


def mesh_of_the_script() -> dict[str, Any]:
    """One that a script sets before the training, or between two calls."""
    return {name: _refused_twice(trainer("mlp", make())) for name, make in strategies("mlp").items()}


def _refused_twice(trained: trainband.Trainer) -> list[str]:
    with jax.set_mesh(jax.make_mesh((4,), ("mine",))):
        before = refusal(lambda: trained.fit(models.batches(2), 2))
    trained.fit(models.batches(2), 2)
    with jax.set_mesh(jax.make_mesh((4,), ("mine",))):
        return [before, refusal(lambda: trained.evaluate(models.batches(1)))]


def _constrained(name: str) -> Any:
    split = "model" if name == "tensor" else None

    def loss(params: Any, batch: Any) -> Any:
        x, y = batch
        hidden = jax.nn.relu(x @ params["hidden"]["kernel"] + params["hidden"]["bias"])
        hidden = jax.lax.with_sharding_constraint(hidden, jax.P("data", split))
        logits = hidden @ params["out"]["kernel"] + params["out"]["bias"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    def init(key: jax.Array) -> Any:
        return jax.tree.map(lambda leaf: jax.lax.with_sharding_constraint(leaf, jax.P()), drawn(key))

    drawn = models.MODELS["mlp"]()["init"]
    trained = trainer("mlp", strategies("mlp")[name](), init=init, loss=loss)
    trained.fit(models.batches(STEPS), STEPS)
    return {"params": flat(trained), "loss": trained.evaluate(models.batches(1)).loss}


def refused_steps() -> dict[str, Any]:
    """A gradient that is not finite, on one of the devices."""
    batches = models.batches(3)
    batches[1][0][-1, 0] = np.nan
    found: dict[str, Any] = {}
    for name, make in strategies("mlp").items():
        trained = trainer("mlp", make(), say=silent)
        result = trained.fit([*batches, *models.batches(1)], 3)
        found[name] = {"refused": result.refused, "step": result.global_step, "params": flat(trained)}
    return found


def predictions() -> dict[str, Any]:
    found = {}
    for name, make in strategies("mlp").items():
        trained = trainer("mlp", make())
        outputs = trained.predict(
            lambda params, batch: {"hidden": batch[0] @ params["hidden"]["kernel"]},
            [*models.batches(1), *models.batches(1, size=5)],
        )
        found[name] = np.ravel(outputs["hidden"]).tolist()
    return found


def transfers() -> dict[str, str]:
    """What JAX says of hidden transfers, where the batches are on a device already."""
    found = {}
    for name, make in strategies("mlp").items():
        trained = trainer("mlp", make())
        batches = jax.device_put([*models.batches(2), *models.batches(1, size=5)])
        with trained, jax.transfer_guard_host_to_device("disallow"):
            try:
                trained.fit(batches[:2])
                trained.evaluate(batches)
            except jax.errors.JaxRuntimeError as exc:
                found[name] = str(exc)
            else:
                found[name] = ""
    return found


def as_on_accelerators() -> dict[str, Any]:
    """What is computed by the programs for accelerators."""
    models.use_programs_of_accelerators()
    return {
        "same": {model: same_params(model, NAMES) for model in models.MODELS},
        "executions": executions(NAMES),
        "padded": padded(),
        "refused": refused_steps(),
        "predictions": predictions(),
    }


PARTS: dict[str, dict[str, Callable[[Path], Any]]] = {
    "mlp": {"devices": lambda _: len(jax.devices()), "same mlp": lambda _: same_params("mlp", NAMES)},
    "convnet": {"same convnet": lambda _: same_params("convnet", NAMES)},
    "transformer": {"same transformer": lambda _: same_params("transformer", QUICK)},
    "settings": {
        "switches": lambda _: switches(("OneDevice", "Mirrored", "tensor")),
        "executions": lambda _: executions(QUICK),
        "padded": lambda _: padded(),
    },
    "rest": {
        "rest transformer": lambda _: same_params("transformer", ("OneDevice", "central", "two")),
        "rest switches": lambda _: switches(("OneDevice", "central")),
        "rest executions": lambda _: executions(("central", "two")),
    },
    "others": {
        "checkpoints": checkpoints,
        "refusals": lambda _: refusals(),
        "descriptions": lambda _: descriptions(),
        "coupled": lambda _: coupled(),
        "constrained": lambda _: constrained(),
        "mesh of the script": lambda _: mesh_of_the_script(),
        "refused": lambda _: refused_steps(),
        "predictions": lambda _: predictions(),
        "transfers": lambda _: transfers(),
    },
    "accelerators": {"accelerators": lambda _: as_on_accelerators()},
}
"""What one run of the script finds out, by name; each takes up to twenty seconds."""


def main() -> None:
    directory, part = Path(sys.argv[1]), sys.argv[2]
    found = {name: find(directory) for name, find in PARTS[part].items()}
    (directory / "found.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
