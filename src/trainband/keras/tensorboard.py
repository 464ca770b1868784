"""TensorBoard: Keras's callback of that name, without TensorFlow."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from trainband.errors import ModelError
from trainband.keras.keras_internals import keras
from trainband.runtime.waiting import Say, say_on_stderr

if TYPE_CHECKING:
    from trainband.train.tensorboard_file import EventFile


class TensorBoard(keras.callbacks.Callback):  # type: ignore[misc, name-defined]
    """Writes data for `tensorboard --logdir`, under the names and in the folders of `keras.callbacks.TensorBoard`.

    Scalars of the training are in `log_dir/train`, those of the validation in `log_dir/validation`.

    Args:
      log_dir: of the run.
      histogram_freq: epochs between two histograms of each weight; 0: none.
      write_graph: write the layers of a Sequential or functional model as TensorBoard's conceptual graph. The graph of
        operations is not written: there is none on JAX.
      write_images, embeddings_freq, embeddings_metadata: accepted but ignored, with a warning.
      write_steps_per_second: write the steps per second of each epoch and, unless `update_freq` is `epoch`, batch.
      update_freq: `epoch`; or `batch` or a number of batches, after which losses and metrics are written, too.
      profile_batch: the batch, or the first and last batch, that JAX's profiler traces, counted from 1 in each `fit`;
        0: none. TensorBoard's profile plugin (xprof) shows the trace.
      say: prints lines for people.

    Raises:
      ModelError: an argument is invalid.
    """

    def __init__(
        self,
        log_dir: str | os.PathLike[str] = "logs",
        histogram_freq: int = 0,
        write_graph: bool = True,
        write_images: bool = False,
        write_steps_per_second: bool = False,
        update_freq: int | str = "epoch",
        profile_batch: int | str | tuple[int, int] = 0,
        embeddings_freq: int = 0,
        embeddings_metadata: Any = None,  # noqa: ARG002 - accepted, as Keras has it
        *,
        say: Say = say_on_stderr,
    ) -> None:
        super().__init__()
        if update_freq not in ("epoch", "batch") and not (isinstance(update_freq, int) and update_freq > 0):
            raise ModelError(
                f"TensorBoard: update_freq must be 'epoch', 'batch' or a number of batches, got {update_freq!r}."
            )
        self.log_dir = os.fspath(log_dir)
        self._histogram_freq = histogram_freq
        self._write_graph = write_graph
        self._write_rate = write_steps_per_second
        self._every = update_freq if isinstance(update_freq, int) else int(update_freq == "batch")
        self._first, self._last = _batches(profile_batch)
        self._say = say
        self._files: dict[str, EventFile] = {}
        self._trains = False
        self._is_tracing = False
        self._batch = 0
        self._began = 0.0, 0
        self._batch_began = 0.0
        unwritten = {"write_images": write_images, "embeddings_freq": embeddings_freq}
        asked = " and ".join(name for name, value in unwritten.items() if value)
        if asked:
            say(f"TensorBoard: {asked} is ignored; scalars, histograms, the model and profiles are written")
        if self._every or self._last:
            # Only if needed: a callback that handles batches waits for their results.
            self.on_train_batch_begin = self._batch_begins
            self.on_train_batch_end = self._batch_ends

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002 - Keras's form
        self._trains = True
        self._batch = 0
        if self._write_graph and type(self.model).__name__ in ("Sequential", "Functional"):
            self._add_graph()

    def on_train_end(self, logs: Any = None) -> None:  # noqa: ARG002 - Keras's form
        self._trains = False
        self._stop_trace()
        self._close()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002 - Keras's form
        if self._write_rate:
            self._began = time.monotonic(), self._iterations()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        found = dict(logs or {})
        if found:
            validation = {name: found.pop(name) for name in list(found) if name.startswith("val_")}
            found["learning_rate"] = keras.ops.convert_to_numpy(self.model.optimizer.learning_rate)
            if self._write_rate:
                began_at, made = self._began
                found["steps_per_second"] = (self._iterations() - made) / (time.monotonic() - began_at)
            self._add("train", epoch, found, "epoch_{}")
            self._add("validation", epoch, {name[4:]: value for name, value in validation.items()}, "epoch_{}")
        if self._histogram_freq and epoch % self._histogram_freq == 0:
            weights = {
                weight.path.replace(":", "_"): np.atleast_1d(keras.ops.convert_to_numpy(weight.value))
                for layer in self.model.layers
                for weight in layer.weights
                if "seed_generator" not in weight.path
            }
            self._add("train", epoch, weights, "{}/histogram")
        for file in self._files.values():
            file.flush()

    def on_test_end(self, logs: Any = None) -> None:
        if logs and self.model.optimizer is not None:
            self._add("validation", self._iterations(), logs, "evaluation_{}_vs_iterations")
        if not self._trains:
            self._close()

    def _batch_begins(self, batch: int, logs: Any = None) -> None:
        del batch, logs
        self._batch += 1
        self._batch_began = time.monotonic()
        if self._last and self._batch == self._first:
            jax.profiler.start_trace(str(Path(self.log_dir) / "train"))
            self._is_tracing = True

    def _batch_ends(self, batch: int, logs: Any = None) -> None:
        del batch
        if self._every and self._batch % self._every == 0:
            found = dict(logs or {})
            if self._write_rate:
                found["steps_per_second"] = 1.0 / max(time.monotonic() - self._batch_began, 1e-9)
            self._add("train", self._batch, found, "batch_{}")
        if self._batch >= self._last:
            self._stop_trace()

    def _iterations(self) -> int:
        return int(self.model.optimizer.iterations)

    def _file(self, name: str) -> EventFile:
        if name not in self._files:
            from trainband.train.tensorboard_file import EventFile  # imported here because it is slow

            self._files[name] = EventFile(Path(self.log_dir) / name, self._say)
        return self._files[name]

    def _add(self, name: str, step: int, values: Mapping[str, Any], tag: str) -> None:
        if values:
            self._file(name).add(step, {tag.format(key): value for key, value in values.items()})

    def _add_graph(self) -> None:
        try:
            graph = self.model.to_json()
        except Exception as exc:  # any error of get_config of a user's layer
            self._say(f"TensorBoard: could not write the graph of {self.model.name} ({type(exc).__name__}: {exc})")
        else:
            self._file("train").write(_event_of(graph))

    def _stop_trace(self) -> None:
        if self._is_tracing:
            self._is_tracing = False
            jax.profiler.stop_trace()

    def _close(self) -> None:
        while self._files:
            self._files.popitem()[1].close()


def refuse_what_needs_tensorflow(callbacks: Any) -> None:
    """Raises `ModelError` for Keras's own TensorBoard, the only callback of Keras that always imports TensorFlow."""
    listed = getattr(callbacks, "callbacks", callbacks)
    for callback in keras.tree.flatten(listed) if listed else ():
        if isinstance(callback, keras.callbacks.TensorBoard):
            raise ModelError(
                f"{type(callback).__name__} is a keras.callbacks.TensorBoard, which writes with TensorFlow: use "
                "trainband.keras.TensorBoard, which takes the same arguments and needs no TensorFlow."
            )


