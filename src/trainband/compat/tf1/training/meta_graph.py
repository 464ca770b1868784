"""MetaGraphDef: a graph with its collections, to be stored and recorded again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from google.protobuf.message import DecodeError

from trainband.compat.tf1.graphs.graph import Graph, Operation, Tensor, get_default_graph
from trainband.compat.tf1.graphs.graph_keys import GraphKeys
from trainband.compat.tf1.graphs.node_settings import REGION, SETTINGS, renamed
from trainband.compat.tf1.graphs.variable import Variable
from trainband.compat.tf1.operations.importing import import_graph_def
from trainband.compat.tf1.protos.graph import MetaGraphDef, NodeDef, VariableDef
from trainband.compat.tf1.protos.version import GIT_VERSION, VERSION
from trainband.runtime.regular_files import READ_WHOLE, read_regular, write_regular

UNBOUND = "$unbound_inputs_"
"""Prefix of the name of an input from outside the exported scope."""
_log = logging.getLogger("tensorflow")


def export_meta_graph(
    filename: Any = None,
    meta_info_def: Any = None,
    graph_def: Any = None,
    saver_def: Any = None,
    collection_list: Any = None,
    as_text: bool = False,
    graph: Graph | None = None,
    export_scope: str | None = None,
    clear_devices: bool = False,
    clear_extraneous_savers: bool = False,
    strip_default_attrs: bool = False,
    save_debug_info: bool = False,
) -> Any:
    """Describe a graph with its collections, and with `filename` write that; see `import_meta_graph`."""
    del save_debug_info
    return export_scoped_meta_graph(
        filename, graph_def, graph, export_scope, as_text, clear_devices=clear_devices, saver_def=saver_def,
        clear_extraneous_savers=clear_extraneous_savers, strip_default_attrs=strip_default_attrs,
        meta_info_def=meta_info_def, collection_list=collection_list,
    )[0]  # fmt: skip


def create_meta_graph_def(
    meta_info_def: Any = None,
    graph_def: Any = None,
    saver_def: Any = None,
    collection_list: Any = None,
    graph: Graph | None = None,
    export_scope: str | None = None,
    exclude_nodes: Any = None,
    clear_extraneous_savers: bool = False,
    strip_default_attrs: bool = False,
) -> Any:
    """Describe a graph with its collections.

    Raises:
      TypeError: the graph is none.
    """
    del exclude_nodes, clear_extraneous_savers
    if graph is not None and not isinstance(graph, Graph):
        raise TypeError(f"graph must be of type Graph, not {type(graph)}")
    graph = graph or get_default_graph()
    made = MetaGraphDef()
    if meta_info_def is not None:
        made.meta_info_def.CopyFrom(meta_info_def)
    info = made.meta_info_def
    info.tensorflow_version, info.tensorflow_git_version = VERSION, GIT_VERSION
    info.stripped_default_attrs = strip_default_attrs
    made.graph_def.CopyFrom(graph.as_graph_def() if graph_def is None else graph_def)
    if saver_def is not None:
        made.saver_def.CopyFrom(saver_def)
    keys = graph.get_all_collection_keys() if collection_list is None else collection_list
    for key in keys:
        if key != GraphKeys.SAVERS:  # `saver_def` describes the one that is stored
            _collect(made, key, graph.get_collection(key), _prefix(export_scope))
    return made


def export_scoped_meta_graph(
    filename: Any = None,
    graph_def: Any = None,
    graph: Graph | None = None,
    export_scope: str | None = None,
    as_text: bool = False,
    unbound_inputs_col_name: str | None = "unbound_inputs",
    clear_devices: bool = False,
    saver_def: Any = None,
    clear_extraneous_savers: bool = False,
    strip_default_attrs: bool = False,
    **more: Any,
) -> tuple[Any, dict[str, Variable]]:
    """Describe a graph, or what is in one of its scopes, without the scope. Returns that and its variables by name."""
    graph = graph or get_default_graph()
    prefix = _prefix(export_scope)
    made = create_meta_graph_def(
        graph_def=graph_def, graph=graph, export_scope=export_scope, saver_def=saver_def,
        clear_extraneous_savers=clear_extraneous_savers, strip_default_attrs=strip_default_attrs, **more,
    )  # fmt: skip
    unbound: list[str] = []
    if prefix:
        inside = [_without(node, prefix, unbound) for node in made.graph_def.node if node.name.startswith(prefix)]
        del made.graph_def.node[:]
        made.graph_def.node.extend(inside)
        if unbound_inputs_col_name is not None:
            made.collection_def[unbound_inputs_col_name].bytes_list.value.extend(one.encode() for one in unbound)
    if clear_devices:
        for node in made.graph_def.node:
            node.device = ""
    if filename:
        path = Path(str(filename))
        path.parent.mkdir(parents=True, exist_ok=True)
        write_regular(path, text_format.MessageToString(made).encode() if as_text else made.SerializeToString())
    found = graph.get_collection("variables", export_scope)
    return made, {variable.name.removeprefix(prefix): variable for variable in found}


def import_scoped_meta_graph(
    meta_graph_or_file: Any,
    clear_devices: bool = False,
    graph: Graph | None = None,
    import_scope: str | None = None,
    input_map: Mapping[str, Any] | None = None,
    unbound_inputs_col_name: str = "unbound_inputs",
    restore_collections_predicate: Callable[[str], bool] = lambda _: True,
) -> dict[str, Variable]:
    """Record a stored graph again, with its collections. Returns its variables, by their names without the scope.

    Raises:
      ValueError: it takes inputs from outside that `input_map` does not have.
    """
    stored = as_meta_graph(meta_graph_or_file)
    if unbound_inputs_col_name in stored.collection_def:
        unbound = [one.decode() for one in stored.collection_def[unbound_inputs_col_name].bytes_list.value]
        if missing := [one for one in unbound if one not in (input_map or {})]:
            raise ValueError(f"Graph contains unbound inputs: {missing}. Must provide these inputs through input_map.")
        input_map = {key: value for key, value in (input_map or {}).items() if key in unbound or "$" not in key}
    graph = graph or get_default_graph()
    graph_def = stored.graph_def
    if clear_devices:
        graph_def = type(graph_def).FromString(graph_def.SerializeToString())
        for node in graph_def.node:
            node.device = ""
    with graph.as_default():
        prefix = _prefix(graph.unique_name(import_scope or "", mark_as_used=False))
        import_graph_def(graph_def, input_map, name=import_scope or prefix)
        for key, contents in stored.collection_def.items():
            if key != unbound_inputs_col_name and restore_collections_predicate(key):
                for item in _items(contents, graph, prefix):
                    graph.add_to_collection(key, item)
    found = graph.get_collection("variables", prefix)
    return {variable.name.removeprefix(prefix): variable for variable in found}


def as_meta_graph(meta_graph_or_file: Any) -> Any:
    """A MetaGraphDef, read if it is the name of a file."""
    if isinstance(meta_graph_or_file, MetaGraphDef):
        return meta_graph_or_file
    if hasattr(meta_graph_or_file, "SerializeToString"):
        return MetaGraphDef.FromString(meta_graph_or_file.SerializeToString())
    return read_meta_graph_file(meta_graph_or_file)


def read_meta_graph_file(filename: Any) -> Any:
    """Read a MetaGraphDef, binary or text.

    Raises:
      OSError: there is no such file, or it is none.
    """
    path = Path(str(filename))
    if not path.is_file():
        raise OSError(f"File {filename} does not exist.")
    content = read_regular(path, READ_WHOLE)
    try:
        return MetaGraphDef.FromString(content)
    except DecodeError:
        try:
            return text_format.Parse(content.decode(), MetaGraphDef())
        except (text_format.ParseError, UnicodeDecodeError) as exc:
            raise OSError(f"Cannot parse file {filename}: {exc}.") from exc


def _prefix(scope: str | None) -> str:
    return f"{scope.rstrip('/')}/" if scope and scope != "/" else ""


def _without(node: Any, prefix: str, unbound: list[str]) -> Any:
    """A node without the prefix of a scope. Its inputs from outside get names that `input_map` must give."""
    made = NodeDef()
    made.CopyFrom(node)
    made.name = node.name.removeprefix(prefix)
    del made.input[:]

    def rename(name: str) -> str:
        if name.startswith(prefix):
            return name.removeprefix(prefix)
        outside = f"{UNBOUND}{name}"
        if outside.removesuffix(":0") not in unbound:
            unbound.append(outside.removesuffix(":0"))
        return outside

    made.input.extend(rename(one) for one in node.input if not one.startswith("^"))
    control = [one for one in node.input if one.startswith(f"^{prefix}")]
    made.input.extend(f"^{one.removeprefix('^' + prefix)}" for one in control)
    if SETTINGS in made.attr:
        made.attr[SETTINGS].s = renamed(made.attr[SETTINGS].s, rename)
    if REGION in made.attr:
        made.attr[REGION].s = made.attr[REGION].s.decode().removeprefix(prefix).encode()
    return made


# --- collections


def _collect(made: Any, key: str, items: list[Any], prefix: str) -> None:
    kept = [one for one in items if not prefix or str(getattr(one, "name", prefix)).startswith(prefix)]
    if not kept:
        return
    kinds = {_kind_of(one) for one in kept}
    if kinds == {None} or len(kinds) > 1:
        _log.info("The collection %s cannot be stored: it has items of %s.", key, {type(one).__name__ for one in kept})
        return
    kind = kinds.pop()
    getattr(made.collection_def[key], str(kind)).value.extend(_stored(one, prefix) for one in kept)


def _kind_of(item: Any) -> str | None:
    if isinstance(item, Variable | str | bytes):
        return "bytes_list"
    if isinstance(item, Tensor | Operation):
        return "node_list"
    if isinstance(item, int):
        return "int64_list"
    return "float_list" if isinstance(item, float) else None


def _stored(item: Any, prefix: str) -> Any:
    if isinstance(item, Variable):
        return item.to_proto(prefix.rstrip("/")).SerializeToString()
    if isinstance(item, Tensor | Operation):
        return item.name.removeprefix(prefix)
    return item.encode() if isinstance(item, str) else item


def _items(contents: Any, graph: Graph, prefix: str) -> list[Any]:
    kind = contents.WhichOneof("kind")
    values = list(getattr(contents, kind).value) if kind else []
    if kind == "node_list":
        return [graph.as_graph_element(f"{prefix}{one}") for one in values]
    if kind == "bytes_list":
        return [_variable(one, graph, prefix) or one for one in values]
    return values


def _variable(content: bytes, graph: Graph, prefix: str) -> Variable | None:
    try:
        stored = VariableDef.FromString(content)
    except DecodeError:
        return None
    name = f"{prefix}{stored.variable_name}".removesuffix(":0")
    return Variable.from_proto(stored, prefix) if stored.initializer_name and name in graph.variables else None
