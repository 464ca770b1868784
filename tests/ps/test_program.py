"""The update program: what a ps runs is what optax would have done."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.ps.plans import assert_close, blocks_of, gradient_like, plan_of, small_params, tree_of

from trainband.errors import ModelError, ProtocolError
from trainband.model.placement import PlacementPolicy, RoundRobin
from trainband.model.variables import PyTree
from trainband.ps.program.compiled_program import CompiledProgram
from trainband.ps.program.update_program import UpdateProgram

UPDATES = 2


def kernels_only(params: PyTree) -> PyTree:
    """A mask by path, as users write them for weight decay."""
    return jax.tree_util.tree_map_with_path(lambda path, _: "kernel" in jax.tree_util.keystr(path), params)


def labels(params: PyTree) -> PyTree:
    """Which optimizer each variable gets, by its path."""
    return jax.tree_util.tree_map_with_path(
        lambda path, _: "slow" if "hidden" in jax.tree_util.keystr(path) else "fast", params
    )


def ema_of_params() -> optax.GradientTransformation:
    """Keeps the first params themselves in its state: their memory is not the state's to give away."""

    def update(gradient: PyTree, state: PyTree, params: PyTree) -> Any:
        updates = jax.tree.map(lambda g, s, p: -0.1 * g + 0.01 * (s - p), gradient, state, params)
        return updates, state

    return optax.GradientTransformation(lambda params: params, update)


STATIC_MASK = {"hidden": {"kernel": True, "bias": False}, "out": True, "scale": True}

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: optax.sgd(0.1),
    "momentum": lambda: optax.sgd(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: optax.adam(1e-2),
    "adamw, mask by path": lambda: optax.adamw(1e-2, weight_decay=0.1, mask=kernels_only),
    "adamw, mask as a tree": lambda: optax.adamw(1e-2, weight_decay=0.1, mask=STATIC_MASK),
    "rmsprop": lambda: optax.rmsprop(1e-2, momentum=0.9),
    "lamb": lambda: optax.lamb(1e-2),
    "adafactor": lambda: optax.adafactor(1e-2, min_dim_size_to_factor=2),
    "cosine schedule": lambda: optax.sgd(optax.warmup_cosine_decay_schedule(0.0, 0.1, 2, 10)),
    "table schedule": lambda: optax.sgd(lambda count: jnp.asarray([0.1, 0.2, 0.3, 0.4])[count]),
    "injected hyperparameters": lambda: optax.inject_hyperparams(optax.sgd)(learning_rate=1e-2),
    "multi_transform": lambda: optax.multi_transform({"slow": optax.sgd(1e-2), "fast": optax.adam(1e-1)}, labels),
    "frozen half": lambda: optax.multi_transform({"slow": optax.set_to_zero(), "fast": optax.sgd(0.1)}, labels),
    "clipping": lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-2)),
    "optimistic": lambda: optax.optimistic_gradient_descent(0.1),  # its state is the last gradient
    "ema of params": ema_of_params,
    "accumulation": lambda: optax.MultiSteps(optax.sgd(0.1), 2),
}


@cache
def by_optax(name: str) -> list[PyTree]:
    """The small params after each update, by optax alone."""
    return run_optax(OPTIMIZERS[name](), small_params())


def run_optax(optimizer: Any, params: PyTree) -> list[PyTree]:
    """The params after each update, by optax alone."""
    state, found = optimizer.init(params), []

    @jax.jit
    def update(params: PyTree, state: PyTree, gradient: PyTree) -> Any:
        updates, state = optimizer.update(gradient, state, params)
        return jax.tree.map(lambda p, u: jnp.asarray(p + u, p.dtype), params, updates), state

    for number in range(UPDATES):
        params, state = update(params, state, gradient_like(params, number))
        found.append(jax.device_get(params))
    return found


