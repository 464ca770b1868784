"""Estimator: a model function, and the directory of its checkpoints."""

from __future__ import annotations

import copy
import inspect
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from trainband.compat.checkpoints.files import (
    get_checkpoint_state,
    latest_checkpoint,
)
from trainband.compat.checkpoints.reader import list_variables, load_variable
from trainband.compat.tf1.estimators.evaluation import evaluate_once, write_results
from trainband.compat.tf1.estimators.exporters import signatures
from trainband.compat.tf1.estimators.inputs import TASK
from trainband.compat.tf1.estimators.run_config import RunConfig
from trainband.compat.tf1.estimators.spec import EstimatorSpec, ModeKeys
from trainband.compat.tf1.estimators.task import started
from trainband.compat.tf1.estimators.warm_start import WarmStartSettings
from trainband.compat.tf1.graphs.device import replica_device_setter
from trainband.compat.tf1.graphs.graph import Graph, get_default_graph
from trainband.compat.tf1.graphs.graph_keys import GraphKeys
from trainband.compat.tf1.operations.control_flow import group
from trainband.compat.tf1.operations.metrics import mean
from trainband.compat.tf1.operations.random import set_random_seed
from trainband.compat.tf1.operations.summary import scalar
from trainband.compat.tf1.saved_models.builder import SavedModelBuilder
from trainband.compat.tf1.saved_models.constants import SERVING
from trainband.compat.tf1.scripts import logging
from trainband.compat.tf1.sessions.session import Session
from trainband.compat.tf1.training.checkpoint_hook import CheckpointSaverHook
from trainband.compat.tf1.training.global_step import create_global_step, get_global_step
from trainband.compat.tf1.training.hooks import LoggingTensorHook, NanTensorHook, StopAtStepHook
from trainband.compat.tf1.training.monitored import MonitoredSession, MonitoredTrainingSession
from trainband.compat.tf1.training.saver import Saver
from trainband.compat.tf1.training.scaffold import ChiefSessionCreator
from trainband.compat.tf1.training.session_run_hook import SessionRunHook

_OF_MODEL_FN = ("features", "labels", "mode", "params", "config")


