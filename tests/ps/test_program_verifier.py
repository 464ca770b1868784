"""What an update program may be made of, and what it is refused for, before anything of it runs."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import export, lax
from tests.private import accepts, found
from tests.ps.hostile import CALLBACK, ENDLESS, SIZE, VECTOR, honest, of_function, of_module, of_text

from trainband.errors import Refused
from trainband.ps.program.check import jax_internals as inside
from trainband.ps.program.check.check import checked
from trainband.ps.program.limits import ProgramLimits
from trainband.ps.program.update_program import UpdateProgram


def check(program: UpdateProgram, **limits: Any) -> UpdateProgram:
    assert program.signature is not None
    return checked(program, program.signature, ProgramLimits(**limits))


@pytest.mark.smoke
@pytest.mark.parametrize("name", inside.NAMES)
def test_jax_has_what_checking_needs(name: str) -> None:
    there = found(name, f"JAX {jax.__version__}")
    for keyword in inside.NAMES[name]:
        known = keyword in getattr(there, "__dataclass_fields__", ()) or accepts(there, keyword)
        assert known, f"JAX {jax.__version__}: {name} takes no {keyword} any more"


def square(x: jax.Array) -> jax.Array:
    """A positive definite matrix of a vector."""
    return jnp.outer(x, x) + jnp.eye(SIZE)


def until_small(params: jax.Array, gradient: jax.Array) -> jax.Array:
    """A loop that ends early, and in 9 rounds at the latest."""

    def goes_on(carried: tuple[Any, jax.Array]) -> Any:
        return (carried[0] < 9) & (jnp.sum(carried[1]) > 1e-3)

    found: jax.Array = lax.while_loop(goes_on, lambda c: (c[0] + 1, c[1] * 0.5), (0, gradient))[1]
    return params - found


ALLOWED: dict[str, Callable[[jax.Array, jax.Array], jax.Array]] = {
    "fori_loop": lambda p, g: lax.fori_loop(0, 5, lambda i, x: x + g * i, p),
    "nested loops": lambda p, g: lax.fori_loop(0, 5, lambda _, x: lax.fori_loop(2, 4, lambda j, y: y + g * j, x), p),
    "loop downwards": lambda p, g: lax.while_loop(lambda c: c[0] > 3, lambda c: (c[0] - 2, c[1] - g), (20, p))[1],
    "loop with a tolerance": until_small,
    "scan": lambda p, g: p - lax.scan(lambda c, x: (c + x, c), jnp.float32(0), g)[1],
    "cond": lambda p, g: lax.cond(g[0] > 0, lambda: p - g, lambda: p + g),
    "sort": lambda p, g: p - jnp.sort(g) - jnp.argsort(g, descending=True) - jnp.median(g),
    "top_k": lambda p, g: p - lax.top_k(g, 1)[0],
    "random": lambda p, g: p - g * jax.random.normal(jax.random.key(0), (SIZE,)),
    "special functions": lambda p, g: p - lax.erf(g) - lax.erf_inv(g) - lax.lgamma(g) - jnp.sinh(g),
    "cumsum": lambda p, g: p - jnp.cumsum(g),
    "scatter": lambda p, g: p.at[jnp.argmax(g)].add(1.0),
    "qr": lambda p, g: jnp.linalg.qr(square(g))[0] @ p,
    "complete qr": lambda p, g: p - jnp.linalg.qr(g.reshape(4, 2), mode="complete")[0].reshape(-1)[:SIZE],
    "eigh": lambda p, g: p - jnp.linalg.eigh(square(g))[0],
    "svd": lambda p, g: p - jnp.linalg.svd(g.reshape(4, 2), full_matrices=False)[0].reshape(-1),
    "full svd": lambda p, g: p - jnp.linalg.svd(square(g))[1],
    "singular values": lambda p, g: p - jnp.linalg.svdvals(square(g)),
    "cholesky": lambda p, g: jnp.linalg.cholesky(square(g)) @ p,
    "inverse": lambda p, g: jnp.linalg.inv(square(g)) @ p,
    "inverses": lambda p, g: p - jnp.linalg.inv(jnp.stack([square(g), square(p)]))[1, 0],
    "triangular solve": lambda p, g: jax.scipy.linalg.solve_triangular(jnp.tril(square(g)), p, lower=True),
    "complex": lambda p, g: p - jnp.linalg.eigh(square(g) + 0j)[0],
}


@pytest.mark.parametrize("name", ALLOWED)
def test_what_optimizers_need_is_allowed_and_stays_the_same(name: str) -> None:
    program = of_function(ALLOWED[name])
    params, gradient = jnp.linspace(0.1, 1.0, SIZE), jnp.linspace(-0.5, 0.5, SIZE)
    got, wanted = (
        export.deserialize(bytearray(one.update)).call((params,), (), (gradient,))[0][0]
        for one in (check(program), program)
    )
    assert jnp.array_equal(got, wanted, equal_nan=True)


def lapack(target: str, operands: str, settings: str, operand_layouts: str, result_layouts: str, kind: str) -> str:
    """A body with a LAPACK call of %a, which is 4 x 2, or of %s, which is 2 x 2."""
    results = re.findall(r"tensor<[^>]*>", kind.rpartition("->")[2])
    return f"""
      %a = stablehlo.reshape %p : ({VECTOR}) -> tensor<4x2xf32>
      %s = stablehlo.slice %a [0:2, 0:2] : (tensor<4x2xf32>) -> tensor<2x2xf32>
      %r:{len(results)} = stablehlo.custom_call @{target}({operands}) {{mhlo.backend_config = {{{settings}}},
        operand_layouts = [{operand_layouts}], result_layouts = [{result_layouts}]}} : {kind}
      %u = stablehlo.slice %r#0 [0:1, 0:1] : ({results[0]}) -> tensor<1x1xf32>
      %v = stablehlo.reshape %u : (tensor<1x1xf32>) -> tensor<f32>
      %w = stablehlo.broadcast_in_dim %v, dims = [] : (tensor<f32>) -> {VECTOR}
      return %w : {VECTOR}
    """


_COLUMNS = "dense<[0, 1]> : tensor<2xindex>"
_ROW = "dense<0> : tensor<1xindex>"
_NONE = "dense<> : tensor<0xindex>"
_COUNT = """
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %many = stablehlo.constant dense<{limit}> : tensor<i32>
  %r:2 = stablehlo.while(%i = %zero, %x = %p) : tensor<i32>, {VECTOR}
    cond {{ %c = stablehlo.compare {direction}, %i, %many, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
           stablehlo.return %c : tensor<i1> }}
    do {{ %n = stablehlo.{next} : tensor<i32>
         %y = stablehlo.sine %x : {VECTOR}
         stablehlo.return %n, %y : tensor<i32>, {VECTOR} }}
  return %r#1 : {VECTOR}
