"""MetaGraphDef: a description of a graph in a file. No graph can be made from it: the script makes the graph."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

from trainband.compat.tf1.graphs.errors import UnimplementedError
from trainband.compat.tf1.graphs.graph import Graph, get_default_graph
from trainband.compat.tf1.graphs.graph_def import GraphDef


@dataclass(frozen=True, slots=True)
class MetaGraphDef:
    """A graph's operations, and the names in its collections."""

    graph_def: GraphDef
    collection_def: dict[str, list[str]]


def export_meta_graph(filename: Any = None, graph: Graph | None = None, **_: Any) -> MetaGraphDef:
    """Describe a graph, and with `filename` write that as JSON."""
    graph = graph or get_default_graph()
    lists = {str(key): graph.get_collection(key) for key in graph.get_all_collection_keys()}
    names = {key: [str(getattr(one, "name", one)) for one in items] for key, items in lists.items()}
    made = MetaGraphDef(graph.as_graph_def(), names)
    if filename:
        Path(str(filename)).write_text(json.dumps(asdict(made), indent=1), encoding="utf-8")
    return made


def import_meta_graph(meta_graph_or_file: Any, *_: Any, **__: Any) -> NoReturn:
    """Not supported.

    Raises:
      UnimplementedError: always.
    """
    raise UnimplementedError(
        None,
        None,
        f"import_meta_graph({meta_graph_or_file!r}): a stored graph cannot be made again. Run the code that built the "
        "graph, and restore the variables by tf.train.Saver().restore(session, checkpoint)",
    )