def _batches(profile_batch: Any) -> tuple[int, int]:
    """(first, last) batch to profile; (0, 0) for none."""
    given = profile_batch.split(",") if isinstance(profile_batch, str) else profile_batch
    try:
        numbers = [int(given)] * 2 if isinstance(given, int) else [int(number) for number in given]
    except (TypeError, ValueError):
        numbers = []
    if len(numbers) == 1:
        numbers *= 2
    if len(numbers) != 2 or not (numbers == [0, 0] or 0 < numbers[0] <= numbers[1]):
        raise ModelError(
            "TensorBoard: profile_batch must be 0, the number of a batch, or the first and the last, such as (10, 20); "
            f"got {profile_batch!r}."
        )
    return numbers[0], numbers[1]


def _event_of(graph: str) -> Any:
    """Returns the event of a Keras model's conceptual graph for TensorBoard, from the model's JSON."""
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.proto.summary_pb2 import Summary, SummaryMetadata
    from tensorboardX.proto.tensor_pb2 import TensorProto
    from tensorboardX.proto.types_pb2 import DT_STRING

    plugin = SummaryMetadata.PluginData(plugin_name="graph_keras_model", content=b"1")
    tensor = TensorProto(dtype=DT_STRING, string_val=[graph.encode()])
    value = Summary.Value(tag="keras", metadata=SummaryMetadata(plugin_data=plugin), tensor=tensor)
    return Event(wall_time=time.time(), step=0, summary=Summary(value=[value]))