"""


def count(limit: str = "9", following: str = "add %i, %one", direction: str = "LT") -> str:
    return _COUNT.format(limit=limit, next=following, direction=direction, VECTOR=VECTOR)


def calls(levels: int) -> UpdateProgram:
    """Functions each of which calls the one before twice."""
    functions = [f"func.func private @f0(%x: {VECTOR}) -> {VECTOR} {{ return %x : {VECTOR} }}"]
    functions += [
        f"""func.func private @f{i}(%x: {VECTOR}) -> {VECTOR} {{
              %1 = func.call @f{i - 1}(%x) : ({VECTOR}) -> {VECTOR}
              %2 = func.call @f{i - 1}(%1) : ({VECTOR}) -> {VECTOR}
              return %2 : {VECTOR} }}"""
        for i in range(1, levels)
    ]
    body = f"%r = func.call @f{levels - 1}(%p) : ({VECTOR}) -> {VECTOR} return %r : {VECTOR}"
    return of_text(body, "\n".join(functions))


def sort(comparison: str) -> str:
    return f"""
      %r = "stablehlo.sort"(%p) <{{dimension = 0 : i64, is_stable = false}}> ({{
        ^bb0(%a: tensor<f32>, %b: tensor<f32>): {comparison}
      }}) : ({VECTOR}) -> {VECTOR}
      return %r : {VECTOR}
    """


_COMPARE = "(tensor<f32>, tensor<f32>) -> tensor<i1> stablehlo.return %c : tensor<i1>"

REFUSED: dict[str, tuple[Callable[[], UpdateProgram], str]] = {
    "a callback at an address": (lambda: of_text(CALLBACK), r"custom call of 'xla_ffi_python_cpu_callback'"),
    "an endless loop": (lambda: of_text(ENDLESS), "without a proven bound"),
    "a counter that stands still": (lambda: of_text(count(following="add %i, %zero")), "without a proven bound"),
    "a counter that runs away": (lambda: of_text(count(following="subtract %i, %one")), "without a proven bound"),
    "a counter that is computed": (lambda: of_text(count(following="multiply %i, %one")), "without a proven bound"),
    "a counter that overflows": (lambda: of_text(count("2147483647", direction="LE")), "without a proven bound"),
    "a counter that may miss": (lambda: of_text(count(direction="NE")), "without a proven bound"),
    "a tolerance alone": (
        lambda: of_function(lambda p, g: lax.while_loop(lambda x: jnp.sum(x) > 1, lambda x: x - g, p)),
        r"add a counter to the condition",
    ),
    "a counter or a tolerance": (
        lambda: of_function(
            lambda p, g: lax.while_loop(
                lambda c: (c[0] < 9) | (jnp.sum(c[1]) > 1), lambda c: (c[0] + 1, c[1] - g), (0, p)
            )[1]
        ),
        "without a proven bound",
    ),
    "rounds from the gradient": (
        lambda: of_function(lambda p, g: lax.fori_loop(0, g[0].astype(int), lambda _, x: x * 2, p)),
        "without a proven bound",
    ),
    "too many rounds": (lambda: of_text(count("2000000000")), r"up to [\d.,]+ s of work a run"),
    "too many rounds together": (
        lambda: of_function(
            lambda p, g: lax.fori_loop(0, 30_000, lambda _, x: lax.fori_loop(0, 30_000, lambda _, y: y + g, x), p)
        ),
        "s of work a run",
    ),
    "work in a branch that the check does not take": (  # 22 s an update
        lambda: of_function(
            lambda p, g: lax.cond(
                jnp.sum(p) == 0, lambda x: x, lambda x: lax.fori_loop(0, 70_000_000, lambda _, y: jnp.sort(y + g), x), p
            )
        ),
        r"up to [\d,.]+ s of work a run .* also in branches that are seldom taken",
    ),
    "recursion": (
        lambda: of_text(
            f"%r = func.call @f(%p) : ({VECTOR}) -> {VECTOR} return %r : {VECTOR}",
            f"func.func private @f(%x: {VECTOR}) -> {VECTOR} "
            f"{{ %r = func.call @f(%x) : ({VECTOR}) -> {VECTOR} return %r : {VECTOR} }}",
        ),
        "calls itself",
    ),
    "calls that multiply": (lambda: calls(30), "more than 500,000 operations"),
    "a feed": (
        lambda: of_text(
            f"""%t = stablehlo.create_token : !stablehlo.token
            %r:2 = "stablehlo.infeed"(%t) : (!stablehlo.token) -> ({VECTOR}, !stablehlo.token)
            return %r#0 : {VECTOR}"""
        ),
        "the operation stablehlo.create_token, which no update program may use",
    ),
    "a collective": (
        lambda: of_text(
            f"""%r = "stablehlo.all_reduce"(%p) ({{ ^bb0(%a: tensor<f32>, %b: tensor<f32>):
                  %c = stablehlo.add %a, %b : tensor<f32> stablehlo.return %c : tensor<f32> }})
                {{replica_groups = dense<[[0]]> : tensor<1x1xi64>}} : ({VECTOR}) -> {VECTOR}
            return %r : {VECTOR}"""
        ),
        "the operation stablehlo.all_reduce",
    ),
    "a shape that is not fixed": (
        lambda: of_text(
            f"""%n = stablehlo.constant dense<4> : tensor<i32>
            %x = stablehlo.set_dimension_size %p, %n, dim = 0 : ({VECTOR}, tensor<i32>) -> tensor<?xf32>
            %z = stablehlo.constant dense<0.0> : tensor<f32>
            %s = stablehlo.reduce(%x init: %z) applies stablehlo.add across dimensions = [0]
              : (tensor<?xf32>, tensor<f32>) -> tensor<f32>
            %w = stablehlo.broadcast_in_dim %s, dims = [] : (tensor<f32>) -> {VECTOR}
            return %w : {VECTOR}"""
        ),
        "the operation stablehlo.set_dimension_size",
    ),
    "a huge array": (
        lambda: of_function(lambda p, g: p + jnp.sum(jnp.outer(jnp.tile(p, 4000), jnp.tile(g, 4000)))),
        "MiB, and this shard may have 256 MiB",
    ),
    "an attribute that nobody knows": (
        lambda: of_text(f"%r = stablehlo.add %p, %g {{foo = 1 : i32}} : {VECTOR} return %r : {VECTOR}"),
        "a stablehlo.add with the attribute 'foo'",
    ),
    "a main with other arguments": (
        lambda: of_module("module { func.func public @main(%p: tensor<9xf32>) -> tensor<9xf32> { return %p : tensor<9xf32> } }"),  # noqa: E501
        "a main that takes or gives other arrays than it declares",
    ),
    "a composite of another name": (
        lambda: of_text(
            f'%r = stablehlo.composite "my.thing" %p {{decomposition = @f}} : ({VECTOR}) -> {VECTOR} '
            f"return %r : {VECTOR}",
            f"func.func private @f(%x: {VECTOR}) -> {VECTOR} {{ return %x : {VECTOR} }}",
        ),
        "the composite operation my.thing",
    ),
    "a top_k of another size": (
        lambda: of_text(
            f"""%r:2 = stablehlo.composite "chlo.top_k" %p
                {{composite_attributes = {{k = 1000 : i64}}, decomposition = @f}}
                : ({VECTOR}) -> ({VECTOR}, tensor<{SIZE}xi32>)
            return %r#0 : {VECTOR}""",
            f"""func.func private @f(%x: {VECTOR}) -> ({VECTOR}, tensor<{SIZE}xi32>) {{
              %i = stablehlo.iota dim = 0 : tensor<{SIZE}xi32> return %x, %i : {VECTOR}, tensor<{SIZE}xi32> }}""",
        ),
        "a composite operation chlo.top_k with other types or settings",
    ),
    "a sort by what is no order": (
        lambda: of_text(sort("%c = stablehlo.constant dense<true> : tensor<i1> stablehlo.return %c : tensor<i1>")),
        "not proven to be an order",
    ),
    "a sort by less or equal": (
        lambda: of_text(sort(f"%c = stablehlo.compare LE, %a, %b, TOTALORDER : {_COMPARE}")),
        "not proven to be an order",
    ),
    "a sort that NaN breaks": (
        lambda: of_text(sort(f"%c = stablehlo.compare LT, %a, %b, FLOAT : {_COMPARE}")),
        "not proven to be an order",
    ),
    "a sort by a sum": (
        lambda: of_text(
            sort(
                "%x = stablehlo.add %a, %b : tensor<f32> %y = stablehlo.subtract %b, %a : tensor<f32> "
                f"%c = stablehlo.compare LT, %x, %y, TOTALORDER : {_COMPARE}"
            )
        ),
        "not proven to be an order",
    ),
    "qr with too little room": (
        lambda: of_text(
            lapack("lapack_sgeqrf_ffi", "%a", "", _COLUMNS, f"{_COLUMNS}, {_ROW}", "(tensor<4x2xf32>) -> (tensor<4x2xf32>, tensor<1xf32>)")  # noqa: E501
        ),
        "a custom call of lapack_sgeqrf_ffi with other shapes or settings",
    ),
    "svd with too little room": (
        lambda: of_text(
            lapack(
                "lapack_sgesdd_ffi", "%a", "mode = 65 : ui8", _COLUMNS, f"{_COLUMNS}, {_ROW}, {_COLUMNS}, {_COLUMNS}, {_NONE}",  # noqa: E501
                "(tensor<4x2xf32>) -> (tensor<4x2xf32>, tensor<2xf32>, tensor<4x2xf32>, tensor<2x2xf32>, tensor<i32>)",
            )
        ),
        "a custom call of lapack_sgesdd_ffi with other shapes or settings",
    ),
    "eigh in a mode that there is not": (
        lambda: of_text(
            lapack(
                "lapack_ssyevd_ffi", "%s", "mode = 0 : ui8, uplo = 76 : ui8", _COLUMNS, f"{_COLUMNS}, {_ROW}, {_NONE}",
                "(tensor<2x2xf32>) -> (tensor<2x2xf32>, tensor<2xf32>, tensor<i32>)",
            )
        ),
        "a custom call of lapack_ssyevd_ffi with other shapes or settings",
    ),
    "cholesky in other types": (
        lambda: of_text(
            lapack(
                "lapack_dpotrf_ffi", "%s", "uplo = 76 : ui8", _COLUMNS, f"{_COLUMNS}, {_NONE}",
                "(tensor<2x2xf32>) -> (tensor<2x2xf32>, tensor<i32>)",
            )
        ),
        "a custom call of lapack_dpotrf_ffi with other shapes or settings",
    ),
    "a triangular solve of another size": (
        lambda: of_text(
            lapack(
                "lapack_strsm_ffi", "%s, %a", "diag = 78 : ui8, side = 76 : ui8, trans_x = 78 : ui8, uplo = 76 : ui8",
                f"{_COLUMNS}, {_COLUMNS}", _COLUMNS, "(tensor<2x2xf32>, tensor<4x2xf32>) -> tensor<4x2xf32>",
            )
        ),
        "a custom call of lapack_strsm_ffi with other shapes or settings",
    ),
    "LAPACK that is not in the table": (
        lambda: of_function(lambda p, g: p - jnp.abs(jnp.linalg.eigvals(square(g)))),
        "'lapack_sgeev_ffi'; only those of jax.numpy.linalg",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_optimizer_needs_is_refused(name: str) -> None:
    made, words = REFUSED[name]
    with pytest.raises(Refused, match=words):
        check(made())


def test_the_rounds_of_a_loop_are_counted_exactly() -> None:
    limits = {"work_per_element": 1, "work": 100_000}
    check(of_text(count("200")), **limits)
    with pytest.raises(Refused, match="s of work a run"):
        check(of_text(count("2000")), **limits)


def test_no_run_may_compute_more_than_all_cores_do_in_the_time_of_a_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert ProgramLimits().work_of(1_000_000) == 54 * 10**9
    assert ProgramLimits().work_of(1_000_000_000) == 1200 * 10**9  # and not 50,004 s
    program = of_text(count("200000"))
    check(program)
    with pytest.raises(
        Refused, match=r"up to [\d.]+ s of work a run .* ProgramLimits\(work_per_element=\.\.\., time_s="
    ):
        check(program, time_s=0.0001)


def test_the_memory_of_a_run_counts_what_is_written_over_once() -> None:
    vector = jax.ShapeDtypeStruct((1 << 20,), jnp.float32)
    plain, donated = (
        inside.memory_of(jax.jit(lambda x: x + 1, donate_argnums=which).lower(vector).compile()) for which in ((), (0,))
    )
    assert (plain, donated) == (8 << 20, 4 << 20)


def test_what_is_for_other_compilers_is_taken_away() -> None:
    body = f'%r = stablehlo.add %p, %g {{mhlo.sharding = "{{maximal device=7}}", _xla_compute = "host"}} : {VECTOR}'
    program = check(of_text(f"{body} return %r : {VECTOR}"))
    assert b"maximal" not in program.update
    assert b"_xla_compute" not in program.update


def _other(**changes: Any) -> UpdateProgram:
    program = honest()
    assert program.signature is not None
    return replace(
        program, signature=type(program.signature)(**{"blocks": program.signature.blocks, "state_sizes": (), **changes})
    )


MISFITS: dict[str, tuple[Callable[[], UpdateProgram], str]] = {
    "other blocks": (lambda: _other(blocks=()), "its function initialise takes 1 arrays; its shard has 0 for it"),
    "other state": (lambda: _other(state_sizes=(3,)), "differ from its program's"),
    "two of the same": (
        lambda: replace(honest(), update=honest().initialise),
        "its function update takes 1 arrays; its shard has 2 for it",
    ),
    "other types": (
        lambda: of_function(lambda p, g: (p + g).astype(jnp.int32)),
        r"returns int32\[8\] as array 0; its shard has float32\[8\] there",
    ),
    "a larger result": (lambda: of_function(lambda p, g: jnp.concatenate([p, g])), r"returns float32\[16\] as array 0"),
    "another structure": (lambda: of_function(lambda p, g: {"a": p + g}), "in another structure"),
}


@pytest.mark.parametrize("name", MISFITS)
def test_a_program_must_fit_its_shard(name: str) -> None:
    made, words = MISFITS[name]
    with pytest.raises(Refused, match=words):
        check(made())


def test_a_program_must_be_small() -> None:
    with pytest.raises(Refused, match=r"its function initialise has 0\.0 MiB, and 0\.0 MiB are allowed"):
        check(honest(), program_bytes=100)
    check(honest())


def test_limits_are_positive() -> None:
    with pytest.raises(ValueError, match="ProgramLimits: time_s must be positive, got 0"):
        ProgramLimits(time_s=0)