class Estimator:
    """Trains, evaluates and asks a model that a function builds.

    Args:
      model_fn: of `features` and, if it names them, `labels`, `mode`, `params` and `config`: an `EstimatorSpec`.
      model_dir: where checkpoints and summaries go; a temporary directory if neither this nor the config names one.
      config: how it runs; by default `RunConfig()`.
      params: for the model function.
      warm_start_from: a checkpoint, its directory, or `WarmStartSettings`: what the variables begin with.

    Raises:
      ValueError: the model function takes other arguments, or the config names another directory.
    """

    def __init__(
        self,
        model_fn: Callable[..., EstimatorSpec],
        model_dir: Any = None,
        config: RunConfig | None = None,
        params: Any = None,
        warm_start_from: Any = None,
    ) -> None:
        if model_fn is None:
            raise ValueError("model_fn must be provided to Estimator.")
        self._model_fn = model_fn
        self._arguments = _arguments(model_fn, params)
        if config is not None and not isinstance(config, RunConfig):
            raise ValueError(f"config must be an instance of `RunConfig`, but provided {config}.")
        self._config = _with_directory(config or RunConfig(), model_dir)
        self._params = copy.deepcopy(params) if isinstance(params, Mapping) else params
        self._warm_start = WarmStartSettings.of(warm_start_from)
        logging.info("Using config: %s", vars(self._config))

    # --- what it is

    @property
    def model_dir(self) -> str:
        """Where checkpoints and summaries go."""
        return str(self._config.model_dir)

    @property
    def config(self) -> RunConfig:
        """How it runs."""
        return self._config

    @property
    def params(self) -> Any:
        """A copy of what the model function is given."""
        return copy.deepcopy(self._params) if self._params is not None else {}

    @property
    def model_fn(self) -> Callable[..., EstimatorSpec]:
        """A function of features, labels, mode and config that builds the model."""

        def public(features: Any, labels: Any, mode: str, config: RunConfig) -> EstimatorSpec:
            return self._built(features, labels, mode, config)

        return public

    def get_variable_names(self) -> list[str]:
        """The names of what the newest checkpoint holds.

        Raises:
          ValueError: there is none.
        """
        return [name for name, _ in list_variables(self._trained())]

    def get_variable_value(self, name: str) -> Any:
        """One value of the newest checkpoint.

        Raises:
          ValueError: there is no checkpoint.
        """
        return load_variable(self._trained(), name)

    def latest_checkpoint(self) -> str | None:
        """The newest checkpoint; `None` where there is none."""
        return latest_checkpoint(self.model_dir)

    def eval_dir(self, name: str | None = None) -> str:
        """Where an evaluation's summaries go."""
        return str(Path(self.model_dir) / (f"eval_{name}" if name else "eval"))

    def _trained(self) -> str:
        path = self.latest_checkpoint()
        if path is None:
            raise ValueError(f"Could not find trained model in model_dir: {self.model_dir}.")
        return path

    # --- training

    def train(
        self,
        input_fn: Callable[..., Any],
        hooks: Sequence[SessionRunHook] | None = None,
        steps: int | None = None,
        max_steps: int | None = None,
        saving_listeners: Any = None,
    ) -> Estimator:
        """Trains until the inputs end, for a number of steps, or up to a global step. Returns itself.

        Raises:
          ValueError: both `steps` and `max_steps` are given, or one of them is not positive.
          TypeError: a hook or a listener is of the wrong kind.
        """
        if steps is not None and max_steps is not None:
            raise ValueError("Can not provide both steps and max_steps.")
        for name, value in (("steps", steps), ("max_steps", max_steps)):
            if value is not None and value <= 0:
                raise ValueError(f"Must specify {name} > 0, given: {value}")
        if max_steps is not None and self._step_so_far() >= max_steps:
            logging.info("Skipping training since max_steps has already saved.")
            return self
        every = [*_checked(hooks)]
        if steps is not None or max_steps is not None:
            every.append(StopAtStepHook(steps, max_steps))
        with self._graph(self._device()) as graph:
            graph.add_to_collection(TASK, self._config.global_id_in_cluster)
            features, labels = self._inputs(input_fn, ModeKeys.TRAIN)
            spec = self._built(features, labels, ModeKeys.TRAIN)
            loss = self._train(spec, every, list(saving_listeners or ()))
        logging.info("Loss for final step: %s.", loss)
        return self

    def _train(self, spec: EstimatorSpec, hooks: list[SessionRunHook], listeners: list[Any]) -> Any:
        graph, config = get_default_graph(), self._config
        if self._warm_start is not None and self.latest_checkpoint() is None:
            self._warm_start.apply()
        hooks = [*hooks, NanTensorHook(spec.loss)]
        if config.log_step_count_steps:
            shown = {"loss": spec.loss, "step": get_global_step()}
            hooks.append(LoggingTensorHook(shown, every_n_iter=config.log_step_count_steps))
        hooks += spec.training_hooks
        if not any(one.op.name == "loss" for one in graph.get_collection(GraphKeys.SUMMARIES)):
            scalar("loss", spec.loss)
        self._set_saver(spec)
        chief_hooks = list(spec.training_chief_hooks)
        master = started(config)
        savers = [hook for hook in (*hooks, *chief_hooks) if isinstance(hook, CheckpointSaverHook)]
        keeps = config.keeps_checkpoints
        if savers:
            savers[0]._listeners.extend(listeners)  # noqa: SLF001 - a script's hook gets them late
            keeps = {"save_checkpoint_secs": 0, "save_checkpoint_steps": None}
        elif any(keeps.values()) and (not master or listeners):
            chief_hooks.insert(
                0,
                CheckpointSaverHook(
                    self.model_dir,
                    config.save_checkpoints_secs or None,
                    config.save_checkpoints_steps or None,
                    scaffold=spec.scaffold,
                    listeners=listeners,
                ),
            )
            if not master:
                keeps = {"save_checkpoint_secs": 0, "save_checkpoint_steps": None}
        elif listeners:
            raise ValueError(
                "There should be a CheckpointSaverHook to use saving_listeners. Please set one of the "
                "RunConfig.save_checkpoints_steps or RunConfig.save_checkpoints_secs."
            )
        loss = None
        with MonitoredTrainingSession(
            master=master,
            is_chief=config.is_chief,
            checkpoint_dir=self.model_dir,
            scaffold=spec.scaffold,
            hooks=hooks,
            chief_only_hooks=chief_hooks,
            save_summaries_steps=config.save_summary_steps,
            config=config.session_config,
            log_step_count_steps=config.log_step_count_steps,
            **keeps,
        ) as session:
            while not session.should_stop():
                _, loss = session.run([spec.train_op, spec.loss])
        if loss is None:
            logging.warning("Training with estimator made no steps. Perhaps input is empty or misspecified.")
        return loss

    def _set_saver(self, spec: EstimatorSpec) -> None:
        if spec.scaffold.saver is not None or get_default_graph().get_collection(GraphKeys.SAVERS):
            return
        saver = Saver(
            max_to_keep=self._config.keep_checkpoint_max,
            keep_checkpoint_every_n_hours=self._config.keep_checkpoint_every_n_hours,
            defer_build=True,
        )
        get_default_graph().add_to_collection(GraphKeys.SAVERS, saver)
        if state := get_checkpoint_state(self.model_dir):
            saver.recover_last_checkpoints(state.all_model_checkpoint_paths)

    def _step_so_far(self) -> int:
        path = self.latest_checkpoint()
        return 0 if path is None else int(load_variable(path, "global_step"))

    def _device(self) -> Any:
        config = self._config
        if config.device_fn is not None or not config.num_ps_replicas:
            return config.device_fn
        task = f"/job:{config.task_type}/task:{config.task_id}"
        return replica_device_setter(worker_device=task, cluster=config.cluster_spec)

    # --- evaluating

    def evaluate(
        self,
        input_fn: Callable[..., Any],
        steps: int | None = None,
        hooks: Sequence[SessionRunHook] | None = None,
        checkpoint_path: str | None = None,
        name: str | None = None,
    ) -> dict[str, Any]:
        """Return the metrics, the mean `loss` and the `global_step`, by name.

        Args:
          steps: how many batches; `None`: until the inputs end.
          checkpoint_path: by default, the newest; where there is none, the variables are initialised.
          name: of this evaluation, where there are several.

        Raises:
          ValueError: the model has a metric `loss` itself, or `steps` is not positive.
        """
        if steps is not None and steps <= 0:
            raise ValueError(f"Must specify steps > 0, given: {steps}")
        path = checkpoint_path or self.latest_checkpoint()
        if path is None:
            logging.info(
                "Could not find trained model in model_dir: %s, running initialization to evaluate.", self.model_dir
            )
        with self._graph():
            features, labels = self._inputs(input_fn, ModeKeys.EVAL)
            spec = self._built(features, labels, ModeKeys.EVAL)
            if path is None and self._warm_start is not None:
                self._warm_start.apply()
            if "loss" in spec.eval_metric_ops:
                raise ValueError(
                    'Metric with name "loss" is not allowed, because Estimator already defines a default metric with '
                    "the same name."
                )
            metrics = {**spec.eval_metric_ops, "loss": mean(spec.loss)}
            update = group(*(one for _, one in metrics.values()))
            values = {key: _final(value) for key, (value, _) in metrics.items()}
            values.setdefault("global_step", get_global_step())
            everything = [*_checked(hooks), *spec.evaluation_hooks]
            results = evaluate_once(path, spec.scaffold, update, values, steps, everything, self._config.session_config)
        write_results(self.eval_dir(name), results, int(results["global_step"]), path)
        return results

    # --- asking

    def predict(
        self,
        input_fn: Callable[..., Any],
        predict_keys: Any = None,
        hooks: Sequence[SessionRunHook] | None = None,
        checkpoint_path: str | None = None,
        yield_single_examples: bool = True,
    ) -> Iterator[Any]:
        """Yield the predictions, one example at a time.

        Args:
          predict_keys: which of them.
          checkpoint_path: by default, the newest; where there is none, the variables are initialised.
          yield_single_examples: `False`: yield whole batches.

        Raises:
          ValueError: there are no predictions of these names, or batches of different sizes.
        """
        path = checkpoint_path or self.latest_checkpoint()
        if path is None:
            logging.info(
                "Could not find trained model in model_dir: %s, running initialization to predict.", self.model_dir
            )
        with self._graph():
            features = self._inputs(input_fn, ModeKeys.PREDICT)[0]
            if not any("source" in op.attributes for op in get_default_graph().operations):
                logging.warning(
                    "Input graph does not use tf.data.Dataset or contain a QueueRunner. That means predict yields "
                    "forever. This is probably a mistake."
                )
            spec = self._built(features, None, ModeKeys.PREDICT)
            wanted = _chosen(spec.predictions, predict_keys)
            if path is None and self._warm_start is not None:
                self._warm_start.apply()
            creator = ChiefSessionCreator(
                spec.scaffold, config=self._config.session_config, checkpoint_filename_with_path=path
            )
            monitored = MonitoredSession(creator, [*_checked(hooks), *spec.prediction_hooks])
        # The graph is no longer the default one when the caller gets control.
        with monitored as session:
            while not session.should_stop():
                batch = session.run(wanted)
                if not yield_single_examples:
                    yield batch
                elif not isinstance(batch, Mapping):
                    yield from batch
                else:
                    for place in range(_length(batch)):
                        yield {key: value[place] for key, value in batch.items()}

    def export_savedmodel(
        self,
        export_dir_base: Any,
        serving_input_receiver_fn: Callable[[], Any],
        assets_extra: Any = None,  # noqa: ARG002
        as_text: bool = False,
        checkpoint_path: str | None = None,
        *_: Any,
        **__: Any,
    ) -> bytes:
        """Write a checkpoint's values and the model's signatures into a new folder, and return the folder.

        See `tf.saved_model`: `load` reads it, and TensorFlow cannot.

        Raises:
          ValueError: there is no checkpoint.
        """
        path = checkpoint_path or self._trained()
        folder = _new_folder(export_dir_base)
        with self._graph() as graph:
            receiver = serving_input_receiver_fn()
            spec = self._built(receiver.features, None, ModeKeys.PREDICT)
            found = signatures(receiver.receiver_tensors, spec.export_outputs, spec.predictions)
            with Session(graph=graph) as session:
                saver = spec.scaffold.saver or Saver(allow_empty=True)
                saver.restore(session, path)
                builder = SavedModelBuilder(folder)
                builder.add_meta_graph_and_variables(session, [SERVING], found, saver=saver)
                builder.save(as_text)
        return str(folder).encode()

    export_saved_model = experimental_export_all_saved_models = export_savedmodel

    # --- building

    def _graph(self, device: Any = None) -> _NewGraph:
        return _NewGraph(self._config.tf_random_seed, device)

    def _inputs(self, input_fn: Callable[..., Any], mode: str) -> tuple[Any, Any]:
        """(features, labels), which is `None` where the input function gives none."""
        known = {"mode": mode, "params": self.params, "config": self._config}
        wanted = _parameters(input_fn)
        with get_default_graph().device("/cpu:0"):
            found = input_fn(**{name: value for name, value in known.items() if name in wanted})
            if hasattr(found, "make_one_shot_iterator"):
                found = found.make_one_shot_iterator().get_next()
        if isinstance(found, list | tuple):
            if len(found) != 2:
                raise ValueError("input_fn should return (features, labels) as a len 2 tuple.")
            return found[0], found[1]
        return found, None

    def _built(self, features: Any, labels: Any, mode: str, config: RunConfig | None = None) -> EstimatorSpec:
        known = {"labels": labels, "mode": mode, "params": self.params, "config": config or self._config}
        if labels is not None and "labels" not in self._arguments:
            raise ValueError("model_fn does not take labels, but input_fn returns labels.")
        logging.info("Calling model_fn.")
        spec = self._model_fn(features, **{name: known[name] for name in self._arguments if name in known})
        logging.info("Done calling model_fn.")
        if not isinstance(spec, EstimatorSpec):
            raise ValueError("model_fn should return an EstimatorSpec.")
        return spec


