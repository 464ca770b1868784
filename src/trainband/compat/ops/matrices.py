"""Products of matrices, and what is done to the last two axes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.linalg
import numpy as np

from trainband.compat.ops.arrays import ArgumentError, demand_axes
from trainband.compat.ops.checks import check
from trainband.compat.ops.table import op


@op(
    "tf.linalg.matmul tf.matmul",
    v1_names="tf.batch_matmul",
    type="MatMul",
    tensors="a b",
    alike="a b",
    v1="a b transpose_a transpose_b adjoint_a adjoint_b -a_is_sparse=False -b_is_sparse=False name",
)
def matmul(
    a: Any,
    b: Any,
    transpose_a: bool = False,
    transpose_b: bool = False,
    adjoint_a: bool = False,
    adjoint_b: bool = False,
) -> Any:
    """The matrix product over the last two axes."""
    if a.ndim < 2 or b.ndim < 2:
        raise ArgumentError(f"Shape must be rank 2 but is rank {min(a.ndim, b.ndim)} for 'MatMul'")
    for transposed, conjugated in ((transpose_a, adjoint_a), (transpose_b, adjoint_b)):
        if transposed and conjugated:
            raise ArgumentError("Only one of transpose and adjoint can be True.")
    a = _adjoint(a) if adjoint_a else jnp.swapaxes(a, -1, -2) if transpose_a else a
    b = _adjoint(b) if adjoint_b else jnp.swapaxes(b, -1, -2) if transpose_b else b
    if a.shape[-1] != b.shape[-2]:
        raise ValueError(f"Dimensions must be equal, but are {a.shape[-1]} and {b.shape[-2]} for 'MatMul'")
    return jnp.matmul(a, b)


@op("tf.linalg.tensordot tf.tensordot", type="Tensordot", tensors="a b", alike="a b")
def tensordot(a: Any, b: Any, axes: Any) -> Any:
    """The sum of products over some axes of both."""
    return jnp.tensordot(a, b, axes)


@op("tf.linalg.einsum tf.einsum", type="Einsum", lists="inputs")
def einsum(equation: str, *inputs: Any) -> Any:
    """The sum of products that an equation names."""
    return jnp.einsum(equation, *inputs)


@op("tf.linalg.trace", v1_names="tf.trace", type="Trace", tensors="x")
def trace(x: Any) -> Any:
    """The sum of a matrix's diagonal."""
    return jnp.trace(x, axis1=-2, axis2=-1)


@op("tf.linalg.inv", v1_names="tf.matrix_inverse", type="MatrixInverse", tensors="input")
def matrix_inverse(input: Any, adjoint: bool = False) -> Any:  # noqa: A002 - TensorFlow's name
    """The inverse of each matrix, or of its adjoint."""
    whole = input.astype(np.float32) if input.dtype == np.float16 else jnp.asarray(input)
    _check_invertible(whole, "Input is not invertible.")
    return jnp.linalg.inv(_adjoint(whole) if adjoint else whole).astype(input.dtype)


def _check_invertible(matrix: Any, message: str) -> None:
    """Demand that no pivot is zero or NaN, as TensorFlow's kernels do."""

    def holds() -> Any:
        upper = jax.lax.linalg.lu(jax.lax.stop_gradient(matrix))[0]
        return (jnp.abs(jnp.diagonal(upper, axis1=-2, axis2=-1)) > 0).all()

    check(holds, message)


@op("tf.linalg.det", v1_names="tf.matrix_determinant", type="MatrixDeterminant", tensors="input")
def matrix_determinant(input: Any) -> Any:  # noqa: A002
    """The determinant of each matrix."""
    return jnp.linalg.det(input)


@op("tf.linalg.cholesky", v1_names="tf.cholesky", type="Cholesky", tensors="input")
def cholesky(input: Any) -> Any:  # noqa: A002
    """The lower triangle whose product with its own transpose is each matrix, of which only that triangle is read."""
    lower = jnp.tril(input)
    whole = lower + jnp.conj(jnp.swapaxes(jnp.tril(input, -1), -1, -2))
    even = (input + jnp.conj(jnp.swapaxes(input, -1, -2))) / 2  # TensorFlow shares the derivative among both triangles
    return jnp.linalg.cholesky(even + jax.lax.stop_gradient(whole - even))


