"""What programs of closures may have, on a CPU and on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax
from tests.ps.hostile import with_module

from trainband.errors import Refused
from trainband.ps.program.check.check import checked_function
from trainband.ps.program.limits import ProgramLimits

LIMITS = ProgramLimits()
MATRIX = jax.ShapeDtypeStruct((2, 6, 5), np.float32)
SQUARE = jax.ShapeDtypeStruct((2, 5, 5), np.float32)
IMAGES = jax.ShapeDtypeStruct((2, 8, 8, 3), np.float32)
KEY = jax.ShapeDtypeStruct((2,), np.uint32)


def exported(function: Callable[..., Any], aval: Any, platform: str = "cpu") -> bytes:
    flat = jax.jit(lambda array: jax.tree.leaves(function(array)))
    return bytes(export.export(flat, platforms=[platform])(aval).serialize())


def pooled(images: Any) -> Any:
    return lax.reduce_window(images, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def halved(matrix: Any) -> Any:
    return lax.while_loop(lambda x: jnp.sum(jnp.abs(x)) > 1, lambda x: x / 2, matrix)


ALLOWED: dict[str, tuple[Callable[..., Any], Any]] = {
    "convolution": (lambda x: jnp.stack([jnp.convolve(row, row) for row in x[0]]), MATRIX),
    "max pooling's gradient": (jax.grad(lambda x: pooled(x).sum()), IMAGES),
    "fft": (jnp.fft.rfft2, MATRIX),
    "a loop without a bound": (halved, MATRIX),
    "gamma": (lambda key: jax.random.gamma(jax.random.wrap_key_data(key), 2.0, (3,)), KEY),
    "permutation": (lambda key: jax.random.permutation(jax.random.wrap_key_data(key), 9), KEY),
    "uniform": (lambda x: x + lax.rng_uniform(0.0, 0.0 + 1e-30, x.shape), MATRIX),
    "sort by several keys": (lambda x: lax.sort((x, -x, x * 2), num_keys=3), MATRIX),
    "sort of complex numbers": (lambda x: jnp.sort(x + 1j * x), MATRIX),
    "cumsum": (lambda x: jnp.cumsum(x, 1), MATRIX),
    "top_k": (lambda x: lax.top_k(x, 2), MATRIX),
    "inv": (jnp.linalg.inv, SQUARE),
    "det": (jnp.linalg.det, SQUARE),
    "cholesky": (lambda x: jnp.linalg.cholesky(x @ x.mT + jnp.eye(5)), SQUARE),
    "eigh": (lambda x: jnp.linalg.eigh(x + x.mT), SQUARE),
    "qr": (jnp.linalg.qr, MATRIX),
    "svd": (lambda x: jnp.linalg.svd(x, full_matrices=False), MATRIX),
    "singular values": (lambda x: jnp.linalg.svd(x, compute_uv=False), MATRIX),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_what_closures_need_is_allowed_and_stays_the_same(name: str) -> None:
    function, aval = ALLOWED[name]
    data = exported(function, aval)
    canonical = checked_function(data, "cpu", LIMITS)
    array = np.random.default_rng(0).normal(size=aval.shape).astype(aval.dtype)
    found, expected = (export.deserialize(bytearray(one)).call(array) for one in (canonical, data))
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    checked_function(exported(function, aval, "cuda"), "cuda", LIMITS)


@pytest.mark.parametrize("shape", [(2000, 1100), (1100, 2000), (1100, 1100)])
@pytest.mark.parametrize("settings", [{"full_matrices": False}, {"full_matrices": True}, {"compute_uv": False}])
def test_large_svds_on_a_gpu_are_allowed(shape: tuple[int, ...], settings: dict[str, Any]) -> None:
    def svd(matrix: Any) -> Any:
        return jnp.linalg.svd(matrix, **settings)

    checked_function(exported(svd, jax.ShapeDtypeStruct(shape, np.float32), "cuda"), "cuda", LIMITS)


def of_text(body: str, platform: str = "cpu") -> bytes:
    """A function of one 6 x 6 matrix with this body."""
    matrix = "tensor<6x6xf32>"
    text = f"module {{ func.func public @main(%x: {matrix}) -> {matrix} {{ {body} return %r#0 : {matrix} }} }}"
    return with_module(exported(lambda x: x + 1, jax.ShapeDtypeStruct((6, 6), np.float32), platform), text)


_COLUMNS = "dense<[0, 1]> : tensor<2xindex>"
LYING_LU = """
  %r:3 = stablehlo.custom_call @{target}(%x) {{mhlo.backend_config = {{}}, operand_layouts = [{columns}],
    result_layouts = [{columns}, dense<0> : tensor<1xindex>, dense<> : tensor<0xindex>]}}
    : (tensor<6x6xf32>) -> (tensor<6x6xf32>, tensor<1xi32>, tensor<i32>)
"""
SORT = """
  %r = "stablehlo.sort"(%x) <{{dimension = 0 : i64, is_stable = true}}> ({{
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %less = stablehlo.compare LT, %a, %b, TOTALORDER : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %same = stablehlo.compare {same}, TOTALORDER : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %then = stablehlo.compare LT, {then}, TOTALORDER : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %both = stablehlo.and %same, %then : tensor<i1>
      %c = stablehlo.or %less, %both : tensor<i1>
      stablehlo.return %c : tensor<i1> }}) : (tensor<6x6xf32>) -> tensor<6x6xf32>
"""
REFUSED: dict[str, tuple[str, Callable[[], bytes], str]] = {
    "LAPACK with a short result": (
        "cpu",
        lambda: of_text(LYING_LU.format(target="lapack_sgetrf_ffi", columns=_COLUMNS)),
        "lapack_sgetrf_ffi with other shapes",
    ),
    "cuSOLVER of a long matrix": (
        "cuda",
        lambda: exported(jnp.linalg.qr, jax.ShapeDtypeStruct((17_000, 2), np.float32), "cuda"),
        "cusolver_geqrf_ffi with other shapes .* up to 16,384 rows",
    ),
    "cuSOLVER on a CPU": (
        "cpu",
        lambda: of_text(LYING_LU.format(target="cusolver_getrf_ffi", columns=_COLUMNS)),
        "a custom call of 'cusolver_getrf_ffi'",
    ),
    "another platform's": ("cpu", lambda: exported(jnp.sin, MATRIX, "cuda"), "exported for cuda; it would run on cpu"),
    "a callback": (
        "cpu",
        lambda: of_text(
            "%r = stablehlo.custom_call @xla_ffi_python_cpu_callback(%x) : (tensor<6x6xf32>) -> tensor<6x6xf32>"
        ),
        "a custom call of 'xla_ffi_python_cpu_callback'",
    ),
    "a sort whose second key contradicts the first": (
        "cpu",
        lambda: of_text(SORT.format(same="NE, %a, %b", then="%a, %b")),
        "not proven to be an order",
    ),
    "a sort whose second key is none": (
        "cpu",
        lambda: of_text(SORT.format(same="EQ, %a, %b", then="%a, %a")),
        "not proven to be an order",
    ),
    "a sort that takes others for the same": (
        "cpu",
        lambda: of_text(SORT.format(same="EQ, %a, %a", then="%b, %a")),
        "not proven to be an order",
    ),
    "a huge array": (
        "cpu",
        lambda: exported(lambda x: x + jnp.sum(jnp.tile(x, (4000, 40, 40))), MATRIX),
        "and this shard may have 256 MiB",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_closure_needs_is_refused(name: str) -> None:
    platform, made, words = REFUSED[name]
    with pytest.raises(Refused, match=words):
        checked_function(made(), platform, LIMITS)