def run_program(program: UpdateProgram, params: Any, gradients: list[Any]) -> list[list[Any]]:
    """The shard's blocks after each update, by the program alone."""
    compiled = CompiledProgram(program, "the test")
    blocks = tuple(jnp.array(block) for block in params)
    state, spare, found = compiled.initialise(blocks), tuple(jnp.empty_like(block) for block in blocks), []
    for gradient in gradients:
        borrowed = tuple(np.array(block) for block in gradient)
        new, state = compiled.update(blocks, state, borrowed, spare)
        for block in borrowed:
            block.fill(np.nan)  # the wire's memory is overwritten by the next frame: the state must not lie there
        found.append([np.array(block) for block in new])
        spare, blocks = blocks, new
    return found


def by_program(optimizer: Any, params: PyTree, ps: int, policy: PlacementPolicy | None = None) -> list[PyTree]:
    """The params after each update, by the exported programs of `ps` shards."""
    plan = plan_of(params, optimizer, ps=ps, policy=policy)
    first = blocks_of(plan, params)
    gradients = [blocks_of(plan, gradient_like(params, number)) for number in range(UPDATES)]
    shards = [
        run_program(plan.shard_optimizer(i).export(), first[i], [gradient[i] for gradient in gradients])
        for i in range(ps)
    ]
    return [tree_of(plan, [shard[number] for shard in shards]) for number in range(UPDATES)]


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_the_program_is_the_optimizer(name: str) -> None:
    params = small_params()
    for got, wanted in zip(by_program(OPTIMIZERS[name](), params, 1), by_optax(name), strict=True):
        assert_close(got, wanted)


def test_the_first_updates_wait_for_no_compiler(caplog: pytest.LogCaptureFixture) -> None:
    plan = plan_of(small_params(), optax.adam(1e-2))
    (first,) = blocks_of(plan, small_params())
    program = CompiledProgram(plan.shard_optimizer(0).export(), "the test")
    blocks = program.owned(first)
    spare = program.room_like(blocks)
    with caplog.at_level("WARNING", "jax"), jax.log_compiles():
        program.warm_up()
        assert "Compiling jit(run)" in caplog.text
        caplog.clear()
        state = program.initialise(blocks)
        for _ in range(4):
            new, state = program.update(blocks, state, first, spare)
            spare, blocks = blocks, new
    assert "Compiling" not in caplog.text


def test_state_that_changes_its_dtype_is_refused_or_runs() -> None:
    params = {"w": np.ones(3, jnp.bfloat16), "v": np.ones(3, np.float32)}
    optimizer = optax.inject_hyperparams(optax.adam)(learning_rate=1e-2)  # its float32 b1 promotes the moments
    try:
        plan = plan_of(params, optimizer)
        program = plan.shard_optimizer(0).export()
    except ModelError:
        return
    (blocks,) = blocks_of(plan, params)
    run_program(program, blocks, [[np.ones_like(block) for block in blocks]] * 3)


SPREAD = [
    "adamw, mask by path",
    "lamb",
    "adafactor",
    "multi_transform",
]


@pytest.mark.parametrize("name", SPREAD)
def test_spread_over_several_ps_it_is_the_optimizer_still(name: str) -> None:
    params = small_params()
    spread = by_program(OPTIMIZERS[name](), params, 2, RoundRobin(max_slice_bytes=24))
    for got, wanted in zip(spread, by_optax(name), strict=True):
        assert_close(got, wanted)


def test_more_ps_than_there_are_slices() -> None:
    params = {"w": np.ones(3, np.float32)}
    for got, wanted in zip(
        by_program(OPTIMIZERS["adam"](), params, 3), run_optax(OPTIMIZERS["adam"](), params), strict=True
    ):
        assert_close(got, wanted)


def test_variables_without_rows() -> None:
    params = {"none": np.zeros((0, 3), np.float32), "w": np.ones(3, np.float32)}
    for ps in (1, 2):
        for got, wanted in zip(
            by_program(OPTIMIZERS["adam"](), params, ps), run_optax(OPTIMIZERS["adam"](), params), strict=True
        ):
            assert_close(got, wanted)


MASKS: list[Any] = [
    True,
    # the arithmetic is uniform, but the mask has the params' tree, not that of the blocks
    {"hidden": True, "out": True, "scale": True},
]


