"""The variables of models, as `tf.contrib.framework` makes, finds and restores them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from trainband.compat.checkpoints.files import latest_checkpoint, read_checkpoint
from trainband.compat.ops.dtypes import float32
from trainband.compat.tf1.graphs.graph import get_default_graph
from trainband.compat.tf1.graphs.graph_keys import GraphKeys
from trainband.compat.tf1.graphs.variable import Variable
from trainband.compat.tf1.networks.arg_scope import add_arg_scope
from trainband.compat.tf1.operations.array import placeholder
from trainband.compat.tf1.operations.control_flow import group
from trainband.compat.tf1.operations.variable_scope import VariableScope, get_variable
from trainband.compat.tf1.training.saver import Saver


@add_arg_scope
def variable(
    name: str,
    shape: Any = None,
    dtype: Any = None,
    initializer: Any = None,
    regularizer: Any = None,
    trainable: bool = True,
    collections: Any = None,
    caching_device: Any = None,  # noqa: ARG001 - there are no copies to place
    device: Any = None,
    partitioner: Any = None,
    custom_getter: Any = None,
    use_resource: Any = None,  # noqa: ARG001
) -> Any:
    """Create a variable, or share the one of this name."""
    lists = list(dict.fromkeys([*(collections or [GraphKeys.GLOBAL_VARIABLES])]))
    with get_default_graph().device(device or ""):
        return get_variable(
            name,
            shape,
            dtype,
            initializer,
            regularizer,
            trainable,
            lists,
            partitioner=partitioner,
            custom_getter=custom_getter,
        )


@add_arg_scope
def model_variable(
    name: str,
    shape: Any = None,
    dtype: Any = float32,
    initializer: Any = None,
    regularizer: Any = None,
    trainable: bool = True,
    collections: Any = None,
    caching_device: Any = None,
    device: Any = None,
    partitioner: Any = None,
    custom_getter: Any = None,
    use_resource: Any = None,
) -> Any:
    """Create a variable that is listed among the model's, or share the one of this name."""
    lists = [*(collections or []), GraphKeys.GLOBAL_VARIABLES, GraphKeys.MODEL_VARIABLES]
    return variable(
        name,
        shape,
        dtype,
        initializer,
        regularizer,
        trainable,
        lists,
        caching_device,
        device,
        partitioner,
        custom_getter,
        use_resource,
    )


def local_variable(
    initial_value: Any, validate_shape: bool = True, name: str | None = None, use_resource: Any = None
) -> Any:  # fmt: skip
    """Create a variable that each process keeps to itself."""
    del use_resource
    lists = [GraphKeys.LOCAL_VARIABLES]
    return Variable(initial_value, trainable=False, collections=lists, validate_shape=validate_shape, name=name)


def global_variable(
    initial_value: Any, validate_shape: bool = True, name: str | None = None, use_resource: Any = None
) -> Any:  # fmt: skip
    """Create a variable that is not trained."""
    del use_resource
    return Variable(initial_value, trainable=False, validate_shape=validate_shape, name=name)


def add_model_variable(var: Any) -> None:
    """Lists a variable among the model's."""
    if all(var is not one for one in get_default_graph().get_collection(GraphKeys.MODEL_VARIABLES)):
        get_default_graph().add_to_collection(GraphKeys.MODEL_VARIABLES, var)


# --- finding


def get_variables(scope: Any = None, suffix: str | None = None, collection: str = GraphKeys.GLOBAL_VARIABLES) -> Any:
    """The variables of a collection whose names begin with a scope and end with a suffix."""
    name = scope.name if isinstance(scope, VariableScope) else scope
    found = get_default_graph().get_collection(collection, name)
    if suffix is None:
        return found
    return [one for one in found if re.search(re.escape(suffix) + "$", one.name.partition(":")[0])]


def _of(collection: str) -> Callable[..., Any]:
    def find(scope: Any = None, suffix: str | None = None) -> Any:
        return get_variables(scope, suffix, collection)

    find.__doc__ = f"The variables of the collection `{collection}`, by scope and suffix."
    return find


get_model_variables = _of(GraphKeys.MODEL_VARIABLES)
get_local_variables = _of(GraphKeys.LOCAL_VARIABLES)
get_trainable_variables = _of(GraphKeys.TRAINABLE_VARIABLES)


def get_variables_by_name(given_name: str, scope: Any = None) -> Any:
    """The variables of a name, without scopes."""
    suffix = "/" + given_name
    return [one for one in get_variables(scope) if f"/{one.op.name}".endswith(suffix)]


def get_variables_by_suffix(suffix: str, scope: Any = None) -> Any:
    """The variables whose names end with a suffix."""
    return get_variables(scope, suffix)


