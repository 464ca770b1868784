"""Products of matrices, and what is done to the last two axes."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from trainband.compat.ops.arrays import ArgumentError
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
    a = jnp.swapaxes(a, -1, -2) if transpose_a or adjoint_a else a
    b = jnp.swapaxes(b, -1, -2) if transpose_b or adjoint_b else b
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
    return jnp.linalg.inv(_adjoint(input) if adjoint else input)


@op("tf.linalg.det", v1_names="tf.matrix_determinant", type="MatrixDeterminant", tensors="input")
def matrix_determinant(input: Any) -> Any:  # noqa: A002
    """The determinant of each matrix."""
    return jnp.linalg.det(input)


@op("tf.linalg.cholesky", v1_names="tf.cholesky", type="Cholesky", tensors="input")
def cholesky(input: Any) -> Any:  # noqa: A002
    """The lower triangle whose product with its own transpose is each matrix."""
    return jnp.linalg.cholesky(input)


@op("tf.linalg.diag_part", v1_names="tf.diag_part", type="DiagPart", tensors="input")
def diag_part(input: Any) -> Any:  # noqa: A002
    """The diagonal of a matrix."""
    return jnp.diagonal(input)


@op("tf.linalg.diag", v1_names="tf.diag", type="Diag", tensors="diagonal")
def diag(diagonal: Any) -> Any:
    """A matrix with this diagonal."""
    return jnp.diag(diagonal)


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
    return jnp.linalg.solve(_adjoint(matrix) if adjoint else matrix, rhs)


def _adjoint(x: Any) -> Any:
    return jnp.conj(jnp.swapaxes(x, -1, -2))
