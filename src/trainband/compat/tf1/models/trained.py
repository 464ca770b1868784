"""Trained: what trains, evaluates and asks a model in one process: `compile`, `fit`, `evaluate`, `predict`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trainband.compat.tf1.graphs.nest import flatten
from trainband.compat.tf1.models import optimizers, phase, weight_files
from trainband.compat.tf1.models.batches import Batch, Source, source_of, split, with_classes
from trainband.compat.tf1.models.callbacks import Callbacks, History
from trainband.compat.tf1.models.network import Input
from trainband.compat.tf1.models.program import (
    Program,
    Settings,
    at_least_two_axes,
    names_of_metrics,
    program,
    with_phase,
)


class Trained:
    """The part of a model that trains it. What runs is recorded when the first batch shows the targets' shapes."""

    inputs: list[Any]
    outputs: list[Any]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._settings: Settings | None = None
        self._programs: dict[Any, Program] = {}
        self._chosen: list[Any] | None = None
        self.optimizer: Any = None
        """The optimizer that trains it, once it is compiled."""
        self.loss: Any = None
        """The loss that was passed to `compile`."""
        self.stop_training = False
        """Whether `fit` ends after this epoch."""
        self.history: Any = None
        """Result of the last `fit`."""

    # --- compiling

    def compile(
        self,
        optimizer: Any = "rmsprop",
        loss: Any = None,
        metrics: Any = None,
        loss_weights: Any = None,
        sample_weight_mode: Any = None,
        weighted_metrics: Any = None,
        target_tensors: Any = None,
        distribute: Any = None,
        **more: Any,
    ) -> None:
        """Sets what is trained, and how.

        Raises:
          NotImplementedError: weights of steps, or targets that are tensors.
        """
        del distribute, more
        if sample_weight_mode is not None or target_tensors is not None:
            raise NotImplementedError("compile: sample_weight_mode and target_tensors are not supported.")
        self._settings = Settings(
            optimizer=optimizers.get(optimizer),
            loss=loss,
            metrics=[*(metrics or []), *(weighted_metrics or [])] if weighted_metrics else metrics,
            loss_weights=loss_weights,
        )
        self.optimizer, self.loss = self._settings.optimizer, loss
        self._programs.clear()
        self._chosen = list(self.trainable_weights) if self.built else None  # type: ignore[attr-defined]

    @property
    def metrics_names(self) -> list[str]:
        """What `evaluate` returns."""
        return names_of_metrics(self._compiled(), self.output_names)  # type: ignore[attr-defined]

    @property
    def total_loss(self) -> Any:
        """The loss of a batch, once a batch has been seen."""
        return next(iter(self._programs.values())).total

    def _compiled(self) -> Settings:
        if self._settings is None:
            raise RuntimeError("The model must be compiled before training or testing: call `model.compile(...)`.")
        return self._settings

    def _open(self, batch: Batch) -> None:
        """Makes inputs and outputs, for a model that learns from its first batch what its inputs are."""
        if self.__dict__.get("outputs"):
            return
        first = list(batch.inputs)
        if hasattr(self, "_layers"):
            self.build([None, *first[0].shape[1:]])  # type: ignore[attr-defined]
            return
        tensors = [Input(batch_shape=[None, *one.shape[1:]], dtype=one.dtype) for one in first]
        outputs = self(tensors if len(tensors) > 1 else tensors[0])  # type: ignore[operator]
        self.inputs, self.outputs = tensors, flatten(outputs)

    def _program(self, batch: Batch) -> Program:
        settings = self._compiled()
        self._open(batch)
        targets = [at_least_two_axes(one) for one in batch.targets or []]
        key = tuple((one.shape[1:], one.dtype.str) for one in targets)
        if key not in self._programs:
            chosen = self._chosen if self._chosen is not None else self.trainable_weights  # type: ignore[attr-defined]
            self._programs[key] = program(self, settings, batch, chosen)
        return self._programs[key]

    def _source(self, x: Any, y: Any, weights: Any, **more: Any) -> Source:
        return source_of(x, y, weights, names=self._names, **more)

    @property
    def _names(self) -> tuple[list[str], list[str]]:
        if not self.__dict__.get("outputs"):
            return [], []
        return self.input_names, self.output_names  # type: ignore[attr-defined]

    # --- training

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: int = 1,
        callbacks: Any = None,
        validation_split: float = 0.0,
        validation_data: Any = None,
        shuffle: Any = True,
        class_weight: Mapping[Any, float] | None = None,
        sample_weight: Any = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        **more: Any,
    ) -> History:
        """Trains for a number of epochs. Returns what came of each."""
        del more
        self._compiled()
        checks: Source | None
        if validation_split and validation_data is None:
            whole = next(self._source(x, y, sample_weight, batch_size=1 << 62).epoch())
            kept, held = split(whole, validation_split)
            (x, y, sample_weight) = (kept.inputs, kept.targets, kept.weights)
            validation_data = (held.inputs, held.targets, held.weights)
            source = source_of(x, y, sample_weight, batch_size=batch_size, shuffle=bool(shuffle), names=_as_many(kept))
            checks = source_of(*validation_data, batch_size=batch_size, names=_as_many(held))
        else:
            source = self._source(
                x, y, sample_weight, batch_size=batch_size, steps=steps_per_epoch, shuffle=bool(shuffle)
            )
            checks = self._validation(validation_data, batch_size, validation_steps)
        settings = {"epochs": epochs, "steps": source.steps, "samples": source.examples, "verbose": verbose}
        told = Callbacks(self, callbacks, {**settings, "do_validation": checks is not None})
        self.stop_training = False
        told.on_train_begin({})
        for epoch in range(initial_epoch, epochs):
            told.on_epoch_begin(epoch, {})
            logs = self._pass(source, told, training=True, class_weight=class_weight)
            if checks is not None:
                found = self._pass(checks, None, training=False)
                logs |= {f"val_{name}": value for name, value in found.items()}
            told.on_epoch_end(epoch, logs)
            if self.stop_training:
                break
        told.on_train_end({})
        return told.history

    def _validation(self, data: Any, batch_size: int | None, steps: int | None) -> Source | None:
        if data is None:
            return None
        if isinstance(data, list | tuple):
            x, y, weights = [*data, None][:3]
            return self._source(x, y, weights, batch_size=batch_size, steps=steps)
        return self._source(data, None, None, batch_size=batch_size, steps=steps)

    def _pass(
        self, source: Source, told: Callbacks | None, *, training: bool, class_weight: Any = None
    ) -> dict[str, Any]:
        """One pass over all batches: the mean of the loss and of each metric."""
        total, sums = 0, None
        begun = False
        values: list[Any] = []
        for number, batch in enumerate(source.epoch()):
            plan = self._program(batch)
            if not begun:
                self._begin(plan)
                begun = True
            if told is not None:
                told.on_batch_begin(number, {"batch": number, "size": batch.size})
            values = self._step(plan, with_classes(batch, class_weight), training)
            size = batch.size
            total += size
            added = np.asarray(values, np.float64) * size
            sums = added if sums is None else sums + added
            if told is not None:
                shown = dict(zip(self.metrics_names, values, strict=True))
                told.on_batch_end(number, {"batch": number, "size": size, **shown})
                if self.stop_training:
                    break
        if sums is None:
            raise ValueError("There is no data: the dataset, generator or arrays are empty.")
        means = list(sums / max(total, 1))
        kept = [None] * (len(means) - len(plan.measured)) + [one for _, one in plan.measured]
        found = [last if metric is not None else mean for mean, last, metric in zip(means, values, kept, strict=True)]
        return {name: float(value) for name, value in zip(self.metrics_names, found, strict=True)}

    def _begin(self, plan: Program) -> None:
        """Metrics that keep a value over batches begin again."""
        session = phase.get_session()
        variables = [one.initializer for _, metric in plan.measured if metric is not None for one in metric.weights]
        if variables:
            session.run(variables)

    def _step(self, plan: Program, batch: Batch, training: bool) -> list[Any]:
        """One batch: the loss, those of several outputs, and the metrics."""
        parts = plan.parts if len(self.outputs) > 1 else []
        wanted = [plan.total, *parts, *(value for value, _ in plan.measured)]
        session = phase.get_session()
        found = session.run([wanted, plan.train] if training and plan.train is not None else [wanted],
                            plan.feeds(batch, training))  # fmt: skip
        return list(found[0])

    def evaluate(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        verbose: int = 1,
        sample_weight: Any = None,
        steps: int | None = None,
        callbacks: Any = None,
        **more: Any,
    ) -> Any:
        """Return the loss; with metrics, a list of it and of them, in the order of `metrics_names`."""
        del callbacks, more
        source = self._source(x, y, sample_weight, batch_size=batch_size, steps=steps)
        found = self._pass(source, None, training=False)
        if verbose == 1:
            print(" - ".join(f"{name}: {value:.4f}" for name, value in found.items()), flush=True)
        values = list(found.values())
        return values[0] if len(values) == 1 else values

    def predict(
        self,
        x: Any,
        batch_size: int | None = None,
        verbose: int = 0,
        steps: int | None = None,
        callbacks: Any = None,
        **more: Any,
    ) -> Any:
        """Return the outputs for all examples, as arrays."""
        del verbose, callbacks, more
        found: list[list[Any]] = []
        for batch in self._source(x, None, None, batch_size=batch_size, steps=steps).epoch():
            found.append(self._answered(batch))
        joined = [np.concatenate(parts) for parts in zip(*found, strict=True)]
        return joined[0] if len(joined) == 1 else joined

    def _answered(self, batch: Batch) -> list[Any]:
        self._open(batch)
        fed = [one for one in self.inputs if one.op.type == "Placeholder"]
        session = phase.get_session()
        feeds = with_phase(dict(zip(fed, batch.inputs, strict=False)), False)
        return list(session.run(list(self.outputs), feeds))

    # --- one batch

    def train_on_batch(
        self, x: Any, y: Any = None, sample_weight: Any = None, class_weight: Any = None, reset_metrics: bool = True
    ) -> Any:
        """Trains with one batch. Returns its loss, and its metrics if there are any."""
        return self._on_batch(x, y, sample_weight, True, class_weight, reset_metrics)

    def test_on_batch(self, x: Any, y: Any = None, sample_weight: Any = None, reset_metrics: bool = True) -> Any:
        """Return the loss of one batch, and its metrics if there are any."""
        return self._on_batch(x, y, sample_weight, False, None, reset_metrics)

    def _on_batch(self, x: Any, y: Any, weights: Any, training: bool, class_weight: Any, reset: bool) -> Any:
        batch = with_classes(next(self._source(x, y, weights, batch_size=1 << 62, steps=1).epoch()), class_weight)
        plan = self._program(batch)
        if reset:
            self._begin(plan)
        values = self._step(plan, batch, training)
        return values[0] if len(values) == 1 else values

    def predict_on_batch(self, x: Any) -> Any:
        """Return the outputs for one batch."""
        found = self._answered(next(self._source(x, None, None, batch_size=1 << 62, steps=1).epoch()))
        return found[0] if len(found) == 1 else found

    # --- generators

    def fit_generator(
        self,
        generator: Any,
        steps_per_epoch: int | None = None,
        epochs: int = 1,
        verbose: int = 1,
        callbacks: Any = None,
        validation_data: Any = None,
        validation_steps: int | None = None,
        **more: Any,
    ) -> History:
        """Trains with batches that a generator gives."""
        known = {name: more[name] for name in ("class_weight", "shuffle", "initial_epoch") if name in more}
        return self.fit(
            generator,
            steps_per_epoch=steps_per_epoch,
            epochs=epochs,
            verbose=verbose,
            callbacks=callbacks,
            validation_data=validation_data,
            validation_steps=validation_steps,
            **known,
        )

    def evaluate_generator(self, generator: Any, steps: int | None = None, verbose: int = 0, **more: Any) -> Any:
        """`evaluate` with batches that a generator gives."""
        del more
        return self.evaluate(generator, steps=steps, verbose=verbose)

    def predict_generator(self, generator: Any, steps: int | None = None, **more: Any) -> Any:
        """`predict` with batches that a generator gives."""
        del more
        return self.predict(generator, steps=steps)

    def reset_states(self) -> None:
        """Nothing is kept between batches."""

    # --- files

    def save_weights(self, filepath: Any, overwrite: bool = True, save_format: str | None = None) -> None:
        """Writes the values of all variables, as HDF5 or as safetensors."""
        weight_files.save(self, str(filepath), overwrite, save_format)

    def load_weights(self, filepath: Any, by_name: bool = False) -> None:
        """Reads the values of variables that `save_weights` wrote."""
        weight_files.load(self, str(filepath), by_name)

    def save(self, filepath: Any, overwrite: bool = True, include_optimizer: bool = True) -> None:
        """Writes the model's layers and the values of its variables, for `load_model`."""
        del include_optimizer
        weight_files.save_model(self, str(filepath), overwrite)


def _as_many(batch: Batch) -> tuple[Sequence[str], Sequence[str]]:
    """Names for as many arrays as a batch has."""
    return [str(i) for i in range(len(batch.inputs))], [str(i) for i in range(len(batch.targets or []))]
