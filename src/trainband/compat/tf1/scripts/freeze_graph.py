"""Freeze a stored graph with the values of a checkpoint: `tensorflow.python.tools.freeze_graph`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.protobuf import text_format

from trainband.compat.checkpoints.files import read_checkpoint
from trainband.compat.tf1.graphs.graph import Graph
from trainband.compat.tf1.operations.importing import import_graph_def
from trainband.compat.tf1.protos.graph import GraphDef
from trainband.compat.tf1.saved_models.loader import load
from trainband.compat.tf1.scripts.graph_util import convert_variables_to_constants
from trainband.compat.tf1.sessions.session import Session
from trainband.compat.tf1.training.meta_graph import as_meta_graph
from trainband.compat.tf1.training.saver import Saver
from trainband.runtime.regular_files import READ_WHOLE, read_regular, write_regular


def freeze_graph(
    input_graph: Any,
    input_saver: Any,
    input_binary: bool,
    input_checkpoint: Any,
    output_node_names: str,
    restore_op_name: Any,
    filename_tensor_name: Any,
    output_graph: Any,
    clear_devices: bool,
    initializer_nodes: str,
    variable_names_whitelist: str = "",
    variable_names_blacklist: str = "",
    input_meta_graph: Any = None,
    input_saved_model_dir: Any = None,
    saved_model_tags: str = "serve",
    **more: Any,
) -> Any:
    """Write a graph with constants for the variables of a checkpoint, and return its GraphDef.

    Args:
      input_graph: the file of a GraphDef; else `input_meta_graph` or `input_saved_model_dir` has it.
      input_binary: whether that is not text.
      output_node_names: what is kept, with all that it needs; separated by commas.
      initializer_nodes: what runs before, separated by commas.
      output_graph: the file to write; nothing is written if it is empty.
    """
    del input_saver, restore_op_name, filename_tensor_name, more
    graph = Graph()
    with graph.as_default(), Session(graph=graph) as session:
        if input_saved_model_dir:
            load(session, saved_model_tags.replace(" ", "").split(","), input_saved_model_dir)
        else:
            stored = as_meta_graph(input_meta_graph).graph_def if input_meta_graph else _read(input_graph, input_binary)
            if clear_devices:
                for node in stored.node:
                    node.device = ""
            import_graph_def(stored, name="")
            held = read_checkpoint(str(input_checkpoint)) if graph.variables else {}
            saved = {name: one for name, one in graph.variables.items() if name in held}
            Saver(saved, allow_empty=True).restore(session, input_checkpoint)
        if initializer_nodes:
            session.run(initializer_nodes.replace(" ", "").split(","))
        found = convert_variables_to_constants(
            session,
            graph.as_graph_def(),
            output_node_names.replace(" ", "").split(","),
            variable_names_whitelist.replace(" ", "").split(",") if variable_names_whitelist else None,
            variable_names_blacklist.replace(" ", "").split(",") if variable_names_blacklist else None,
        )
    if output_graph:
        write_regular(Path(str(output_graph)), found.SerializeToString())
    return found


def _read(path: Any, binary: bool) -> Any:
    content = read_regular(str(path), READ_WHOLE)
    return GraphDef.FromString(content) if binary else text_format.Parse(content.decode(), GraphDef())
