"""`tf.contrib.session_bundle.exporter`: how models were exported before `tf.saved_model`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainband.compat.tf1.graphs.default_session import get_default_session
from trainband.compat.tf1.protos.graph import SignatureDef
from trainband.compat.tf1.saved_models.builder import SavedModelBuilder
from trainband.compat.tf1.saved_models.constants import SERVING
from trainband.compat.tf1.saved_models.signatures import (
    build_signature_def,
    build_tensor_info,
    classification_signature_def,
    regression_signature_def,
)


def generic_signature(name_tensor_map: Mapping[str, Any]) -> SignatureDef:
    """Make a signature of any tensors."""
    return build_signature_def({name: build_tensor_info(tensor) for name, tensor in name_tensor_map.items()})


def classification_signature(input_tensor: Any, classes_tensor: Any = None, scores_tensor: Any = None) -> SignatureDef:
    """Make a signature of a classifier."""
    return classification_signature_def(input_tensor, classes_tensor, scores_tensor)


def regression_signature(input_tensor: Any, output_tensor: Any) -> SignatureDef:
    """Make a signature of a regression."""
    return regression_signature_def(input_tensor, output_tensor)


class Exporter:
    """Writes exports of a model's versions, as `tf.saved_model` does.

    Args:
      saver: says which variables are exported.
    """

    def __init__(self, saver: Any) -> None:
        self._saver = saver
        self._signatures: dict[str, SignatureDef] = {}

    def init(
        self,
        graph_def: Any = None,
        init_op: Any = None,
        clear_devices: bool = False,
        default_graph_signature: SignatureDef | None = None,
        named_graph_signatures: Mapping[str, SignatureDef] | None = None,
        *_: Any,
        **__: Any,
    ) -> None:
        """Notes the signatures."""
        del graph_def, init_op, clear_devices
        default = {} if default_graph_signature is None else {"default": default_graph_signature}
        self._signatures = {**default, **(named_graph_signatures or {})}

    def export(self, export_dir_base: Any, global_step_tensor: Any, sess: Any = None, *_: Any, **__: Any) -> str:
        """Write a version into a folder of its number, and return the folder."""
        session = sess if sess is not None else get_default_session()
        folder = Path(str(export_dir_base)) / f"{int(session.run(global_step_tensor)):08d}"
        builder = SavedModelBuilder(folder)
        builder.add_meta_graph_and_variables(session, [SERVING], self._signatures, saver=self._saver)
        builder.save()
        return str(folder)