@pytest.mark.parametrize("mask", MASKS, ids=["True", "a tree"])
def test_a_mask_that_lets_all_through(mask: Any) -> None:
    params = small_params()
    optimizer = optax.adamw(1e-2, weight_decay=0.1, mask=mask)
    for got, wanted in zip(by_program(optimizer, params, 1), run_optax(optimizer, params), strict=True):
        assert_close(got, wanted)


WITHOUT_OPTAX = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("optax", "flax", "chex", "tests"):
            raise ImportError(f"{name} is not for a ps")

sys.meta_path.insert(0, Blocker())
import pathlib, numpy as np, jax, jax.numpy as jnp
from trainband.ps.program.compiled_program import CompiledProgram
from trainband.ps.program.update_program import UpdateProgram

for folder in map(pathlib.Path, sys.argv[1:]):
    program = UpdateProgram((folder / "initialise").read_bytes(), (folder / "update").read_bytes())
    compiled = CompiledProgram(program, "worker:0")
    blocks = tuple(jnp.array(np.load(folder / f"params{i}.npy")) for i in range(len(list(folder.glob("params*")))))
    state = compiled.initialise(blocks)
    gradient = [np.ones_like(block) for block in blocks]
    new, _ = compiled.update(blocks, state, gradient, tuple(jnp.empty_like(block) for block in blocks))
    for i, block in enumerate(new):
        np.save(folder / f"new{i}.npy", np.asarray(block))
