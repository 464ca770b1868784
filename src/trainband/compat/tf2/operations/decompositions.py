"""`tf.linalg`: decompositions and functions of matrices."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trainband.compat.ops.dtypes import as_dtype
from trainband.compat.tf2.eager.tensor import Tensor
from trainband.compat.tf2.operations.defining import operation
from trainband.compat.tf2.operations.elementwise import norm_of


@operation("input")
def pinv(input: Any, rcond: Any = None) -> Any:  # noqa: A002 - TensorFlow's name
    """The pseudo-inverse of each matrix."""
    least = 10.0 * max(input.shape[-2:]) * np.finfo(input.dtype).eps if rcond is None else rcond
    return jnp.linalg.pinv(input, rtol=least)


@operation("input", optional="tol")
def matrix_rank(input: Any, tol: Any = None) -> Any:  # noqa: A002
    """The rank of each matrix."""
    values = jnp.linalg.svd(input, compute_uv=False)
    least = max(input.shape[-2:]) * np.finfo(input.dtype).eps * values.max(-1, keepdims=True) if tol is None else tol
    return jnp.sum(values > least, -1).astype(np.int32)


@operation("input", outputs=2)
def lu(input: Any, output_idx_type: Any = "int32") -> Any:  # noqa: A002
    """The triangular factors of each matrix in one, and the order of its rows."""
    packed, _, order = jax.lax.linalg.lu(input)
    return packed, order.astype(as_dtype(output_idx_type).numpy)


@operation("lower_upper perm")
def lu_reconstruct(lower_upper: Any, perm: Any) -> Any:
    """The matrices of which `lu` gives these."""
    size = lower_upper.shape[-1]
    product = (jnp.tril(lower_upper, -1) + jnp.eye(size, dtype=lower_upper.dtype)) @ jnp.triu(lower_upper)
    return jnp.take_along_axis(product, jnp.argsort(perm, -1)[..., None], -2)


@operation("lower_upper perm rhs")
def lu_solve(lower_upper: Any, perm: Any, rhs: Any) -> Any:
    """The solutions of equations of whose matrices `lu` gives these."""
    sorted_rhs = jnp.take_along_axis(rhs, perm[..., None], -2)
    half = jax.lax.linalg.triangular_solve(lower_upper, sorted_rhs, left_side=True, lower=True, unit_diagonal=True)
    return jax.lax.linalg.triangular_solve(lower_upper, half, left_side=True, lower=False)


@operation("lower_upper perm")
def lu_matrix_inverse(lower_upper: Any, perm: Any) -> Any:
    """The inverse of the matrices of which `lu` gives these."""
    size = lower_upper.shape[-1]
    identity = jnp.broadcast_to(jnp.eye(size, dtype=lower_upper.dtype), lower_upper.shape)
    sorted_rows = jnp.take_along_axis(identity, perm[..., None], -2)
    half = jax.lax.linalg.triangular_solve(lower_upper, sorted_rows, left_side=True, lower=True, unit_diagonal=True)
    return jax.lax.linalg.triangular_solve(lower_upper, half, left_side=True, lower=False)


@operation("input")
def sqrtm(input: Any) -> Any:  # noqa: A002
    """The square root of each matrix."""
    root = jnp.vectorize(jax.scipy.linalg.sqrtm, signature="(n,n)->(n,n)")(input)
    return root if jnp.iscomplexobj(input) else root.real.astype(input.dtype)


@operation("diagonals rhs")
def tridiagonal_solve(
    diagonals: Any,
    rhs: Any,
    diagonals_format: str = "compact",
    transpose_rhs: bool = False,
    conjugate_rhs: bool = False,
    partial_pivoting: bool = True,
) -> Any:
    """The solutions of equations of tridiagonal matrices, by their diagonals: above, on and below the main one."""
    if diagonals_format != "compact":
        raise NotImplementedError("tridiagonal_solve takes diagonals_format='compact'")
    del partial_pivoting
    upper, main, lower = (diagonals[..., at, :] for at in range(3))
    right = jnp.conj(rhs) if conjugate_rhs else rhs
    right = jnp.swapaxes(right, -1, -2) if transpose_rhs else right
    vector = right.ndim < diagonals.ndim
    right = right[..., None] if vector else right
    lower = jnp.concatenate([jnp.zeros_like(lower[..., :1]), lower[..., 1:]], -1)
    upper = jnp.concatenate([upper[..., :-1], jnp.zeros_like(upper[..., :1])], -1)
    found = jax.lax.linalg.tridiagonal_solve(lower, main, upper, right)
    return found[..., 0] if vector else found


def _diagonal_matrix(diagonal: Any, offset: int, rows: int, columns: int, padding: Any) -> Any:
    length = diagonal.shape[-1]
    tall, wide = length + max(-offset, 0), length + max(offset, 0)
    if rows < 0 and columns < 0:
        tall = wide = max(tall, wide)
    rows, columns = (tall if rows < 0 else rows), (wide if columns < 0 else columns)
    places = np.arange(length)
    whole = jnp.full((*diagonal.shape[:-1], rows, columns), padding, diagonal.dtype)
    return whole.at[..., places + max(-offset, 0), places + max(offset, 0)].set(diagonal)


@operation("diagonal")
def diag(
    diagonal: Any,
    k: Any = 0,
    num_rows: Any = -1,
    num_cols: Any = -1,
    padding_value: Any = 0,
    align: str = "RIGHT_LEFT",  # noqa: ARG001 - of several diagonals
) -> Any:
    """Matrices with these diagonals; `k` says how far above the main one they are."""
    return _diagonal_matrix(diagonal, int(np.asarray(k)), int(num_rows), int(num_cols), padding_value)


@operation("input")
def diag_part(
    input: Any,  # noqa: A002
    k: Any = 0,
    padding_value: Any = 0,
    align: str = "RIGHT_LEFT",
) -> Any:
    """The diagonals of matrices; `k` says how far above the main one they are, and of several the first and the last.

    Several are rows, the uppermost first, filled up to one length. Where the two words of `align` say RIGHT or LEFT,
    the diagonals above the main one, and those below it, end or begin at the side of that name.
    """
    offsets = np.ravel(np.asarray(k))
    if offsets.size == 1:
        return jnp.diagonal(input, int(offsets[0]), -2, -1)
    lines = [jnp.diagonal(input, int(at), -2, -1) for at in range(int(offsets[1]), int(offsets[0]) - 1, -1)]
    longest = max(line.shape[-1] for line in lines)
    above, below = align.upper().split("_")
    found = []
    for at, line in zip(range(int(offsets[1]), int(offsets[0]) - 1, -1), lines, strict=True):
        more = longest - line.shape[-1]
        ends = (above if at > 0 else below) == "RIGHT" or (at == 0 and above == "RIGHT" == below)
        pads = [(0, 0)] * (line.ndim - 1) + [(more, 0) if ends else (0, more)]
        found.append(jnp.pad(line, pads, constant_values=np.asarray(padding_value, input.dtype)))
    return jnp.stack(found, -2)


@operation("input diagonal", alike="input diagonal")
def set_diag(input: Any, diagonal: Any, k: Any = 0, align: str = "RIGHT_LEFT") -> Any:  # noqa: A002, ARG001
    """Matrices with other diagonals; `k` says how far above the main one they are."""
    offset, places = int(np.asarray(k)), np.arange(diagonal.shape[-1])
    return jnp.asarray(input).at[..., places + max(-offset, 0), places + max(offset, 0)].set(diagonal)


@operation("tensor", outputs=2)
def eig(tensor: Any) -> Any:
    """The values and vectors of general matrices, as complex numbers. Computed by NumPy."""
    return _on_host(np.linalg.eig, tensor, 2)


@operation("tensor")
def eigvals(tensor: Any) -> Any:
    """The values of general matrices, as complex numbers. Computed by NumPy."""
    return _on_host(np.linalg.eigvals, tensor, 1)


def _on_host(function: Any, tensor: Any, count: int) -> Any:
    kind = np.complex128 if tensor.dtype in (np.float64, np.complex128) else np.complex64
    shapes = [jax.ShapeDtypeStruct(tensor.shape[:-1], kind), jax.ShapeDtypeStruct(tensor.shape, kind)][:count]

    def call(array: Any) -> Any:
        found = function(np.asarray(array))
        return tuple(np.asarray(one, kind) for one in (found if count > 1 else (found,)))

    found = jax.pure_callback(call, tuple(shapes), tensor, vmap_method="sequential")
    return found if count > 1 else found[0]


def normalize(tensor: Any, ord: Any = "euclidean", axis: Any = None, name: str | None = None) -> tuple[Tensor, Tensor]:  # noqa: A002
    """A tensor divided by its norm, and the norm."""
    del name
    quotient, norm = _normalized(tensor, ord, tuple(axis) if isinstance(axis, list | tuple) else axis)
    return quotient, norm


@operation("tensor", outputs=2)
def _normalized(tensor: Any, order: Any, axis: Any) -> Any:
    norm = norm_of(tensor, order, axis)
    return tensor / norm, norm
