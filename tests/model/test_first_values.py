"""First values: as `init` computes them, by one program for each kind of variable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import monitoring
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from trainband.model.first_values import DividedFunction, first_values
from trainband.model.random_keys import is_key

DRAW = jax.nn.initializers.lecun_normal()
GIVEN = np.ones((100, 100), np.float32)


def layers(key: jax.Array, count: int = 20) -> Any:
    keys = jax.random.split(key, count)
    return [{"kernel": DRAW(one, (40, 30)), "bias": jnp.zeros(30)} for one in keys]


def folded(key: jax.Array) -> Any:
    return {name: DRAW(jax.random.fold_in(key, len(name)), (20, 9)) * len(name) for name in ("a", "bb", "ccc")}


def unlike(key: jax.Array) -> Any:
    first, second = jax.random.split(key)
    q, r = jnp.linalg.qr(jax.random.normal(first, (20, 20)))
    tied = jax.random.uniform(second, (70, 3))
    return [q, r, tied, tied, GIVEN, jnp.asarray(GIVEN) * 2, 0.5, second, 3, jnp.sum(tied), jnp.zeros((0, 4))]


def shared(key: jax.Array) -> Any:
    whole = jax.random.normal(key, (30, 30))
    return {"left": whole[:10], "right": whole[10:], "other": jax.random.normal(key, (30, 30))}


def mapped(key: jax.Array) -> Any:
    return jax.vmap(lambda one: DRAW(one, (8, 8)))(jax.random.split(key, 5))


def legacy(key: jax.Array) -> Any:
    del key
    return [jax.random.normal(one, (9, 9)) for one in jax.random.split(jax.random.PRNGKey(3), 3)]


@pytest.mark.parametrize(
    "init", [layers, folded, unlike, shared, mapped, legacy, jax.jit(layers)], ids=lambda f: f.__name__
)
def test_they_are_what_init_computes(init: Callable[[jax.Array], Any]) -> None:
    key = jax.random.key(0)
    found, wanted = first_values(init, key), jax.tree.map(jnp.asarray, init(key))
    assert str(jax.tree.structure(found)) == str(jax.tree.structure(wanted))
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        if is_key(one):
            one, other = jax.random.key_data(one), jax.random.key_data(other)
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_variables_of_one_kind_share_a_program() -> None:
    compiled: list[str] = []

    def record(event: str, *_: Any, **labels: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(str(labels.get("fun_name")))

    monitoring.register_event_duration_secs_listener(record)
    try:
        first_values(layers, jax.random.key(1))
    finally:
        monitoring.unregister_event_duration_listener(record)
    assert len([name for name in compiled if "first_value" in name]) <= 2, compiled


def test_leaves_share_no_memory() -> None:
    found = first_values(lambda: [jnp.asarray(GIVEN), GIVEN, *[DRAW(jax.random.key(0), (9, 9))] * 2])
    places = {one.unsafe_buffer_pointer() for one in found}
    assert len(places) == len(found)
    assert GIVEN.ctypes.data not in places


def test_they_are_computed_where_they_belong() -> None:
    mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
    where = NamedSharding(mesh, PartitionSpec("data"))
    found = first_values(layers, jax.random.key(0), where=where)
    assert {leaf.sharding for leaf in jax.tree.leaves(found)} == {where}


def test_what_init_prints_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    def init(key: jax.Array) -> Any:
        jax.debug.print("making {}", 7)
        return jax.random.normal(key, (9, 9))

    jax.block_until_ready(first_values(init, jax.random.key(0)))
    jax.effects_barrier()
    assert "making 7" in capfd.readouterr().out


def test_leaves_can_be_used_one_after_another() -> None:
    divided = DividedFunction(layers, jax.random.key(0))
    assert sorted(number for number, _ in divided.leaves()) == list(range(40))
