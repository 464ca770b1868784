"""Random operations: TensorFlow's distributions and shapes, JAX's numbers; the same for the same seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trainband.compat.tf1.graphs.dtypes import DType, as_dtype, float32, int64
from trainband.compat.tf1.graphs.graph import Tensor, get_default_graph
from trainband.compat.tf1.graphs.keys import combined_seed
from trainband.compat.tf1.graphs.record import convert, record
from trainband.compat.tf1.graphs.shapes import TensorShape
from trainband.compat.tf1.operations.array import shape_tensor, sizes_of

Draw = Callable[..., Any]


def set_random_seed(seed: int | None) -> None:
    """The seed of the graph: with it, every run of the script gives the same numbers."""
    get_default_graph().seed = seed


def get_seed(op_seed: int | None) -> tuple[int | None, int | None]:
    """The seeds of the graph and of an operation, as TensorFlow fills them up."""
    graph = get_default_graph()
    if graph.seed is None:
        return (None, None) if op_seed is None else (87654321, op_seed)
    return graph.seed, len(graph.operations) if op_seed is None else op_seed


def shape_known(tensor: Tensor) -> TensorShape:
    """What is known of a shape that is given as a tensor."""
    probes = tensor.probes
    if probes is None or probes[0].value is None or probes[1].value is None:
        return TensorShape(None)
    first, second = np.ravel(probes[0].value), np.ravel(probes[1].value)
    return TensorShape([int(a) if a == b else None for a, b in zip(first, second, strict=True)])


def draw(
    type_: str, shape: Any, dtype: DType, seed: int | None, name: str | None, sample: Draw, *inputs: Tensor
) -> Tensor:
    """Records a random operation: `sample(key, sizes, *inputs)`, traceable, gives its values."""
    graph = get_default_graph()
    sizes = shape_tensor(shape)

    def compute(frame: Any, size: Any, *values: Any) -> tuple[Any, ...]:
        return (sample(frame.keys.of(op), sizes_of(size, "the shape of random numbers"), *values),)

    op = record(
        type_,
        compute,
        [sizes, *inputs],
        name=name or type_,
        dtypes=[dtype],
        shapes=[shape_known(sizes)],
        stateful=True,
        attributes={"seed": combined_seed(graph.seed, seed, len(graph.operations))},
    )
    result: Tensor = op.outputs[0]
    return result


def random_normal(
    shape: Any,
    mean: Any = 0.0,
    stddev: Any = 1.0,
    dtype: Any = float32,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Numbers from a normal distribution."""
    kind = as_dtype(dtype)

    def sample(key: Any, sizes: tuple[int, ...], m: Any, s: Any) -> Any:
        return jax.random.normal(key, sizes, kind.numpy) * s + m

    return draw("random_normal", shape, kind, seed, name, sample, convert(mean, kind), convert(stddev, kind))


def truncated_normal(
    shape: Any,
    mean: Any = 0.0,
    stddev: Any = 1.0,
    dtype: Any = float32,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Numbers from a normal distribution, none farther than two standard deviations from the mean."""
    kind = as_dtype(dtype)

    def sample(key: Any, sizes: tuple[int, ...], m: Any, s: Any) -> Any:
        return jax.random.truncated_normal(key, -2.0, 2.0, sizes, kind.numpy) * s + m

    return draw("truncated_normal", shape, kind, seed, name, sample, convert(mean, kind), convert(stddev, kind))


def random_uniform(
    shape: Any,
    minval: Any = 0,
    maxval: Any = None,
    dtype: Any = float32,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Numbers evenly from `minval` up to below `maxval`.

    Raises:
      ValueError: whole numbers without a `maxval`.
    """
    kind = as_dtype(dtype)
    if maxval is None:
        if kind.is_integer:
            raise ValueError(f"Must specify maxval for integer dtype {kind.name}")
        maxval = 1

    def sample(key: Any, sizes: tuple[int, ...], low: Any, high: Any) -> Any:
        if kind.is_integer:
            return jax.random.randint(key, sizes, low, high, kind.numpy)
        return jax.random.uniform(key, sizes, kind.numpy) * (high - low) + low

    return draw("random_uniform", shape, kind, seed, name, sample, convert(minval, kind), convert(maxval, kind))


def random_shuffle(value: Any, seed: int | None = None, name: str | None = None) -> Tensor:
    """The rows in a random order."""
    tensor = convert(value)

    def sample(key: Any, _: tuple[int, ...], x: Any) -> Any:
        return jax.random.permutation(key, x, axis=0)

    result = draw("RandomShuffle", [], tensor.dtype, seed, name, sample, tensor)
    result._shape, result.probes = tensor.shape, None if tensor.probes is None else _unknown(tensor)  # noqa: SLF001
    return result


def _unknown(tensor: Tensor) -> Any:
    from trainband.compat.tf1.graphs.infer import probes_of_shape

    return probes_of_shape(tensor.shape, tensor.dtype)


def multinomial(
    logits: Any, num_samples: int, seed: int | None = None, name: str | None = None, output_dtype: Any = int64
) -> Tensor:
    """So many draws for each row of unnormalised log probabilities."""
    tensor = convert(logits)
    rows = tensor.shape.as_list()[0]
    kind = as_dtype(output_dtype)

    def sample(key: Any, sizes: tuple[int, ...], x: Any) -> Any:  # noqa: ARG001
        drawn = jax.random.categorical(key, x[:, None, :], axis=-1, shape=(x.shape[0], int(num_samples)))
        return drawn.astype(kind.numpy)

    result = draw("Multinomial", [], kind, seed, name, sample, tensor)
    result._shape, result.probes = TensorShape([rows, int(num_samples)]), None  # noqa: SLF001
    result.set_shape([rows, int(num_samples)])
    return result


def orthogonal_matrix(key: Any, rows: int, columns: int, dtype: Any) -> Any:
    """A random matrix with orthonormal rows or columns."""
    flat = jax.random.normal(key, (max(rows, columns), min(rows, columns)), dtype)
    q, r = jnp.linalg.qr(flat)
    q = q * jnp.sign(jnp.diagonal(r))
    return q.T if rows < columns else q
