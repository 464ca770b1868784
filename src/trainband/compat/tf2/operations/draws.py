"""`tf.random`: what version 1 names otherwise, draws that a seed alone determines, and generators."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trainband.compat.ops.dtypes import as_dtype
from trainband.compat.ops.shapes import dims_of
from trainband.compat.tf2.eager.aggregation import VariableAggregation
from trainband.compat.tf2.eager.execute import cast_to, compute, convert, frozen
from trainband.compat.tf2.eager.replica import current
from trainband.compat.tf2.eager.seeds import key_of
from trainband.compat.tf2.eager.tensor import Tensor
from trainband.compat.tf2.eager.variable import Variable
from trainband.compat.tf2.operations.defining import known
from trainband.compat.tf2.saving.trackable import Tracked
from trainband.runtime.overrides import override

Draw = Callable[..., Any]
_multinomial = known("tf.random.multinomial")
_gamma, _poisson = known("tf.random.gamma"), known("tf.random.poisson")


def categorical(logits: Any, num_samples: Any, dtype: Any = None, seed: int | None = None, name: Any = None) -> Tensor:
    """Draw classes for each row of unnormalised log probabilities."""
    del name
    found: Tensor = _multinomial(logits, int(convert(num_samples)), output_dtype=dtype or "int64", seed=seed)
    return found


def gamma(
    shape: Any, alpha: Any, beta: Any = None, dtype: Any = "float32", seed: int | None = None, name: Any = None
) -> Tensor:
    """Draw from gamma distributions."""
    del name
    found: Tensor = _gamma(shape, alpha, beta, as_dtype(dtype), seed=seed)
    return found


def poisson(shape: Any, lam: Any, dtype: Any = "float32", seed: int | None = None, name: Any = None) -> Tensor:
    """Draw from Poisson distributions."""
    del name
    found: Tensor = _poisson(lam, shape, as_dtype(dtype), seed=seed)
    return found


def _sizes(shape: Any) -> tuple[int, ...]:
    sizes = shape.numpy() if hasattr(shape, "numpy") else shape
    return tuple(int(one or 0) for one in (dims_of(sizes) or ()))


def _seed_words(seed: Any) -> Tensor:
    words = cast_to(convert(seed), "int64")
    return compute(
        ("seed words",),
        lambda two: (jnp.concatenate([two % 2**32, jnp.zeros(1, two.dtype)]).astype(np.uint32),),
        [words],
        flat=True,
    )[0]


def _drawn(name: str, draw: Draw, source: Tensor, shape: Any, parameters: tuple[Any, ...], dtype: Any) -> Tensor:
    """What a function of (key, sizes, dtype, parameters) draws."""
    sizes, kind = _sizes(shape), as_dtype(dtype)
    inputs = [source, *map(convert, parameters)]
    return compute(
        ("draws", name, sizes, kind.name, frozen(len(inputs))),
        lambda words, *others: (draw(key_of(words), sizes, kind.numpy, *others),),
        inputs,
    )[0]


def _normal(key: Any, sizes: Any, kind: Any, mean: Any, stddev: Any) -> Any:
    return (jax.random.normal(key, sizes, kind) * stddev + mean).astype(kind)


def _truncated(key: Any, sizes: Any, kind: Any, mean: Any, stddev: Any) -> Any:
    return (jax.random.truncated_normal(key, -2.0, 2.0, sizes, kind) * stddev + mean).astype(kind)


def _uniform(key: Any, sizes: Any, kind: Any, low: Any, high: Any) -> Any:
    if np.issubdtype(kind, np.integer):
        return jax.random.randint(key, sizes, low, high, kind)
    return (jax.random.uniform(key, sizes, kind) * (high - low) + low).astype(kind)


def _bits(key: Any, sizes: Any, kind: Any) -> Any:
    return jax.random.bits(key, sizes, np.dtype(f"uint{8 * np.dtype(kind).itemsize}")).view(kind)


def _binomial(key: Any, sizes: Any, kind: Any, counts: Any, probs: Any) -> Any:
    return jax.random.binomial(key, jnp.asarray(counts, np.float32), probs, sizes).astype(kind)


def _of_uniform(name: str, source: Tensor, shape: Any, minval: Any, maxval: Any, dtype: Any) -> Tensor:
    kind = as_dtype(dtype)
    if kind.is_integer and maxval is None:
        if minval is None:
            return _drawn(f"{name} bits", _bits, source, shape, (), kind)
        raise ValueError(f"Must specify maxval for integer dtype {kind!r}")
    return _drawn(name, _uniform, source, shape, (minval or 0, 1.0 if maxval is None else maxval), kind)


def stateless_normal(
    shape: Any, seed: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = "float32", name: Any = None, alg: Any = None
) -> Tensor:
    """Draw from a normal distribution, as a seed of two numbers determines."""
    del name, alg
    return _drawn("normal", _normal, _seed_words(seed), shape, (mean, stddev), dtype)


def stateless_truncated_normal(
    shape: Any, seed: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = "float32", name: Any = None, alg: Any = None
) -> Tensor:
    """Draw from a truncated normal distribution, as a seed determines."""
    del name, alg
    return _drawn("truncated", _truncated, _seed_words(seed), shape, (mean, stddev), dtype)


def stateless_uniform(
    shape: Any,
    seed: Any,
    minval: Any = 0,
    maxval: Any = None,
    dtype: Any = "float32",
    name: Any = None,
    alg: Any = None,
) -> Tensor:
    """Draw from a uniform distribution, as a seed determines.

    Raises:
      ValueError: whole numbers have no upper bound.
    """
    del name, alg
    return _of_uniform("uniform", _seed_words(seed), shape, minval, maxval, dtype)


def stateless_categorical(logits: Any, num_samples: Any, seed: Any, dtype: Any = "int64", name: Any = None) -> Tensor:
    """Draw classes for each row of unnormalised log probabilities, as a seed determines."""
    del name
    scores, count, kind = convert(logits), int(convert(num_samples)), as_dtype(dtype)

    def call(words: Any, rows: Any) -> Any:
        drawn = jax.random.categorical(key_of(words), rows[:, None, :], axis=-1, shape=(rows.shape[0], count))
        return (drawn.astype(kind.numpy),)

    return compute(("stateless_categorical", count, kind.name), call, [_seed_words(seed), scores], flat=True)[0]


def stateless_gamma(
    shape: Any, seed: Any, alpha: Any, beta: Any = None, dtype: Any = "float32", name: Any = None
) -> Tensor:
    """Draw from gamma distributions, as a seed determines."""
    del name
    rate = 1.0 if beta is None else beta
    return _drawn(
        "gamma",
        lambda key, sizes, kind, a, b: (jax.random.gamma(key, a, sizes, kind) / b).astype(kind),
        _seed_words(seed), shape, (alpha, rate), dtype,
    )  # fmt: skip


def stateless_poisson(shape: Any, seed: Any, lam: Any, dtype: Any = "int32", name: Any = None) -> Tensor:
    """Draw from Poisson distributions, as a seed determines."""
    del name
    return _drawn(
        "poisson",
        lambda key, sizes, kind, rate: jax.random.poisson(key, jnp.broadcast_to(rate, sizes), sizes).astype(kind),
        _seed_words(seed), shape, (lam,), dtype,
    )  # fmt: skip


def stateless_binomial(
    shape: Any, seed: Any, counts: Any, probs: Any, output_dtype: Any = "int32", name: Any = None
) -> Tensor:
    """Draw from binomial distributions, as a seed determines."""
    del name
    return _drawn("binomial", _binomial, _seed_words(seed), shape, (counts, probs), output_dtype)


def stateless_shuffle(value: Any, seed: Any, alg: Any = None, name: Any = None) -> Tensor:
    """The rows in an order that a seed determines."""
    del name, alg
    return compute(
        ("stateless_shuffle",),
        lambda words, rows: (jax.random.permutation(key_of(words), rows, axis=0),),
        [_seed_words(seed), convert(value)],
    )[0]


def split(seed: Any, num: int = 2, alg: Any = None) -> Tensor:
    """Several seeds of one, [num, 2]."""
    del alg

    def call(words: Any) -> Any:
        return (jax.random.bits(key_of(words), (int(num), 2), np.uint32).view(np.int32),)

    return compute(("split seed", int(num)), call, [_seed_words(seed)], flat=True)[0]


def fold_in(seed: Any, data: Any, alg: Any = None) -> Tensor:
    """A seed of a seed and a number."""
    del alg

    def call(words: Any, number: Any) -> Any:
        key = jax.random.fold_in(key_of(words), number.astype(np.uint32))
        return (jax.random.bits(key, (2,), np.uint32).view(np.int32),)

    return compute(("fold seed",), call, [_seed_words(seed), convert(data)], flat=True)[0]


class Algorithm:
    """How numbers are drawn. This changes nothing: JAX draws them."""

    PHILOX = 1
    THREEFRY = 2
    AUTO_SELECT = 3


class _Held:
    """The state of a generator that a replica has made: no variable, and gone with the replica."""

    def __init__(self, state: Tensor) -> None:
        self._state = state

    def value(self) -> Tensor:
        """The state."""
        return self._state

    read_value = value

    def assign(self, state: Any) -> None:
        """Replaces it."""
        self._state = convert(state)

    def assign_add(self, delta: Any) -> None:
        """Adds to it."""
        self._state = self._state + convert(delta)


class Generator(Tracked):
    """Random numbers of a stream of its own, whose state is a variable."""

    def __init__(self, copy_from: Any = None, state: Any = None, alg: Any = None) -> None:
        del alg
        first = copy_from.state.numpy() if copy_from is not None else state
        self.state: Any = (
            _Held(convert(first))
            if current() is not None
            else Variable(
                np.asarray(convert(first).numpy(), np.int64),
                trainable=False,
                name="StateVar",
                aggregation=VariableAggregation.ONLY_FIRST_REPLICA,
            )
        )

    @classmethod
    def from_seed(cls, seed: Any, alg: Any = None) -> Generator:
        """One that always draws the same."""
        del alg
        words = np.asarray(convert(seed).numpy()).reshape(-1).astype(np.int64)
        return cls(state=np.array([0, int(words[0]), int(words[1]) if words.size > 1 else 0], np.int64))

    @classmethod
    def from_non_deterministic_state(cls, alg: Any = None) -> Generator:
        """One that draws others in each process."""
        import secrets

        del alg
        return cls.from_seed(secrets.randbits(31))

    @classmethod
    def from_state(cls, state: Any, alg: Any = None) -> Generator:
        """One that continues a stream at a state."""
        del alg
        return cls(state=state)

    @property
    def algorithm(self) -> int:
        """How numbers are drawn."""
        return Algorithm.THREEFRY

    @property
    def key(self) -> Tensor:
        """What determines the stream."""
        found: Tensor = self.state.value()[1]
        return found

    def reset(self, state: Any) -> None:
        """Go on from a state."""
        self.state.assign(convert(state))

    def reset_from_seed(self, seed: Any) -> None:
        """Begin anew, from a seed."""
        self.state.assign(Generator.from_seed(seed).state.value())

    @override
    def tracked(self) -> Iterator[tuple[str, Any]]:
        yield "_state_var", self.state

    def skip(self, delta: Any) -> Tensor:
        """Leave out some draws. Returns the state before."""
        before: Tensor = self.state.value()
        self.state.assign_add(np.array([int(convert(delta)), 0, 0], np.int64))
        return before

    def _next(self) -> Tensor:
        before = self.skip(1)
        replica = current()
        if replica is not None and isinstance(self.state, Variable):  # each draws numbers of its own
            number = cast_to(getattr(replica, "replica_id_in_sync_group", 0), "int64")
            before = before + convert(np.array([0, 0x9E3779B1, 0])) * number
        return compute(
            ("generator words",),
            lambda three: ((jnp.roll(three, -1) % 2**32).astype(np.uint32),),
            [before],
            flat=True,
        )[0]

    def normal(
        self, shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = "float32", name: Any = None
    ) -> Tensor:
        """From a normal distribution."""
        del name
        return _drawn("normal", _normal, self._next(), shape, (mean, stddev), dtype)

    def truncated_normal(
        self, shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = "float32", name: Any = None
    ) -> Tensor:
        """From a truncated normal distribution."""
        del name
        return _drawn("truncated", _truncated, self._next(), shape, (mean, stddev), dtype)

    def uniform(
        self, shape: Any, minval: Any = 0, maxval: Any = None, dtype: Any = "float32", name: Any = None
    ) -> Tensor:
        """From a uniform distribution."""
        del name
        return _of_uniform("uniform", self._next(), shape, minval, maxval, dtype)

    def uniform_full_int(self, shape: Any, dtype: Any = "uint64", name: Any = None) -> Tensor:
        """Any whole numbers of the dtype."""
        del name
        return _drawn("bits", _bits, self._next(), shape, (), dtype)

    def binomial(self, shape: Any, counts: Any, probs: Any, dtype: Any = "int32", name: Any = None) -> Tensor:
        """From binomial distributions."""
        del name
        return _drawn("binomial", _binomial, self._next(), shape, (counts, probs), dtype)

    def make_seeds(self, count: int = 1) -> Tensor:
        """Seeds for stateless draws, [2, count]."""
        return _drawn("bits", _bits, self._next(), [2, int(count)], (), "int64")

    def split(self, count: int = 1) -> list[Generator]:
        """Several generators that draw independently."""
        seeds = np.asarray(self.make_seeds(count).numpy())
        return [Generator.from_seed(seeds[:, at]) for at in range(int(count))]


_global: list[Generator] = []


def get_global_generator() -> Generator:
    """That of the process."""
    if not _global:
        _global.append(Generator.from_non_deterministic_state())
    return _global[0]


def set_global_generator(generator: Generator) -> None:
    """Make another one that of the process."""
    _global[:] = [generator]


def create_rng_state(seed: Any, alg: Any = None) -> Any:
    """The state of a generator with a seed."""
    return Generator.from_seed(seed, alg).state.numpy()


def random_index_shuffle(index: Any, seed: Any, max_index: Any, rounds: int = 4) -> Tensor:
    """Where a number is in an order that a seed determines."""
    del rounds
    order = stateless_shuffle(np.arange(int(convert(max_index)) + 1), np.asarray(convert(seed).numpy())[:2])
    found: Tensor = known("tf.gather")(order, cast_to(index, "int64"))
    return found
