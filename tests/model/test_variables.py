"""Variables: how the leaves of any pytree are named, and which are refused."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trainband.errors import ModelError
from trainband.model.variables import Variable, Variables

X = np.zeros((2, 3), np.float32)


class Layer(NamedTuple):
    kernel: Any
    bias: Any


Old = namedtuple("Old", ["w"])


@jax.tree_util.register_dataclass
@dataclass
class Net:
    first: Any
    second: Any


@jax.tree_util.register_pytree_node_class
class Bag:
    """A node that says nothing of its keys: JAX numbers the children."""

    def __init__(self, *children: Any) -> None:
        self.children = children

    def tree_flatten(self) -> tuple[tuple[Any, ...], None]:
        return self.children, None

    @classmethod
    def tree_unflatten(cls, _aux: None, children: tuple[Any, ...]) -> Bag:
        return cls(*children)


NAMES: list[tuple[Any, list[str]]] = [
    # dicts come sorted by key, however they were written
    ({"hidden": {"kernel": X, "bias": X}}, ["hidden/bias", "hidden/kernel"]),
    ({0: X, 10: X, 2: X}, ["0", "2", "10"]),
    ([X, [X, X]], ["0", "1/0", "1/1"]),
    ((X, {"w": X}), ["0", "1/w"]),
    # a field keeps its place and its name
    (Layer(kernel=X, bias=X), ["kernel", "bias"]),
    ({"a": Old(w=X)}, ["a/w"]),
    (Net(first=X, second=[X]), ["first", "second/0"]),
    ({"bag": Bag(X, X)}, ["bag/0", "bag/1"]),
    # one bare array
    (X, ["params"]),
    # None is no leaf
    ({"a": None, "b": X}, ["b"]),
    # a key with a slash in it, as Haiku writes them
    ({"mlp/~/linear": {"w": X}}, ["mlp/~/linear/w"]),
    ({"größe": X}, ["größe"]),
    ({"with space": X}, ["with space"]),
]


@pytest.mark.parametrize(("params", "names"), NAMES, ids=[str(names) for _, names in NAMES])
def test_names_are_paths(params: Any, names: list[str]) -> None:
    variables = Variables.of(params)
    assert [variable.name for variable in variables.entries] == names
    rebuilt = variables.unflatten(list(range(len(names))))
    assert jax.tree.leaves(rebuilt) == list(range(len(names)))
    assert str(jax.tree.structure(rebuilt)) == str(jax.tree.structure(params))


def test_a_variable_knows_its_size() -> None:
    (variable,) = Variables.of({"w": jnp.zeros((3, 4, 5), jnp.bfloat16)}).entries
    assert variable == Variable("w", (3, 4, 5), "bfloat16")
    assert (variable.size, variable.nbytes) == (60, 120)
    assert str(variable) == "w bfloat16[3,4,5]"
    scalar = Variable("s", (), "float32")
    assert (scalar.size, scalar.nbytes, str(scalar)) == (1, 4, "s float32[]")
    assert Variable("e", (0, 4), "float32").nbytes == 0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "float8_e4m3fn"])
def test_every_floating_dtype_is_a_variable(dtype: str) -> None:
    (variable,) = Variables.of([np.zeros(2, jnp.dtype(dtype))]).entries
    assert variable.dtype == dtype


REFUSED: list[tuple[Any, list[str]]] = [
    # two ways to write one name
    ({"a": {"b": X}, "a/b": X}, ["two variables have the name 'a/b'", "['a']['b']", "['a/b']", "rename"]),
    ({"0": X, "x": {"y": X}, "x/y": X}, ["'x/y'"]),
    # names that would be other files, or none
    ({"": X}, ["''", "rename the key"]),
    ({"a": {"..": X}}, ["'a/..'"]),
    ({".": X}, ["'.'"]),
    ({"a//b": X}, ["'a//b'"]),
    ({"/etc": X}, ["'/etc'"]),
    ({"a\\b": X}, ["backslash"]),
    ({"a\nb": X}, ["printable"]),
    # leaves that are no arrays
    ({"w": 1.0}, ["params['w']", "1.0", "float", "must be an array"]),
    ({"w": "text"}, ["'text'", "str"]),
    ({"f": len}, ["builtin"]),
    # arrays that no gradient can train
    ({"step": np.zeros((), np.int32)}, ["params['step']", "int32", "close over"]),
    ({"mask": np.zeros(3, bool)}, ["bool"]),
    ({"z": np.zeros(3, np.complex64)}, ["complex64"]),
    ({"key": jax.random.key(0)}, ["key<fry>"]),
    # nothing at all
    ({}, ["no variables"]),
    ([], ["no variables"]),
    (None, ["no variables"]),
    ({"a": {}, "b": None}, ["no variables"]),
]


@pytest.mark.parametrize(("params", "words"), REFUSED, ids=[words[0] for _, words in REFUSED])
def test_what_cannot_be_used_is_refused_by_name(params: Any, words: list[str]) -> None:
    with pytest.raises(ModelError) as caught:
        Variables.of(params)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("name", "shape", "dtype"),
    [
        ("a\x1b", (1,), "float32"),
        ("a", (-1,), "float32"),
        ("a", (1 << 62, 1 << 62), "float32"),
        ("a", (1,), "no dtype"),
        ("a", (1,), "f4,(99999999999,)f4"),
    ],
    ids=["name", "negative", "overflow", "dtype", "compound"],
)
def test_what_another_task_says_of_a_variable_is_checked(name: str, shape: tuple[int, ...], dtype: str) -> None:
    with pytest.raises(ModelError, match="is not a variable"):
        Variable(name, shape, dtype)
