"""`tf.Module`: an object that knows the variables in its attributes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from trainband.compat.tf2.eager.tensor import Tensor
from trainband.compat.tf2.eager.tracking import WATCHERS, changed
from trainband.compat.tf2.eager.variable import Variable


class Module:
    """The base of modules.

    Args:
      name: what it is called; its class's name, if left out.
    """

    def __init__(self, name: str | None = None) -> None:
        self._name = name or type(self).__name__.lower()

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if WATCHERS and not isinstance(value, int | float | str | Tensor):
            changed()

    @property
    def name(self) -> str:
        """What it is called."""
        return getattr(self, "_name", type(self).__name__.lower())

    @property
    def name_scope(self) -> AbstractContextManager[None]:
        """A scope that changes nothing."""
        return nullcontext()

    @property
    def variables(self) -> tuple[Any, ...]:
        """All variables in its attributes, and in those of its modules, by attribute."""
        return tuple(_unique(_variables(self, set())))

    @property
    def trainable_variables(self) -> tuple[Any, ...]:
        """Those that tapes watch."""
        return tuple(one for one in self.variables if one.trainable)

    @property
    def non_trainable_variables(self) -> tuple[Any, ...]:
        """The others."""
        return tuple(one for one in self.variables if not one.trainable)

    @property
    def submodules(self) -> tuple[Module, ...]:
        """The modules in its attributes, and in theirs."""
        return tuple(one for one in _unique(_modules(self, set())) if one is not self)

    @classmethod
    def with_name_scope(cls, method: Callable[..., Any]) -> Callable[..., Any]:
        """The method itself."""
        return method


def _unique(found: Iterator[Any]) -> Iterator[Any]:
    seen: set[int] = set()
    for one in found:
        if id(one) not in seen:
            seen.add(id(one))
            yield one


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        for name in sorted(value, key=str):
            yield from _parts(value[name])
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _parts(one)
    else:
        yield value


def _attributes(module: Any) -> Iterator[Any]:
    for name in sorted(vars(module)):
        yield from _parts(vars(module)[name])


def _is_keras(value: Any) -> bool:
    return hasattr(value, "stateless_call")


def _variables(module: Any, seen: set[int]) -> Iterator[Any]:
    if id(module) in seen:
        return
    seen.add(id(module))
    for one in _attributes(module):
        if isinstance(one, Variable) or hasattr(one, "read_for"):
            yield one
        elif _is_keras(one):
            yield from one.variables
        elif isinstance(one, Module):
            yield from _variables(one, seen)


def _modules(module: Any, seen: set[int]) -> Iterator[Any]:
    if id(module) in seen:
        return
    seen.add(id(module))
    yield module
    for one in _attributes(module):
        if isinstance(one, Module):
            yield from _modules(one, seen)
