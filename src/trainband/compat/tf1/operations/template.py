"""`make_template`: a function whose calls share their variables."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from trainband.compat.tf1.graphs.graph import get_default_graph
from trainband.compat.tf1.graphs.graph_keys import GraphKeys
from trainband.compat.tf1.graphs.where import user_line
from trainband.compat.tf1.operations.variable_scope import VariableScope, variable_scope


def make_template(
    name_: str,
    func_: Callable[..., Any],
    create_scope_now_: bool = False,
    unique_name_: str | None = None,
    custom_getter_: Callable[..., Any] | None = None,
    **kwargs: Any,
) -> Template:
    """A function like `func_` that shares the variables of its first call.

    Args:
      name_: of its scope, made unique.
      create_scope_now_: whether the scope is named now, or in the first call.
      unique_name_: the name of its scope as it is, within the open one.
      custom_getter_: what the function's variables are made by.
      kwargs: arguments that every call gets.

    Raises:
      ValueError: there is no name, or a variable of an optimizer is made in a later call.
    """
    if not name_:
        raise ValueError("name cannot be None.")
    return Template(name_, func_, create_scope_now_, unique_name_, custom_getter_, kwargs)


class Template:
    """What `make_template` returns."""

    def __init__(
        self,
        name: str,
        func: Callable[..., Any],
        create_scope_now: bool,
        unique_name: str | None,
        custom_getter: Callable[..., Any] | None,
        keywords: dict[str, Any],
    ) -> None:
        self._name = name
        self._func = func
        self._unique_name = unique_name
        self._custom_getter = custom_getter
        self._keywords = keywords
        self._where = user_line()
        self._scope: VariableScope | None = None
        self._is_called = False
        if create_scope_now:
            with self._new_scope(auxiliary_name_scope=False) as scope:
                self._scope = scope

    def _new_scope(self, **more: Any) -> AbstractContextManager[VariableScope]:
        return variable_scope(self._unique_name, self._name, custom_getter=self._custom_getter, **more)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function in the template's scope."""
        if self._scope is None:
            with self._new_scope() as scope:
                self._scope = scope
                return self._called(args, kwargs)
        with variable_scope(self._scope, reuse=True if self._is_called else None):
            return self._called(args, kwargs)

    def _called(self, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        before = _trainable()
        try:
            result = self._func(*args, **{**self._keywords, **keywords})
        except Exception as exc:
            if exc.args and isinstance(exc.args[0], str):
                exc.args = (f"{exc.args[0]}\nThe template {self._name} was defined at {self._where}.", *exc.args[1:])
            raise
        if self._is_called and len(_trainable()) != len(before):
            raise ValueError(
                "New variable created when calling a template after the first time, perhaps you used tf.Variable when "
                f"you meant tf.get_variable: {[one.name for one in _trainable()[len(before) :]]} (at {user_line()})"
            )
        self._is_called = True
        return result

    @property
    def name(self) -> str:
        """The name that was asked for."""
        return self._name

    @property
    def func(self) -> Callable[..., Any]:
        """What is called."""
        return self._func

    @property
    def variable_scope(self) -> VariableScope | None:
        """Where its variables are; `None` before the first call."""
        return self._scope

    var_scope = variable_scope

    @property
    def variable_scope_name(self) -> str | None:
        """The name of its scope."""
        return None if self._scope is None else self._scope.name

    def _in_scope(self, collection: str) -> list[Any]:
        if self._scope is None:
            return []
        return get_default_graph().get_collection(collection, f"{self._scope.name}/")

    @property
    def variables(self) -> list[Any]:
        """All of its variables."""
        return [*self.global_variables, *self.local_variables]

    weights = variables

    @property
    def trainable_variables(self) -> list[Any]:
        """Those of them that optimizers train."""
        return self._in_scope(GraphKeys.TRAINABLE_VARIABLES)

    trainable_weights = trainable_variables

    @property
    def non_trainable_variables(self) -> list[Any]:
        """The others."""
        trained = set(self.trainable_variables)
        return [one for one in self.variables if one not in trained]

    non_trainable_weights = non_trainable_variables

    @property
    def global_variables(self) -> list[Any]:
        """Those of them that all tasks share."""
        return self._in_scope(GraphKeys.GLOBAL_VARIABLES)

    @property
    def local_variables(self) -> list[Any]:
        """Those of them that each process has for itself."""
        return self._in_scope(GraphKeys.LOCAL_VARIABLES)


def _trainable() -> list[Any]:
    return get_default_graph().get_collection(GraphKeys.TRAINABLE_VARIABLES)