def _new_folder(base: Any) -> Path:
    """Make a folder in another one, called after the time in seconds."""
    number = int(time.time())
    while True:
        folder = Path(_text(base)) / str(number)
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            number += 1
        else:
            return folder


def _text(path: Any) -> str:
    return path.decode() if isinstance(path, bytes) else str(path)


class _NewGraph(AbstractContextManager[Graph]):
    """A new default graph with a global step."""

    def __init__(self, seed: int | None, device: Any) -> None:
        self._graph = Graph()
        self._opened: list[Any] = [self._graph.as_default()]
        self._opened.append(self._graph.device(device) if device is not None else nullcontext())
        self._seed = seed

    def __enter__(self) -> Graph:
        for one in self._opened:
            one.__enter__()
        if self._seed is not None:
            set_random_seed(self._seed)
        create_global_step()
        return self._graph

    def __exit__(self, *error: Any) -> None:
        for one in reversed(self._opened):
            one.__exit__(*error)


def _with_directory(config: RunConfig, model_dir: Any) -> RunConfig:
    wanted = None if model_dir is None else str(model_dir)
    if config.model_dir is None:
        if wanted is None:
            wanted = tempfile.mkdtemp()
            logging.warning("Using temporary folder as model directory: %s", wanted)
        return config.replace(model_dir=wanted)
    if wanted not in (None, config.model_dir):
        raise ValueError(
            "`model_dir` are set both in constructor and `RunConfig`, but with different values. In constructor: "
            f"'{wanted}', in `RunConfig`: '{config.model_dir}' "
        )
    return config


