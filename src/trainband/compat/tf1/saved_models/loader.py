"""Read a SavedModel into a session's graph."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from google.protobuf.message import DecodeError

from trainband.compat.checkpoints.files import checkpoint_exists
from trainband.compat.tf1.protos.graph import SavedModel
from trainband.compat.tf1.saved_models import constants
from trainband.compat.tf1.training.saver import import_meta_graph
from trainband.runtime.regular_files import READ_WHOLE, read_regular


def maybe_saved_model_directory(export_dir: Any) -> bool:
    """Whether a directory holds a SavedModel."""
    return any(
        (Path(os.fsdecode(export_dir)) / name).is_file()
        for name in (constants.SAVED_MODEL_FILENAME_PB, constants.SAVED_MODEL_FILENAME_PBTXT)
    )


def load(sess: Any, tags: Sequence[str], export_dir: Any, import_scope: str | None = None, **saver_kwargs: Any) -> Any:
    """Record the graph of a SavedModel that has these tags, and restore its variables.

    Returns:
      The `MetaGraphDef`, whose `signature_def` names the inputs and outputs.

    Raises:
      OSError: there is no SavedModel.
      RuntimeError: it has no graph with these tags, or several.
      ValueError: TensorFlow has written it: its variables are not in trainband's form.
    """
    stored = read_saved_model(export_dir)
    wanted = {tags} if isinstance(tags, str) else set(tags)
    found = [meta for meta in stored.meta_graphs if set(meta.meta_info_def.tags) == wanted]
    if len(found) != 1:
        there = [sorted(meta.meta_info_def.tags) for meta in stored.meta_graphs]
        raise RuntimeError(
            f"MetaGraphDef associated with tags {sorted(wanted)} could not be found in SavedModel {export_dir}, which "
            f"has {there}."
        )
    prefix = Path(os.fsdecode(export_dir)) / constants.VARIABLES_DIRECTORY / constants.VARIABLES_FILENAME
    with sess.graph.as_default():
        saver = import_meta_graph(found[0], import_scope=import_scope, **saver_kwargs)
        if saver is not None and saver.variables():
            if not checkpoint_exists(prefix):
                raise ValueError(f"{prefix} is not a checkpoint of trainband, which does not read TensorFlow's files.")
            saver.restore(sess, prefix)
        for key in (constants.MAIN_OP_KEY, constants.LEGACY_INIT_OP_KEY):
            if key in found[0].collection_def:
                sess.run(sess.graph.get_collection(key))
                break
    return found[0]


def read_saved_model(export_dir: Any) -> Any:
    """Read the messages of a SavedModel.

    Raises:
      OSError: there is none, or it is damaged.
    """
    directory = Path(os.fsdecode(export_dir))
    binary, text = directory / constants.SAVED_MODEL_FILENAME_PB, directory / constants.SAVED_MODEL_FILENAME_PBTXT
    try:
        if binary.is_file():
            return SavedModel.FromString(read_regular(binary, READ_WHOLE))
        if text.is_file():
            return text_format.Parse(read_regular(text, READ_WHOLE).decode(), SavedModel())
    except (DecodeError, text_format.ParseError) as exc:
        raise OSError(f"Cannot parse file {binary if binary.is_file() else text}: {exc}.") from exc
    raise OSError(
        f"SavedModel file does not exist at: {export_dir}/"
        f"{{{constants.SAVED_MODEL_FILENAME_PBTXT}|{constants.SAVED_MODEL_FILENAME_PB}}}"
    )
