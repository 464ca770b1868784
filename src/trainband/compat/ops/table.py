"""The table of TensorFlow's operations: names, signatures, and the function of arrays that each one is.

A function is written once, with TensorFlow 2's parameters, over NumPy's and JAX's arrays. A front end looks an
operation up in `TABLE`, turns the arguments that are tensors into arrays by the rules of dtypes that its entry names,
and calls the function: at once, or while it traces a recorded graph.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True, eq=False)
class Op:
    """An operation.

    Attributes:
      function: of arrays and Python values, to an array or a sequence of them. One that is `random` takes a key first.
      type: what an operation of this kind is called in a graph.
      names: its names in every version of TensorFlow, such as `tf.math.add`.
      v1_names: its names in TensorFlow 1 alone.
      v1: TensorFlow 1's parameters, where they differ; see `Signature.parse`.
      tensors: the parameters that are arrays.
      optional: those of them for which `None` may be given; it is passed on.
      lists: the parameters that are sequences of arrays of one dtype.
      shapes: the parameters that are shapes, or parts of one, and must not depend on computed values.
      alike: the parameters that must be of one dtype. A Python number takes the dtype of the first that has one.
      like: parameters and what they take their dtype from: another parameter, which may be a tensor or a dtype, or the
        name of a dtype; the first that is given counts.
      kinds: parameters and the kinds of dtype that they may have: `float`, `int`, `bool` and `complex`.
      by_row: the parameters of which one may be rows of a larger tensor; the result is then rows, too.
      outputs: how many arrays come out, as a sequence where it is not 1; or a function of the arguments.
      unsized: if shapes depend on values: of what is known of the arguments, the dtype of each result, and its shape.
      limits: parameters that are counts, and the arrays of whole numbers whose largest, plus 1, is meant where they are
        left out.
      folds: whether NumPy's arrays give NumPy's arrays, so that it can be computed before anything runs.
      of_shape: whether the value follows from the shape of the first tensor alone.
      ranked_by: the parameter that says how many axes the result has where more is not known: a shape by its length,
        an array by its own.
      keeps_shape: whether the result has the shape and dtype of the first tensor, whatever the others are.
      flat: whether no derivative goes through it, although its result is floating-point, as in TensorFlow.
      random: whether it draws random numbers.
      unchanged: of the arguments: whether the first tensor is the result as it is.
      title: the name of an operation in a graph that is given none; its type when left out.
    """

    function: Callable[..., Any]
    type: str
    names: tuple[str, ...] = ()
    v1_names: tuple[str, ...] = ()
    v1: str = ""
    tensors: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()
    shapes: tuple[str, ...] = ()
    alike: tuple[str, ...] = ()
    like: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    kinds: Mapping[str, str] = field(default_factory=dict)
    by_row: tuple[str, ...] = ()
    outputs: int | Callable[..., int] = 1
    unsized: Callable[..., Sequence[tuple[Any, Sequence[int | None] | None]]] | None = None
    limits: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    folds: bool = False
    of_shape: bool = False
    ranked_by: str = ""
    keeps_shape: bool = False
    flat: bool = False
    random: bool = False
    unchanged: Callable[..., bool] | None = None
    title: str = ""

    @property
    def name(self) -> str:
        """The name of the function: `reduce_sum`."""
        return self.function.__name__.rstrip("_")

    @property
    def key(self) -> str:
        """Its file and function, `math.add`: another name than any other operation's."""
        return f"{self.function.__module__.rpartition('.')[2]}.{self.function.__name__}"

    @functools.cached_property
    def parameters(self) -> dict[str, inspect.Parameter]:
        """The parameters of the function, without the random key."""
        found = dict(inspect.signature(self.function).parameters)
        if self.random:
            del found["key"]
        return found

    def call(self, values: Mapping[str, Any], key: Any = None) -> Any:
        """Calls the function with arguments by name."""
        positional: list[Any] = [key] if self.random else []
        keywords: dict[str, Any] = {}
        for name, parameter in self.parameters.items():
            if parameter.kind is parameter.VAR_POSITIONAL:
                positional.extend(values[name])
            elif parameter.kind is parameter.KEYWORD_ONLY:
                keywords[name] = values[name]
            else:
                positional.append(values[name])
        return self.function(*positional, **keywords)


TABLE: dict[str, Op] = {}
"""The operations by their TensorFlow names."""
_BY_FUNCTION: dict[Callable[..., Any], Op] = {}
_BY_KEY: dict[str, Op] = {}


def op(
    names: str = "",
    *,
    v1_names: str = "",
    type: str = "",  # noqa: A002 - TensorFlow's word for it
    tensors: str = "",
    optional: str = "",
    lists: str = "",
    shapes: str = "",
    alike: str = "",
    like: Mapping[str, str] | None = None,
    limits: Mapping[str, str] | None = None,
    by_row: str = "",
    **more: Any,
) -> Callable[[Function], Function]:
    """Add a function to the table. Names are separated by spaces; for other arguments see `Op`.

    Raises:
      ValueError: two operations have the same name, or the function lacks a parameter that is named.
    """

    def enter(function: Function) -> Function:
        entry = Op(
            function=function,
            type=type or function.__name__,
            names=tuple(names.split()),
            v1_names=tuple(v1_names.split()),
            tensors=tuple(tensors.split()),
            optional=tuple(optional.split()),
            lists=tuple(lists.split()),
            shapes=tuple(shapes.split()),
            alike=tuple(alike.split()),
            like={name: tuple(of.split()) for name, of in (like or {}).items()},
            limits={name: tuple(of.split()) for name, of in (limits or {}).items()},
            by_row=tuple(by_row.split()),
            **more,
        )
        named = {*entry.tensors, *entry.optional, *entry.lists, *entry.shapes, *entry.alike, *entry.like, *entry.by_row}
        if absent := named - set(entry.parameters):
            raise ValueError(f"{entry.name} has no parameters {sorted(absent)}")
        for name in (*entry.names, *entry.v1_names):
            if name in TABLE:
                raise ValueError(f"{name} is both {TABLE[name].name} and {entry.name}")
            TABLE[name] = entry
        _BY_FUNCTION[function] = _BY_KEY[entry.key] = entry
        return function

    return enter


def op_of(function: Callable[..., Any]) -> Op:
    """Return the entry of a function."""
    return _BY_FUNCTION[function]


def op_with_key(key: str) -> Op:
    """Return the entry with such a key.

    Raises:
      KeyError: there is none.
    """
    return _BY_KEY[key]
