"""`tf.saved_model`: exports of the variables' values, and a description of the graph, in trainband's own formats.

An export is the folder `variables`, which `tf.train.Saver` restores, and `saved_model.json`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from trainband.compat.tf1.graphs.errors import UnimplementedError
from trainband.compat.tf1.graphs.graph import get_default_graph
from trainband.compat.tf1.operations.control_flow import group
from trainband.compat.tf1.operations.state import local_variables_initializer, tables_initializer
from trainband.compat.tf1.scripts import logging
from trainband.compat.tf1.training.meta_graph import export_meta_graph
from trainband.compat.tf1.training.saver import Saver

SERVING, TRAINING, EVAL, GPU, TPU = "serve", "train", "eval", "gpu", "tpu"
DEFAULT_SERVING_SIGNATURE_DEF_KEY = "serving_default"
PREDICT_INPUTS = CLASSIFY_INPUTS = REGRESS_INPUTS = "inputs"
PREDICT_OUTPUTS = REGRESS_OUTPUTS = "outputs"
CLASSIFY_OUTPUT_CLASSES, CLASSIFY_OUTPUT_SCORES = "classes", "scores"
PREDICT_METHOD_NAME = "tensorflow/serving/predict"
CLASSIFY_METHOD_NAME = "tensorflow/serving/classify"
REGRESS_METHOD_NAME = "tensorflow/serving/regress"
VARIABLES_DIRECTORY = VARIABLES_FILENAME = "variables"
SAVED_MODEL_FILENAME = "saved_model.json"
ASSETS_DIRECTORY = "assets"


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor of a signature."""

    name: str
    dtype: str
    tensor_shape: list[int | None] | None


@dataclass(frozen=True, slots=True)
class SignatureDef:
    """The inputs and outputs of one use of a model."""

    inputs: dict[str, TensorInfo] = field(default_factory=dict)
    outputs: dict[str, TensorInfo] = field(default_factory=dict)
    method_name: str = ""


def build_tensor_info(tensor: Any) -> TensorInfo:
    """Describe a tensor."""
    return TensorInfo(tensor.name, tensor.dtype.name, None if tensor.shape.ndims is None else tensor.shape.as_list())


def build_signature_def(
    inputs: Mapping[str, TensorInfo] | None = None,
    outputs: Mapping[str, TensorInfo] | None = None,
    method_name: str | None = None,
) -> SignatureDef:
    """Make a signature of described tensors."""
    return SignatureDef(dict(inputs or {}), dict(outputs or {}), method_name or "")