def _parameters(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


def _arguments(model_fn: Any, params: Any) -> list[str]:
    found = inspect.signature(model_fn).parameters
    if "features" not in found:
        raise ValueError(f"model_fn ({model_fn}) must include features argument.")
    takes = [name for name in found if name in _OF_MODEL_FN]
    if params is not None and "params" not in takes:
        raise ValueError(
            f"model_fn ({model_fn}) does not include params argument, but params ({params}) is passed to Estimator."
        )
    others = [
        name
        for name, one in found.items()
        if name not in _OF_MODEL_FN
        and one.default is one.empty
        and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    ]
    if others:
        raise ValueError(f"model_fn ({model_fn}) has following not expected args: {others}")
    return takes


def _checked(hooks: Sequence[SessionRunHook] | None) -> list[SessionRunHook]:
    for hook in hooks or ():
        if not callable(getattr(hook, "before_run", None)):
            raise TypeError(f"Hooks must be a SessionRunHook, given: {hook}")
    return list(hooks or ())


def _final(value: Any) -> Any:
    return value.result() if hasattr(value, "result") else value


def _chosen(predictions: Any, keys: Any) -> Any:
    if not keys:
        return predictions
    names = [keys] if isinstance(keys, str) else list(keys)
    if not isinstance(predictions, Mapping):
        raise ValueError(f"predict_keys argument is not valid in case of non-dict predictions: {names}")
    found = {name: value for name, value in predictions.items() if name in names}
    if not found:
        raise ValueError(f"Expected to run at least one output from {list(predictions)}, provided {names}.")
    return found


def _length(batch: Mapping[str, Any]) -> int:
    sizes = {key: len(np.atleast_1d(value)) for key, value in batch.items()}
    if len(set(sizes.values())) != 1:
        raise ValueError(f"Batch length of predictions should be same. {sizes}")
    return next(iter(sizes.values()))
