"""What the functions of `tf.contrib.layers` share: collections, aliases and conditions."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from trainband.compat.tf1.graphs.graph import get_default_graph
from trainband.compat.tf1.graphs.graph_keys import GraphKeys
from trainband.compat.tf1.graphs.record import known_value
from trainband.compat.tf1.networks.core import known_training
from trainband.compat.tf1.operations.case import case
from trainband.compat.tf1.operations.control_flow import cond


def get_variable_collections(variables_collections: Any, name: str) -> list[str]:
    """The collections for a variable, from a list or by its name."""
    if isinstance(variables_collections, Mapping):
        variables_collections = variables_collections.get(name)
    if variables_collections is None:
        return []
    return [variables_collections] if isinstance(variables_collections, str) else list(variables_collections)


def of_model(variables_collections: Any) -> Callable[[str], list[str]]:
    """Return, for the name of a model's variable, all of its collections."""
    return lambda name: [
        GraphKeys.GLOBAL_VARIABLES,
        GraphKeys.MODEL_VARIABLES,
        *get_variable_collections(variables_collections, name),
    ]


def collect_named_outputs(collections: Any, alias: str, outputs: Any) -> Any:
    """Give outputs a further name, and collect them. Returns them."""
    outputs.aliases = [*getattr(outputs, "aliases", []), alias]
    outputs.alias = alias
    for name in [collections] if isinstance(collections, str) else collections or []:
        get_default_graph().add_to_collection(name, outputs)
    return outputs


def convert_collection_to_dict(collection: str, clear_collection: bool = False) -> OrderedDict[str, Any]:
    """What was collected, by the names that it was given."""
    found = get_default_graph().get_collection_ref(collection)
    result = OrderedDict((getattr(one, "alias", None) or one.op.name, one) for one in found)
    if clear_collection:
        found.clear()
    return result


def smart_cond(
    pred: Any,
    true_fn: Callable[[], Any] | None = None,
    false_fn: Callable[[], Any] | None = None,
    name: str | None = None,
    fn1: Callable[[], Any] | None = None,
    fn2: Callable[[], Any] | None = None,
) -> Any:
    """One of two branches, at once if the condition is known.

    Raises:
      TypeError: a branch is not callable.
    """
    fn1, fn2 = true_fn or fn1, false_fn or fn2
    if not callable(fn1) or not callable(fn2):
        raise TypeError("true_fn and false_fn must be callable.")
    known = known_training(pred)
    return cond(pred, fn1, fn2, name=name) if known is None else fn1() if known else fn2()


def smart_case(
    pred_fn_pairs: Any, default: Callable[[], Any] | None = None, exclusive: bool = False, name: str = "smart_case"
) -> Any:
    """The first of several branches whose condition is true, at once if that is known."""
    pairs = pred_fn_pairs.items() if isinstance(pred_fn_pairs, Mapping) else pred_fn_pairs
    open_pairs = []
    for pred, function in pairs:
        known = constant_value(pred)
        if known is None:
            open_pairs.append((pred, function))
        elif known:
            default = function
            break
    if not open_pairs and default is not None:
        return default()
    return case(open_pairs, default, exclusive, name=name)


def constant_value(value: Any) -> Any:
    """The value of a condition, if it is known."""
    return value if isinstance(value, bool) else known_value(value)


def last_dimension(shape: Any, min_rank: int = 1) -> int | None:
    """The last size of a shape."""
    if shape.ndims is None or shape.ndims < min_rank:
        raise ValueError(f"rank of shape must be at least {min_rank} not: {shape.ndims}")
    found: int | None = shape.as_list()[-1]
    return found