def predict_signature_def(inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> SignatureDef:
    """Make a signature of any tensors.

    Raises:
      ValueError: there are no inputs, or no outputs.
    """
    for what, tensors in (("inputs", inputs), ("outputs", outputs)):
        if not tensors:
            raise ValueError(f"Prediction {what} cannot be None or empty.")
    return SignatureDef(_described(inputs), _described(outputs), PREDICT_METHOD_NAME)


def classification_signature_def(examples: Any, classes: Any = None, scores: Any = None) -> SignatureDef:
    """Make a signature of a classifier."""
    outputs = {CLASSIFY_OUTPUT_CLASSES: classes, CLASSIFY_OUTPUT_SCORES: scores}
    there = {name: tensor for name, tensor in outputs.items() if tensor is not None}
    return SignatureDef(_described({CLASSIFY_INPUTS: examples}), _described(there), CLASSIFY_METHOD_NAME)


def regression_signature_def(examples: Any, predictions: Any) -> SignatureDef:
    """Make a signature of a regression."""
    outputs = _described({REGRESS_OUTPUTS: predictions})
    return SignatureDef(_described({REGRESS_INPUTS: examples}), outputs, REGRESS_METHOD_NAME)


def _described(tensors: Mapping[str, Any]) -> dict[str, TensorInfo]:
    return {name: build_tensor_info(tensor) for name, tensor in tensors.items()}


class SavedModelBuilder:
    """Writes an export. TensorFlow and TensorFlow Serving cannot read it, and a warning says so.

    Raises:
      AssertionError: the directory is not empty.
    """

    def __init__(self, export_dir: Any) -> None:
        self._directory = Path(_text(export_dir))
        if self._directory.is_dir() and any(self._directory.iterdir()):
            raise AssertionError(
                f"Export directory {self._directory} already exists, and isn't empty. Please choose a different export "
                "directory, or delete all the contents of the specified directory."
            )
        self._graphs: list[dict[str, Any]] = []

    def add_meta_graph_and_variables(
        self, sess: Any, tags: Iterable[str], signature_def_map: Any = None, *_: Any, saver: Any = None, **__: Any
    ) -> None:
        """Writes the values of the variables, and notes the graph and its signatures.

        Raises:
          AssertionError: that has been done already.
        """
        if self._graphs:
            raise AssertionError(
                "Graph state including variables and assets has already been saved. Please invoke `add_meta_graph()` "
                "instead."
            )
        folder = self._directory / VARIABLES_DIRECTORY
        folder.mkdir(parents=True, exist_ok=True)
        with sess.graph.as_default():
            saver = saver or Saver(allow_empty=True)
            saver.save(sess, folder / VARIABLES_FILENAME, write_meta_graph=False, write_state=False)
            self._note(tags, signature_def_map)

    def add_meta_graph(self, tags: Iterable[str], signature_def_map: Any = None, *_: Any, **__: Any) -> None:
        """Notes another graph, of the same variables.

        Raises:
          AssertionError: the variables have not been written yet.
        """
        if not self._graphs:
            raise AssertionError(
                "Graph state including variables and assets has not been saved yet. Please invoke "
                "`add_meta_graph_and_variables()` first."
            )
        self._note(tags, signature_def_map)

    def _note(self, tags: Iterable[str], signatures: Mapping[str, SignatureDef] | None) -> None:
        described = {name: asdict(signature) for name, signature in (signatures or {}).items()}
        graph = asdict(export_meta_graph(graph=get_default_graph()))
        self._graphs.append({"tags": sorted(tags), "signature_def": described, **graph})

    def save(self, as_text: bool = False) -> bytes:  # noqa: ARG002
        """Writes the description, and returns its path."""
        self._directory.mkdir(parents=True, exist_ok=True)
        path = self._directory / SAVED_MODEL_FILENAME
        path.write_text(json.dumps({"meta_graphs": self._graphs}, indent=1), encoding="utf-8")
        logging.warning(
            "%s has the values of the variables and a description of the graph. It is in trainband's formats, which "
            "TensorFlow and TensorFlow Serving cannot read.",
            self._directory,
        )
        return str(path).encode()


def simple_save(
    session: Any,
    export_dir: Any,
    inputs: Mapping[str, Any],
    outputs: Mapping[str, Any],
    legacy_init_op: Any = None,  # noqa: ARG001
) -> None:
    """Writes an export with one signature."""
    signatures = {DEFAULT_SERVING_SIGNATURE_DEF_KEY: predict_signature_def(inputs, outputs)}
    builder = SavedModelBuilder(export_dir)
    builder.add_meta_graph_and_variables(session, [SERVING], signatures)
    builder.save()


def maybe_saved_model_directory(export_dir: Any) -> bool:
    """Whether a directory has an export of trainband's."""
    return (Path(_text(export_dir)) / SAVED_MODEL_FILENAME).is_file()


contains_saved_model = maybe_saved_model_directory


def load(sess: Any, tags: Any, export_dir: Any, *_: Any, **__: Any) -> NoReturn:
    """Not supported.

    Raises:
      UnimplementedError: always.
    """
    del sess, tags
    path = Path(_text(export_dir)) / VARIABLES_DIRECTORY / VARIABLES_FILENAME
    raise UnimplementedError(
        None,
        None,
        f"A graph cannot be made from the export {_text(export_dir)}. Run the code that built the graph, and restore "
        f"the variables by tf.train.Saver().restore(session, {str(path)!r})",
    )


def main_op() -> Any:
    """Make the operation that initialises what is not saved."""
    return group(local_variables_initializer(), tables_initializer())


def _text(path: Any) -> str:
    return path.decode() if isinstance(path, bytes) else str(path)