def get_unique_variable(var_op_name: str) -> Any:
    """The variable of a name.

    Raises:
      ValueError: there is none, or several.
    """
    found = [one for one in get_variables(var_op_name) if one.op.name == var_op_name]
    if len(found) != 1:
        raise ValueError(f"Variable {var_op_name} does not uniquely identify a variable")
    return found[0]


def get_variable_full_name(var: Any) -> str:
    """The name of a variable in checkpoints."""
    return str(var.op.name)


def filter_variables(
    var_list: Iterable[Any],
    include_patterns: Sequence[str] | None = None,
    exclude_patterns: Sequence[str] | None = None,
    reg_search: bool = True,
) -> list[Any]:
    """The variables whose names match a pattern, and none of those that exclude."""
    matches = re.search if reg_search else re.match

    def fits(one: Any, patterns: Sequence[str]) -> bool:
        return any(matches(pattern, one.op.name) for pattern in patterns)

    return [
        one
        for one in var_list
        if (include_patterns is None or fits(one, include_patterns)) and not fits(one, exclude_patterns or ())
    ]


def get_variables_to_restore(include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> list[Any]:
    """All variables of some scopes, without those of others."""
    wanted = get_variables() if include is None else [one for scope in include for one in get_variables(scope)]
    unwanted = {id(one) for scope in exclude or () for one in get_variables(scope)}
    return [one for one in wanted if id(one) not in unwanted]


# --- giving values


def assign_from_values(var_names_to_values: Mapping[str, Any]) -> tuple[Any, dict[Any, Any]]:
    """(an operation that gives variables their values, what to feed it)."""
    feeds, made = {}, []
    for name, value in var_names_to_values.items():
        one = get_unique_variable(name)
        fed = placeholder(one.dtype, one.get_shape())
        feeds[fed] = np.reshape(value, one.get_shape().as_list())
        made.append(one.assign(fed))
    return group(*made), feeds


def assign_from_values_fn(var_names_to_values: Mapping[str, Any]) -> Callable[[Any], None]:
    """Return a function of a session that gives variables their values."""
    operation, feeds = assign_from_values(var_names_to_values)
    return lambda session: session.run(operation, feeds)


def assign_from_checkpoint(
    model_path: str, var_list: Any, ignore_missing_vars: bool = False
) -> tuple[Any, dict[Any, Any]]:  # fmt: skip
    """(an operation that gives variables the values of a checkpoint, what to feed it).

    Raises:
      ValueError: the checkpoint lacks one.
    """
    stored = read_checkpoint(model_path)
    wanted = _named(var_list)
    missing = [name for name in wanted if name not in stored]
    if missing and not ignore_missing_vars:
        raise ValueError(f"Checkpoint is missing variable [{missing[0]}]")
    return assign_from_values({one.op.name: stored[name] for name, one in wanted.items() if name in stored})


def _named(var_list: Any) -> dict[str, Any]:
    return dict(var_list) if isinstance(var_list, Mapping) else {one.op.name: one for one in var_list}


def assign_from_checkpoint_fn(
    model_path: str, var_list: Any, ignore_missing_vars: bool = False, reshape_variables: bool = False
) -> Callable[[Any], None] | None:
    """Return a function of a session that restores variables from a checkpoint; `None` if there is none of them.

    Raises:
      ValueError: there are no variables.
    """
    if not var_list:
        raise ValueError("var_list cannot be empty")
    wanted = _named(var_list)
    if ignore_missing_vars:
        stored = read_checkpoint(model_path)
        wanted = {name: one for name, one in wanted.items() if name in stored}
        if not wanted:
            return None
    saver = Saver(wanted, reshape=reshape_variables)
    return lambda session: saver.restore(session, model_path)


def init_from_checkpoint(ckpt_dir_or_file: str, assignment_map: Any) -> None:
    """Makes variables begin with the values of a checkpoint.

    Args:
      assignment_map: of names in the checkpoint, or prefixes that end with `/`, to variables, their names, or prefixes.

    Raises:
      ValueError: the checkpoint or the graph lacks a name.
    """
    path = latest_checkpoint(ckpt_dir_or_file) or ckpt_dir_or_file
    stored = read_checkpoint(path)
    here = {one.op.name: one for one in get_variables()}
    for source, target in dict(assignment_map).items():
        if not isinstance(target, str):
            pairs = {source: target}
        elif not target.endswith("/"):
            pairs = {source: here.get(target)}
        else:
            begin = "" if source == "/" else source
            scope = "" if target == "/" else target
            pairs = {begin + name[len(scope) :]: one for name, one in here.items() if name.startswith(scope)}
            pairs = {name: one for name, one in pairs.items() if name in stored}
        for name, one in pairs.items():
            if one is None or name not in stored:
                raise ValueError(f"Tensor {name} is not found in {path} checkpoint, or {target} is not in the graph")
            one.begin_with(np.reshape(stored[name], one.get_shape().as_list()))
