"""Write a SavedModel: `saved_model.pb` and, in `variables/`, a checkpoint."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from google.protobuf import text_format

from trainband.compat.tf1.graphs.errors import UnimplementedError
from trainband.compat.tf1.graphs.graph import get_default_graph
from trainband.compat.tf1.protos.graph import SavedModel
from trainband.compat.tf1.saved_models import constants
from trainband.compat.tf1.saved_models.signatures import predict_signature_def
from trainband.compat.tf1.scripts import logging
from trainband.compat.tf1.training.saver import Saver
from trainband.runtime.regular_files import write_regular


class SavedModelBuilder:
    """Collects graphs with their tags and signatures, and writes them into a directory of their own.

    The graphs are in trainband's form of a GraphDef, and the variables in its checkpoints: `load` reads them;
    TensorFlow does not.

    Raises:
      AssertionError: the directory has something in it.
    """

    def __init__(self, export_dir: Any) -> None:
        self._directory = Path(os.fsdecode(export_dir))
        if self._directory.is_dir() and any(self._directory.iterdir()):
            raise AssertionError(
                f"Export directory {export_dir} already exists, and isn't empty. Please choose a different export "
                "directory, or delete all the contents of the specified directory."
            )
        self._directory.mkdir(parents=True, exist_ok=True)
        self._made = SavedModel(saved_model_schema_version=constants.SAVED_MODEL_SCHEMA_VERSION)
        self._saver: Saver | None = None

    def add_meta_graph_and_variables(
        self,
        sess: Any,
        tags: Sequence[str],
        signature_def_map: Mapping[str, Any] | None = None,
        assets_collection: Any = None,
        legacy_init_op: Any = None,
        clear_devices: bool = False,
        main_op: Any = None,
        strip_default_attrs: bool = False,
        saver: Saver | None = None,
    ) -> None:
        """Adds the default graph, and writes a session's values of its variables.

        Raises:
          AssertionError: it is not the first graph.
          UnimplementedError: there are assets.
        """
        if self._saver is not None:
            raise AssertionError(
                "Graph state including variables and assets has already been saved. Please invoke "
                "`add_meta_graph()` instead."
            )
        folder = self._directory / constants.VARIABLES_DIRECTORY
        folder.mkdir(exist_ok=True)
        with sess.graph.as_default():
            self._saver = saver or Saver(allow_empty=True)
            self._saver.save(sess, folder / constants.VARIABLES_FILENAME, write_meta_graph=False, write_state=False)
            self.add_meta_graph(
                tags, signature_def_map, assets_collection, legacy_init_op, clear_devices, main_op, strip_default_attrs
            )

    def add_meta_graph(
        self,
        tags: Sequence[str],
        signature_def_map: Mapping[str, Any] | None = None,
        assets_collection: Any = None,
        legacy_init_op: Any = None,
        clear_devices: bool = False,
        main_op: Any = None,
        strip_default_attrs: bool = False,
        saver: Saver | None = None,
    ) -> None:
        """Adds the default graph, for the variables that were written with the first one.

        Raises:
          AssertionError: no variables have been written.
          UnimplementedError: there are assets.
        """
        if self._saver is None:
            raise AssertionError(
                "Graph state including variables and assets has not been saved yet. Please invoke "
                "`add_meta_graph_and_variables()` first."
            )
        if assets_collection:
            raise UnimplementedError(
                None, None, "A SavedModel with assets is not supported: write the files beside it."
            )
        graph = get_default_graph()
        for key, op in ((constants.MAIN_OP_KEY, main_op), (constants.LEGACY_INIT_OP_KEY, legacy_init_op)):
            graph.clear_collection(key)
            if op is not None:
                graph.add_to_collection(key, op)
        meta = (saver or self._saver).export_meta_graph(
            clear_devices=clear_devices, strip_default_attrs=strip_default_attrs
        )
        meta.meta_info_def.tags.extend(tags)
        for key, signature in (signature_def_map or {}).items():
            meta.signature_def[key].CopyFrom(signature)
        self._made.meta_graphs.append(meta)

    def save(self, as_text: bool = False) -> bytes:
        """Write the file, and return its path as bytes. A warning says that others cannot read it."""
        name = constants.SAVED_MODEL_FILENAME_PBTXT if as_text else constants.SAVED_MODEL_FILENAME_PB
        path = self._directory / name
        data = text_format.MessageToString(self._made).encode() if as_text else self._made.SerializeToString()
        write_regular(path, data)
        logging.warning(
            "%s is in trainband's form: tf.saved_model.loader.load reads it, which TensorFlow and TensorFlow Serving "
            "cannot.",
            self._directory,
        )
        return os.fsencode(path)


def simple_save(
    session: Any,
    export_dir: Any,
    inputs: Mapping[str, Any],
    outputs: Mapping[str, Any],
    legacy_init_op: Any = None,
) -> None:
    """Writes the graph of a session and the values of its variables as a SavedModel, for prediction."""
    builder = SavedModelBuilder(export_dir)
    builder.add_meta_graph_and_variables(
        session,
        [constants.SERVING],
        {constants.DEFAULT_SERVING_SIGNATURE_DEF_KEY: predict_signature_def(inputs, outputs)},
        legacy_init_op=legacy_init_op,
        clear_devices=True,
    )
    builder.save()
