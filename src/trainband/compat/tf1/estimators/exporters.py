"""Exporters, which export models after evaluations, and what else `tf.estimator.export` holds."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trainband.compat.tf1.graphs.record import convert
from trainband.compat.tf1.input.parsing import parse_example
from trainband.compat.tf1.operations.array import placeholder
from trainband.compat.tf1.protos.graph import SignatureDef
from trainband.compat.tf1.saved_models.constants import DEFAULT_SERVING_SIGNATURE_DEF_KEY
from trainband.compat.tf1.saved_models.signatures import (
    classification_signature_def,
    predict_signature_def,
    regression_signature_def,
)
from trainband.runtime.overrides import override


class Exporter:
    """Exports a model after an evaluation, by `Estimator.export_savedmodel`.

    Args:
      name: what its exports are called: they go to `export/NAME` in the estimator's directory.
      serving_input_receiver_fn: makes the inputs of an exported model.
      exports_to_keep: how many of them are kept; `None`: all.

    Raises:
      ValueError: `exports_to_keep` is not positive.
    """

    def __init__(
        self,
        name: str,
        serving_input_receiver_fn: Any,
        assets_extra: Any = None,
        as_text: bool = False,
        exports_to_keep: int | None = None,
    ) -> None:
        if exports_to_keep is not None and exports_to_keep <= 0:
            raise ValueError("`exports_to_keep`, if provided, must be a positive number.")
        if not isinstance(name, str):
            raise TypeError(f"The name of an exporter must be a string, got {name!r}.")
        self.name = name
        """Its name."""
        self._receiver = serving_input_receiver_fn
        self._assets, self._as_text, self._keep = assets_extra, as_text, exports_to_keep

    def export(
        self, estimator: Any, export_path: Any, checkpoint_path: Any, eval_result: Any, is_the_final_export: bool
    ) -> Any:
        """Return the folder of the export; `None` if there is to be none."""
        if not self._is_wanted(eval_result, is_the_final_export):
            return None
        made = estimator.export_savedmodel(
            export_path, self._receiver, self._assets, self._as_text, checkpoint_path=checkpoint_path
        )
        numbered = sorted(
            (one for one in Path(str(export_path)).iterdir() if one.name.isdigit()), key=lambda one: one.name
        )
        for old in numbered[: -self._keep] if self._keep else ():
            shutil.rmtree(old)
        return made

    def _is_wanted(self, eval_result: Any, is_final: bool) -> bool:  # noqa: ARG002
        return True


class LatestExporter(Exporter):
    """Exports after each evaluation."""

    def __init__(
        self,
        name: str,
        serving_input_receiver_fn: Any,
        assets_extra: Any = None,
        as_text: bool = False,
        exports_to_keep: int | None = 5,
    ) -> None:
        super().__init__(name, serving_input_receiver_fn, assets_extra, as_text, exports_to_keep)


class FinalExporter(Exporter):
    """Exports at the end."""

    @override
    def _is_wanted(self, eval_result: Any, is_final: bool) -> bool:  # noqa: ARG002
        return is_final


class BestExporter(Exporter):
    """Exports after each evaluation that is better than all before.

    Args:
      compare_fn: of the best result so far and a new one: whether the new one is better. By default, whether its loss
        is smaller.
    """

    def __init__(
        self,
        name: str = "best_exporter",
        serving_input_receiver_fn: Any = None,
        event_file_pattern: Any = None,  # noqa: ARG002 - evaluations of earlier runs are not looked for
        compare_fn: Callable[[Any, Any], bool] | None = None,
        assets_extra: Any = None,
        as_text: bool = False,
        exports_to_keep: int | None = 5,
    ) -> None:
        super().__init__(name, serving_input_receiver_fn, assets_extra, as_text, exports_to_keep)
        self._compare = compare_fn or _has_smaller_loss
        self._best: Any = None

    @override
    def _is_wanted(self, eval_result: Any, is_final: bool) -> bool:  # noqa: ARG002
        if self._best is not None and not self._compare(self._best, eval_result):
            return False
        self._best = eval_result
        return True


def _has_smaller_loss(best_eval_result: Mapping[str, Any], current_eval_result: Mapping[str, Any]) -> bool:
    return bool(current_eval_result["loss"] < best_eval_result["loss"])


class ServingInputReceiver:
    """The inputs of an exported model.

    Args:
      features: what the model function gets.
      receiver_tensors: what is fed, by name; one tensor is called "input".
    """

    def __init__(self, features: Any, receiver_tensors: Any, receiver_tensors_alternatives: Any = None) -> None:
        self.features = features
        several = isinstance(receiver_tensors, Mapping)
        self.receiver_tensors = dict(receiver_tensors) if several else {"input": receiver_tensors}
        self.receiver_tensors_alternatives = receiver_tensors_alternatives


TensorServingInputReceiver = ServingInputReceiver


class ExportOutput:
    """A group of outputs of an exported model."""

    def signature(self, inputs: Mapping[str, Any]) -> SignatureDef:
        """Its signature, of a model with these inputs.

        Raises:
          NotImplementedError: a script's own output does not say it.
        """
        raise NotImplementedError


class PredictOutput(ExportOutput):
    """Any outputs: a dictionary of tensors, or one that is called "output"."""

    def __init__(self, outputs: Any) -> None:
        several = isinstance(outputs, Mapping)
        self.outputs = {str(name): convert(one) for name, one in (outputs if several else {"output": outputs}).items()}

    @override
    def signature(self, inputs: Mapping[str, Any]) -> SignatureDef:
        return predict_signature_def(inputs, self.outputs)


class ClassificationOutput(ExportOutput):
    """Classes and their scores.

    Raises:
      ValueError: neither is given.
    """

    def __init__(self, scores: Any = None, classes: Any = None) -> None:
        if scores is None and classes is None:
            raise ValueError("At least one of scores and classes must be set.")
        self.scores, self.classes = scores, classes

    @override
    def signature(self, inputs: Mapping[str, Any]) -> SignatureDef:
        return classification_signature_def(next(iter(inputs.values())), self.classes, self.scores)


class RegressionOutput(ExportOutput):
    """One value for each example."""

    def __init__(self, value: Any) -> None:
        self.value = value

    @override
    def signature(self, inputs: Mapping[str, Any]) -> SignatureDef:
        return regression_signature_def(next(iter(inputs.values())), self.value)


def signatures(inputs: Mapping[str, Any], outputs: Any, predictions: Any) -> dict[str, SignatureDef]:
    """Return the signatures of a model, whose only output is the default one.

    Args:
      outputs: what the model function calls `export_outputs`; without it, the predictions are exported.
    """
    found = dict(outputs or {DEFAULT_SERVING_SIGNATURE_DEF_KEY: PredictOutput(predictions)})
    if len(found) == 1:
        found.setdefault(DEFAULT_SERVING_SIGNATURE_DEF_KEY, next(iter(found.values())))
    return {name: one.signature(inputs) for name, one in found.items()}


def build_parsing_serving_input_receiver_fn(
    feature_spec: Mapping[str, Any], default_batch_size: int | None = None
) -> Callable[[], ServingInputReceiver]:
    """Return a function that makes inputs which parse `tf.Example` messages."""

    def receiver() -> ServingInputReceiver:
        serialized = placeholder("string", [default_batch_size], name="input_example_tensor")
        return ServingInputReceiver(parse_example(serialized, feature_spec), {"examples": serialized})

    return receiver


def build_raw_serving_input_receiver_fn(
    features: Mapping[str, Any], default_batch_size: int | None = None
) -> Callable[[], ServingInputReceiver]:
    """Return a function that makes placeholders like the features, of any number of examples."""

    def receiver() -> ServingInputReceiver:
        made = {}
        for name, one in features.items():
            sizes = convert(one).shape.as_list()
            made[name] = placeholder(one.dtype, [default_batch_size, *sizes[1:]], name=one.op.name)
        return ServingInputReceiver(made, made)

    return receiver