assert not [name for name in sys.modules if name.partition(".")[0] == "optax"]
print("done")
"""


@pytest.mark.smoke
def test_a_ps_runs_no_user_code(tmp_path: Path) -> None:
    params = jax.tree.map(lambda leaf: leaf.astype(np.float32), small_params())  # .npy knows no bfloat16
    names = ["adam", "lamb", "multi_transform", "table schedule"]
    wanted = {}
    for name in names:
        plan = plan_of(params, OPTIMIZERS[name]())
        program = plan.shard_optimizer(0).export()
        folder = tmp_path / name
        folder.mkdir()
        (folder / "initialise").write_bytes(program.initialise)
        (folder / "update").write_bytes(program.update)
        (blocks,) = blocks_of(plan, params)
        for i, block in enumerate(blocks):
            np.save(folder / f"params{i}.npy", block)
        (wanted[name],) = run_program(program, blocks, [[np.ones_like(block) for block in blocks]])
    source = Path(__file__).parents[2] / "src"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", WITHOUT_OPTAX, *(str(tmp_path / name) for name in names)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": str(source), "PATH": "", "JAX_PLATFORMS": "cpu"},
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    for name in names:
        for i, block in enumerate(wanted[name]):
            assert np.load(tmp_path / name / f"new{i}.npy").tobytes() == block.tobytes()


def text_of(optimizer: Any) -> str:
    return plan_of(small_params(), optimizer).description.update_text


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_the_same_optimizer_has_the_same_text(name: str) -> None:
    text = text_of(OPTIMIZERS[name]())
    assert text == text_of(OPTIMIZERS[name]())
    assert " at 0x" not in text  # an address would differ in every process


DIFFERENT: list[tuple[Callable[[], Any], Callable[[], Any]]] = [
    (lambda: optax.sgd(0.1), lambda: optax.sgd(0.2)),
    (lambda: optax.sgd(0.1), lambda: optax.sgd(0.1, momentum=0.9)),
    (lambda: optax.adam(0.1), lambda: optax.adam(0.1, b1=0.8)),
    (lambda: optax.adam(0.1), lambda: optax.adamw(0.1)),
    (lambda: optax.adamw(0.1), lambda: optax.adamw(0.1, mask=kernels_only)),
    (lambda: optax.sgd(optax.linear_schedule(0.1, 0.0, 10)), lambda: optax.sgd(optax.linear_schedule(0.1, 0.0, 20))),
    # values that are arrays, not numbers, in the program
    (
        lambda: optax.sgd(jnp.float32(0.1)),
        lambda: optax.sgd(jnp.float32(0.2)),
    ),
    (
        lambda: optax.sgd(lambda count: jnp.asarray([0.1, 0.2])[count]),
        lambda: optax.sgd(lambda count: jnp.asarray([0.1, 0.3])[count]),
    ),
    # only the first state differs
    (
        lambda: optax.inject_hyperparams(optax.sgd)(learning_rate=0.1),
        lambda: optax.inject_hyperparams(optax.sgd)(learning_rate=0.2),
    ),
]


@pytest.mark.parametrize(
    ("one", "other"),
    DIFFERENT,
    ids=["rate", "momentum", "b1", "decay", "mask", "schedule", "array rate", "table schedule", "first state"],
)
def test_another_optimizer_has_another_text(one: Callable[[], Any], other: Callable[[], Any]) -> None:
    assert text_of(one()) != text_of(other())


def reads_values() -> optax.GradientTransformation:
    def update(gradient: PyTree, state: PyTree, params: PyTree) -> Any:
        del params
        return (gradient if float(jax.tree.leaves(gradient)[0].sum()) > 0 else None), state

    return optax.GradientTransformation(lambda _: (), update)


def grows_its_state() -> optax.GradientTransformation:
    return optax.GradientTransformation(lambda _: (), lambda gradient, state, _: (gradient, (*state, jnp.zeros(()))))


def calls_python() -> optax.GradientTransformation:
    def update(gradient: PyTree, state: PyTree, params: PyTree) -> Any:
        del params
        return jax.tree.map(
            lambda g: jax.pure_callback(np.negative, jax.ShapeDtypeStruct(g.shape, g.dtype), g), gradient
        ), state

    return optax.GradientTransformation(lambda _: (), update)


def fails() -> optax.GradientTransformation:
    def init(_params: PyTree) -> Any:
        raise KeyError("embedding")

    return optax.GradientTransformation(init, lambda gradient, state, _: (gradient, state))


CANNOT: list[tuple[Callable[[], Any], list[str]]] = [
    (reads_values, ["the optimizer", "ConcretizationTypeError"]),
    (
        grows_its_state,
        ["changes the structure of its state"],
    ),
    (calls_python, ["the optimizer", "cannot be exported"]),
    (fails, ["the optimizer", "KeyError", "embedding"]),
]


@pytest.mark.parametrize(("optimizer", "words"), CANNOT, ids=["looks at values", "grows", "calls Python", "fails"])
def test_an_optimizer_that_cannot_travel_is_refused_in_words(optimizer: Callable[[], Any], words: list[str]) -> None:
    with pytest.raises(ModelError) as caught:
        plan_of(small_params(), optimizer()).shard_optimizer(0).export()
    for word in words:
        assert word in str(caught.value)


MIXING: list[tuple[Callable[[], Any], bool]] = [
    # what needs all variables on one ps -> refused with several
    (lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1)), True),
    (lambda: optax.apply_if_finite(optax.sgd(0.1), 3), True),
    (lambda: optax.adam(0.1), False),
    (lambda: optax.lamb(0.1), False),
    (lambda: optax.adaptive_grad_clip(0.1), False),
]


@pytest.mark.parametrize(("optimizer", "refused"), MIXING)
def test_an_optimizer_that_mixes_variables_needs_one_ps(optimizer: Callable[[], Any], refused: bool) -> None:
    plan_of(small_params(), optimizer())
    if refused:
        with pytest.raises(ModelError, match=r"spread over 2 ps\. Use one ps"):
            plan_of(small_params(), optimizer(), ps=2)
    else:
        plan_of(small_params(), optimizer(), ps=2)


def test_an_optimizer_that_mixes_rows_keeps_variables_whole() -> None:
    policy = RoundRobin(max_slice_bytes=24)
    params = small_params()
    assert any(not s.whole for s in plan_of(params, optax.adam(0.1), ps=2, policy=policy).layout.placement.slices)
    assert all(s.whole for s in plan_of(params, optax.lamb(0.1), ps=2, policy=policy).layout.placement.slices)


@pytest.mark.parametrize("update", [b"", b"garbage", b"\x00" * 100])
def test_bytes_that_are_no_program(update: bytes) -> None:
    words = r"the update program that worker:0 exported with JAX 9\.9 cannot be loaded by JAX \S+ here .*; install one"
    with pytest.raises(ProtocolError, match=words):
        CompiledProgram(UpdateProgram(update, update, "9.9"), "worker:0")
