"""Exporters, which say that models are not exported, and what else `tf.estimator.export` holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainband.compat.tf1.scripts import logging


class Exporter:
    """Would export a model after an evaluation. There is no such form of a model here: a line says so, once."""

    def __init__(self, name: str | None = None, serving_input_receiver_fn: Any = None, *_: Any, **__: Any) -> None:
        if name is not None and not isinstance(name, str):
            raise TypeError(f"The name of an exporter must be a string, got {name!r}.")
        self.name = name or "best_exporter"
        """Its name."""
        self._receiver = serving_input_receiver_fn
        self._said = False

    def export(
        self,
        estimator: Any,
        export_path: Any,  # noqa: ARG002
        checkpoint_path: Any,
        eval_result: Any,  # noqa: ARG002
        is_the_final_export: bool,  # noqa: ARG002
    ) -> None:
        """Says that nothing is exported."""
        if not self._said:
            self._said = True
            logging.warning(
                "%s %s: SavedModels are not written here; the values of the model are in %s.",
                type(self).__name__,
                self.name,
                checkpoint_path or estimator.model_dir,
            )


class LatestExporter(Exporter):
    """Would export after each evaluation."""


class FinalExporter(Exporter):
    """Would export at the end."""


class BestExporter(Exporter):
    """Would export after each evaluation that is better than all before."""


class ServingInputReceiver:
    """The inputs of an exported model."""

    def __init__(self, features: Any, receiver_tensors: Any, receiver_tensors_alternatives: Any = None) -> None:
        self.features, self.receiver_tensors = features, receiver_tensors
        self.receiver_tensors_alternatives = receiver_tensors_alternatives


TensorServingInputReceiver = ServingInputReceiver


class ExportOutput:
    """A group of outputs of an exported model."""

    def __init__(self, *values: Any, **named: Any) -> None:
        self.values = values
        self.__dict__.update(named)


class PredictOutput(ExportOutput):
    """Any outputs."""


class ClassificationOutput(ExportOutput):
    """Classes and their scores."""


class RegressionOutput(ExportOutput):
    """One value for each example."""


def build_parsing_serving_input_receiver_fn(*_: Any, **__: Any) -> Callable[[], ServingInputReceiver]:
    """Return a function that would make the inputs of an exported model."""
    return _not_here


build_raw_serving_input_receiver_fn = build_parsing_serving_input_receiver_fn


def _not_here() -> ServingInputReceiver:
    raise NotImplementedError("Models are not exported here, so they have no serving inputs.")
