"""`tf.keras.estimator.model_to_estimator`: a compiled model as the model function of an estimator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from trainband.compat.ops import math
from trainband.compat.ops.dtypes import float32
from trainband.compat.tf1.estimators.estimator import Estimator
from trainband.compat.tf1.estimators.spec import EstimatorSpec, ModeKeys
from trainband.compat.tf1.graphs.graph import get_default_graph
from trainband.compat.tf1.graphs.nest import flatten
from trainband.compat.tf1.graphs.record import convert
from trainband.compat.tf1.models import losses, metrics, named, phase
from trainband.compat.tf1.models.layer import because_of
from trainband.compat.tf1.models.model import clone_model
from trainband.compat.tf1.models.program import _by_shape, by_output, metrics_by_output, title
from trainband.compat.tf1.operations import metrics as streaming
from trainband.compat.tf1.operations.control_flow import group
from trainband.compat.tf1.operations.recorder import recorded
from trainband.compat.tf1.training.global_step import get_global_step


def model_to_estimator(
    keras_model: Any = None,
    keras_model_path: Any = None,
    custom_objects: Any = None,
    model_dir: Any = None,
    config: Any = None,
    **more: Any,
) -> Estimator:
    """An estimator of a compiled model; its variables begin with the model's values, if those have been set.

    Raises:
      ValueError: there is no model, or it is not compiled.
    """
    del custom_objects, more
    if keras_model is None:
        raise ValueError(
            "model_to_estimator needs keras_model: a file does not say how a model is compiled."
            if keras_model_path is not None
            else "Either `keras_model` or `keras_model_path` needs to be provided."
        )
    settings = keras_model._settings  # noqa: SLF001 - of the same package
    if settings is None:
        raise ValueError("The given keras model has not been compiled yet. Please compile the model first.")
    first = _values_of(keras_model)
    dtypes = {one.op.name: one.dtype for one in keras_model.__dict__.get("inputs") or ()}

    def model_fn(features: Any, labels: Any, mode: str) -> EstimatorSpec:
        phase.set_learning_phase(mode == ModeKeys.TRAIN)
        given = _inputs(features, dtypes)
        model = clone_model(keras_model, given)
        if not model.__dict__.get("outputs"):
            outputs = model(given if len(given) > 1 else given[0])
            model.inputs, model.outputs = list(given), flatten(outputs)
        _begin_with(model, first)
        names = keras_model.output_names if keras_model.__dict__.get("outputs") else model.output_names
        predictions = dict(zip(names, model.outputs, strict=True))
        if mode == ModeKeys.PREDICT:
            return EstimatorSpec(mode, predictions=predictions)
        targets = _targets(labels, names)
        wanted, factors = by_output(settings.loss, names), by_output(settings.loss_weights, names)
        terms = []
        for target, output, loss, factor in zip(targets, model.outputs, wanted, factors, strict=True):
            if loss is not None:
                found = convert(losses.get(loss)(target, output))
                term = losses.weighted(found)
                terms.append(term if factor is None else term * float(factor))
        terms += [convert(one) for one in model.losses]
        total = sum(terms[1:], terms[0])
        measured = {}
        for name, own, target, output, loss in zip(
            names, metrics_by_output(settings.metrics, names), targets, model.outputs, wanted, strict=True
        ):
            for one in own:
                shown = f"{name}_{_title(one)}" if len(names) > 1 else _title(one)
                measured[shown] = _metric(one, target, output, loss)
        if mode == ModeKeys.EVAL:
            return EstimatorSpec(mode, predictions=predictions, loss=total, eval_metric_ops=measured)
        optimizer = settings.optimizer.again() if hasattr(settings.optimizer, "again") else settings.optimizer
        step = optimizer.minimize(total, global_step=get_global_step(), var_list=model.trainable_weights)
        updates = [*because_of(model.updates, None), *because_of(model.updates, flatten(list(given)))]
        return EstimatorSpec(
            mode, predictions=predictions, loss=total, train_op=group(step, *dict.fromkeys(updates))
        )  # fmt: skip

    return Estimator(model_fn, model_dir=model_dir, config=config)


def _values_of(model: Any) -> list[Any] | None:
    """The values of a model's variables, if they have any in the session that Keras runs in."""
    variables = model.weights
    if not variables:
        return None
    session: Any = phase.current_session()
    store = getattr(session, "store", None)
    if store is None or variables[0].graph is not get_default_graph() or store.missing(variables):
        return None
    return list(session.run([one.handle for one in variables]))


def _begin_with(model: Any, values: list[Any] | None) -> None:
    for variable, value in zip(model.weights, values or [], strict=False):
        variable.begin_with(value)


def _inputs(features: Any, dtypes: Mapping[str, Any]) -> list[Any]:
    names = list(dtypes)
    if isinstance(features, Mapping):
        if names and not set(names) <= set(features):
            raise ValueError(f"The features are {sorted(features)}, but the model's inputs are {names}.")
        given = [features[name] for name in names or features]
    else:
        given = list(features) if isinstance(features, list | tuple) else [features]
    tensors = [convert(one) for one in given]
    wanted = list(dtypes.values()) or [float32] * len(tensors)
    return [
        recorded(math.cast)(one, kind) if one.dtype != kind else one
        for one, kind in zip(tensors, wanted, strict=True)
    ]  # fmt: skip


def _targets(labels: Any, names: list[str]) -> list[Any]:
    if isinstance(labels, Mapping):
        return [convert(labels[name] if name in labels else next(iter(labels.values()))) for name in names]
    return [convert(one) for one in (labels if isinstance(labels, list | tuple) else [labels])]


def _title(metric: Any) -> str:
    """An estimator's name for a metric: `accuracy` is not shortened."""
    return "accuracy" if metric in ("accuracy", "acc") else title(metric)


def _metric(metric: Any, target: Any, output: Any, loss: Any) -> tuple[Any, Any]:
    function = metrics.get(_by_shape(metric, output, loss) if metric in ("accuracy", "acc") else metric)
    if isinstance(function, metrics.Metric):
        args, kwargs = function._made_with  # noqa: SLF001 - of the same package
        made = type(function)(*args, **kwargs)  # one for this graph
        update = made.update_state(target, output)
        return made.result(), update
    return streaming.mean(function(target, output))


# --- parts of `tf.keras.utils`


@contextmanager
def custom_object_scope(*objects: Mapping[str, Any]) -> Iterator[None]:
    """Makes the script's own functions known by name."""
    with named.known(*objects):
        yield


def multi_gpu_model(model: Any, gpus: Any = None, **more: Any) -> Any:
    """The same model: one device computes it."""
    del gpus, more
    return model
