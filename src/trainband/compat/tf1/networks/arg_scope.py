"""Argument scopes: default arguments of functions, for all calls inside a scope."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

Scope = dict[tuple[str, str], dict[str, Any]]
_stack: list[Scope] = [{}]
_known: dict[tuple[str, str], tuple[str, ...]] = {}
"""The functions that have argument scopes, and the parameters that have defaults."""


def arg_scope_func_key(function: Any) -> tuple[str, str]:
    """What a function is called in scopes."""
    found: tuple[str, str] = getattr(function, "_key_op", (function.__module__, function.__name__))
    return found


def current_arg_scope() -> Scope:
    """The defaults of each function in the innermost scope."""
    return _stack[-1]


def has_arg_scope(function: Any) -> bool:
    """Whether a function has argument scopes."""
    return arg_scope_func_key(function) in _known


def arg_scoped_arguments(function: Any) -> tuple[str, ...]:
    """The parameters of a function that have defaults, and may be set by scopes."""
    return _known[arg_scope_func_key(function)]


def add_arg_scope(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a function argument scopes."""
    key = arg_scope_func_key(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **{**_stack[-1].get(key, {}), **kwargs})

    call._key_op = key  # type: ignore[attr-defined]  # noqa: SLF001 - TensorFlow's name for it
    code, defaults = function.__code__, function.__defaults__ or ()
    _known[key] = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
    return call


@contextmanager
def arg_scope(list_ops_or_scope: Any, **kwargs: Any) -> Iterator[Scope]:
    """Sets defaults for calls inside; or, without arguments, opens a scope again.

    Raises:
      TypeError: it is given neither functions nor a scope.
      ValueError: a function has no argument scopes, or a scope is opened again with other arguments.
    """
    if isinstance(list_ops_or_scope, Mapping):
        if kwargs:
            raise ValueError("When attempting to re-use a scope by suppling a dictionary, kwargs must be empty.")
        opened = dict(list_ops_or_scope)
    else:
        if not isinstance(list_ops_or_scope, Sequence | set | frozenset):
            raise TypeError(
                "list_ops_or_scope must either be a list/tuple or reused scope (i.e. dict), but got "
                f"{type(list_ops_or_scope).__name__}"
            )
        opened = dict(_stack[-1])
        for function in list_ops_or_scope:
            if not has_arg_scope(function):
                raise ValueError(f"{arg_scope_func_key(function)} is not decorated with @add_arg_scope")
            key = arg_scope_func_key(function)
            opened[key] = {**opened.get(key, {}), **kwargs}
    _stack.append(opened)
    try:
        yield opened
    finally:
        _stack.pop()