@op("tf.linalg.tensor_diag_part", v1_names="tf.diag_part", type="DiagPart", tensors="input")
def tensor_diag_part(input: Any) -> Any:  # noqa: A002
    """The diagonal of an array whose first axes are like its last ones."""
    if input.ndim % 2 or not input.ndim:
        raise ArgumentError(f"Input must have even and non-zero rank, input rank is {input.ndim}")
    half = input.shape[: input.ndim // 2]
    size = int(np.prod(half))
    return jnp.diagonal(jnp.reshape(input, (size, size))).reshape(half)


@op("tf.linalg.tensor_diag", v1_names="tf.diag", type="Diag", tensors="diagonal")
def tensor_diag(diagonal: Any) -> Any:
    """Zeros but for this diagonal, with each axis twice."""
    demand_axes(diagonal, 1)
    return jnp.diag(jnp.ravel(diagonal)).reshape(diagonal.shape * 2)


@op("tf.linalg.diag_part", v1_names="tf.matrix_diag_part", type="MatrixDiagPart", tensors="input")
def diag_part(input: Any) -> Any:  # noqa: A002
    """The diagonal of each matrix."""
    demand_axes(input, 2)
    return jnp.diagonal(input, axis1=-2, axis2=-1)


@op("tf.linalg.diag", v1_names="tf.matrix_diag", type="MatrixDiag", tensors="diagonal")
def diag(diagonal: Any) -> Any:
    """Matrices with these diagonals."""
    demand_axes(diagonal, 1)
    return diagonal[..., None] * jnp.eye(diagonal.shape[-1], dtype=diagonal.dtype)  # abstract while sizes are guessed


@op("tf.linalg.set_diag", v1_names="tf.matrix_set_diag", type="MatrixSetDiag", tensors="input diagonal")
def set_diag(input: Any, diagonal: Any) -> Any:  # noqa: A002
    """Matrices with other diagonals."""
    demand_axes(input, 2)
    demand_axes(diagonal, 1, "diagonal")
    places = np.arange(min(input.shape[-2:]))
    return jnp.asarray(input).at[..., places, places].set(diagonal)


@op("tf.linalg.band_part", v1_names="tf.matrix_band_part", type="MatrixBandPart", tensors="input")
def band_part(input: Any, num_lower: Any, num_upper: Any) -> Any:  # noqa: A002
    """The diagonals near the middle one, and zeros elsewhere; a negative number keeps all on that side."""
    below = np.arange(input.shape[-2])[:, None] - np.arange(input.shape[-1])[None, :]
    lower, upper = int(num_lower), int(num_upper)
    keep = ((lower < 0) | (below <= lower)) & ((upper < 0) | (-below <= upper))
    return jnp.where(keep, input, jnp.zeros((), input.dtype))


@op("tf.linalg.matvec", type="MatVec", tensors="a b", alike="a b")
def matvec(
    a: Any, b: Any, transpose_a: bool = False, adjoint_a: bool = False,
) -> Any:  # fmt: skip
    """The product of matrices and vectors."""
    return matmul(a, b[..., None], transpose_a=transpose_a, adjoint_a=adjoint_a)[..., 0]


@op("tf.linalg.adjoint", type="adjoint", tensors="matrix")
def adjoint(matrix: Any) -> Any:
    """The last two axes exchanged, and conjugated."""
    return _adjoint(matrix)


@op("tf.linalg.slogdet", type="LogMatrixDeterminant", tensors="input", outputs=2)
def slogdet(input: Any) -> Any:  # noqa: A002
    """The sign of each determinant, and the logarithm of its size."""
    found = jnp.linalg.slogdet(input)
    return found[0], found[1]


@op("tf.linalg.logdet", type="logdet", tensors="matrix")
def logdet(matrix: Any) -> Any:
    """The logarithm of the determinant of each positive definite matrix."""
    return 2 * jnp.sum(jnp.log(jnp.diagonal(jnp.linalg.cholesky(matrix), axis1=-2, axis2=-1)), -1)


@op("tf.linalg.cholesky_solve", v1_names="tf.cholesky_solve", type="cholesky_solve", tensors="chol rhs")
def cholesky_solve(chol: Any, rhs: Any) -> Any:
    """The x for which chol chol^T x = rhs."""
    return triangular_solve(chol, triangular_solve(chol, rhs), adjoint=True)


@op(
    "tf.linalg.triangular_solve",
    v1_names="tf.matrix_triangular_solve",
    type="MatrixTriangularSolve",
    tensors="matrix rhs",
    alike="matrix rhs",
)
def triangular_solve(matrix: Any, rhs: Any, lower: bool = True, adjoint: bool = False) -> Any:
    """The x for which matrix x = rhs, of triangular matrices."""
    return jax.lax.linalg.triangular_solve(
        matrix, rhs, left_side=True, lower=bool(lower), transpose_a=bool(adjoint), conjugate_a=bool(adjoint)
    )


@op(
    "tf.linalg.lstsq", v1_names="tf.matrix_solve_ls", type="MatrixSolveLs", tensors="matrix rhs", alike="matrix rhs",
    v1="matrix rhs l2_regularizer -fast=True name",
)  # fmt: skip
def lstsq(matrix: Any, rhs: Any, l2_regularizer: Any = 0.0) -> Any:
    """The x for which matrix x is nearest to rhs; the shortest one if there are several."""
    rows, columns = matrix.shape[-2:]
    turned = _adjoint(matrix)
    if rows >= columns:
        square = jnp.matmul(turned, matrix) + l2_regularizer * np.eye(columns, dtype=matrix.dtype)
        return jnp.linalg.solve(square, jnp.matmul(turned, rhs))
    square = jnp.matmul(matrix, turned) + l2_regularizer * np.eye(rows, dtype=matrix.dtype)
    return jnp.matmul(turned, jnp.linalg.solve(square, rhs))


def _svd_parts(tensor: Any, full_matrices: bool, compute_uv: bool) -> int:  # noqa: ARG001
    return 3 if compute_uv else 1


@op("tf.linalg.svd", v1_names="tf.svd", type="Svd", tensors="tensor", outputs=_svd_parts)
def svd(tensor: Any, full_matrices: bool = False, compute_uv: bool = True) -> Any:
    """The singular values, and the left and right singular vectors as columns."""
    if not compute_uv:
        return [jnp.linalg.svd(tensor, compute_uv=False)]
    u, s, v = jnp.linalg.svd(tensor, full_matrices=bool(full_matrices))
    return s, u, _adjoint(v)


@op("tf.linalg.qr", v1_names="tf.qr", type="Qr", tensors="input", outputs=2)
def qr(input: Any, full_matrices: bool = False) -> Any:  # noqa: A002
    """An orthogonal and an upper triangular matrix, whose product is the given one."""
    found = jnp.linalg.qr(input, mode="complete" if full_matrices else "reduced")
    return found[0], found[1]


@op("tf.linalg.eigh", v1_names="tf.self_adjoint_eig", type="SelfAdjointEig", tensors="tensor", outputs=2)
def eigh(tensor: Any) -> Any:
    """The eigenvalues in ascending order, and the eigenvectors as columns, of symmetric matrices."""
    found = jnp.linalg.eigh(tensor)
    return found[0], found[1]


@op("tf.linalg.eigvalsh", v1_names="tf.self_adjoint_eigvals", type="SelfAdjointEig", tensors="tensor")
def eigvalsh(tensor: Any) -> Any:
    """The eigenvalues in ascending order, of symmetric matrices."""
    return jnp.linalg.eigvalsh(tensor)


@op("tf.linalg.expm", type="matrix_exponential", tensors="input")
def expm(input: Any) -> Any:  # noqa: A002
    """The exponential of each matrix."""
    return jax.scipy.linalg.expm(input)


@op("tf.linalg.cross", v1_names="tf.cross", type="Cross", tensors="a b", alike="a b")
def cross(a: Any, b: Any) -> Any:
    """The products of vectors of three numbers that are orthogonal to both."""
    return jnp.cross(a, b)


@op(
    "tf.linalg.transpose",
    v1_names="tf.matrix_transpose",
    type="MatrixTranspose",
    tensors="a",
    v1="a name conjugate",
)
def matrix_transpose(a: Any, conjugate: bool = False) -> Any:
    """The last two axes exchanged."""
    return _adjoint(a) if conjugate else jnp.swapaxes(a, -1, -2)


@op("tf.linalg.solve", v1_names="tf.matrix_solve", type="MatrixSolve", tensors="matrix rhs", alike="matrix rhs")
def matrix_solve(matrix: Any, rhs: Any, adjoint: bool = False) -> Any:
    """The x for which matrix x = rhs."""
    _check_invertible(jnp.asarray(matrix), "Input matrix is not invertible.")
    return jnp.linalg.solve(_adjoint(matrix) if adjoint else matrix, rhs)


def _adjoint(x: Any) -> Any:
    return jnp.conj(jnp.swapaxes(x, -1, -2))
