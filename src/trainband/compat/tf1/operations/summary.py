"""`tf.summary`: scalars, histograms and images for TensorBoard, in event files."""

from __future__ import annotations

import atexit
import contextlib
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tensorboardX.proto.event_pb2 import Event as Event
from tensorboardX.proto.event_pb2 import SessionLog as SessionLog
from tensorboardX.proto.event_pb2 import TaggedRunMetadata as TaggedRunMetadata
from tensorboardX.proto.summary_pb2 import HistogramProto as HistogramProto
from tensorboardX.proto.summary_pb2 import Summary as Summary
from tensorboardX.proto.summary_pb2 import SummaryDescription as SummaryDescription
from tensorboardX.proto.summary_pb2 import SummaryMetadata as SummaryMetadata
from tensorboardX.proto.tensor_pb2 import TensorProto
from tensorboardX.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboardX.summary import histogram as histogram_proto
from tensorboardX.summary import image as image_proto
from tensorboardX.summary import scalar as scalar_proto

from trainband.compat.ops.dtypes import string
from trainband.compat.tf1.graphs.graph import Graph, Tensor, get_default_graph
from trainband.compat.tf1.graphs.graph_keys import GraphKeys
from trainband.compat.tf1.graphs.record import convert, record
from trainband.compat.tf1.protos.graph import MetaGraphDef
from trainband.compat.tf1.scripts.values import make_tensor_proto
from trainband.compat.tf1.training.meta_graph import create_meta_graph_def
from trainband.compat.wave_files import wave_proto
from trainband.runtime.waiting import say_on_stderr
from trainband.train.tensorboard_file import BINS, EventFile


def _summary(
    type_: str, name: str, inputs: Sequence[Tensor], collections: Any, family: str | None, make: Callable[..., Any]
) -> Tensor:
    """Record a string tensor that the host makes from the values of its inputs after a run."""
    graph = get_default_graph()
    name = re.sub(r"[^-/\w.]", "_", name).lstrip("/")
    with graph.control_dependencies(None):
        title = graph.unique_name(name if family is None else f"{family}/{name}")
    tag = title if family is None else f"{family}/{title}"

    def never() -> Any:
        raise RuntimeError("A summary can be fetched, but operations cannot use it.")

    def host(*values: Any) -> bytes:
        return bytes(make(tag, *values).SerializeToString())

    result: Tensor = record(
        type_, lambda *_: never(), inputs, name=f"{title}/", dtypes=[string], shapes=[[]], attributes={"host": host}
    ).outputs[0]
    for one in [GraphKeys.SUMMARIES] if collections is None else collections:
        graph.add_to_collection(one, result)
    return result


def scalar(name: str, tensor: Any, collections: Any = None, family: str | None = None) -> Tensor:
    """A point of a curve."""

    def make(tag: str, value: Any) -> Any:
        return scalar_proto(tag, np.asarray(value).reshape(()))

    return _summary("ScalarSummary", name, [convert(tensor)], collections, family, make)


def histogram(name: str, values: Any, collections: Any = None, family: str | None = None) -> Tensor:
    """A distribution."""

    def make(tag: str, value: Any) -> Any:
        numbers = np.asarray(value, np.float64).ravel()
        finite = numbers[np.isfinite(numbers)]
        return histogram_proto(tag, finite if finite.size else np.zeros(1), BINS)

    return _summary("HistogramSummary", name, [convert(values)], collections, family, make)


def image(name: str, tensor: Any, max_outputs: int = 3, collections: Any = None, family: str | None = None) -> Tensor:
    """Pictures: [n, height, width, channels], floats scaled to the whole range."""

    def make(tag: str, value: Any) -> Any:
        pictures = np.asarray(value)[:max_outputs]
        whole = Summary()
        for i, one in enumerate(pictures):
            bytes_ = one if one.dtype == np.uint8 else _as_bytes(one)
            part = image_proto(f"{tag}/image/{i}" if len(pictures) > 1 else f"{tag}/image", bytes_, dataformats="HWC")
            whole.value.extend(part.value)
        return whole

    return _summary("ImageSummary", name, [convert(tensor)], collections, family, make)


def _as_bytes(picture: Any) -> Any:
    low, high = float(picture.min()), float(picture.max())
    if low >= 0:
        scaled = picture * (255 / high if high else 0)
    else:
        scaled = 127 + picture * (127 / max(abs(low), abs(high)))
    return scaled.astype(np.uint8)


def text(name: str, tensor: Any, collections: Any = None) -> Tensor:
    """A text, or an array of them."""

    def make(tag: str, value: Any) -> Any:
        strings = [one if isinstance(one, bytes) else str(one).encode() for one in np.ravel(value)]
        shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=size) for size in np.shape(value)])
        tensor = TensorProto(dtype=string.as_datatype_enum, string_val=strings, tensor_shape=shape)
        metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
        return Summary(value=[Summary.Value(tag=tag, metadata=metadata, tensor=tensor)])

    return _summary("TensorSummaryV2", name, [convert(tensor)], collections, None, make)


def audio(
    name: str, tensor: Any, sample_rate: Any, max_outputs: int = 3, collections: Any = None, family: str | None = None
) -> Tensor:
    """Sounds: [n, frames, channels] or [n, frames] of numbers between -1 and 1."""

    def make(tag: str, value: Any, rate: Any) -> Any:
        sounds = np.asarray(value)[:max_outputs]
        whole = Summary()
        for i, one in enumerate(sounds):
            title = f"{tag}/audio/{i}" if len(sounds) > 1 else f"{tag}/audio"
            whole.value.add(tag=title).audio.CopyFrom(wave_proto(one.reshape(len(one), -1), float(rate)))
        return whole

    return _summary("AudioSummaryV2", name, [convert(tensor), convert(sample_rate)], collections, family, make)


def tensor_summary(
    name: str, tensor: Any, summary_description: Any = None, collections: Any = None, summary_metadata: Any = None,
    family: str | None = None, display_name: str | None = None,
) -> Tensor:  # fmt: skip
    """An array as it is."""
    del summary_description, display_name

    def make(tag: str, value: Any) -> Any:
        return Summary(value=[Summary.Value(tag=tag, metadata=summary_metadata, tensor=make_tensor_proto(value))])

    return _summary("TensorSummaryV2", name, [convert(tensor)], collections, family, make)


def merge(inputs: Sequence[Tensor], collections: Any = None, name: str | None = None) -> Tensor:
    """Several summaries as one."""

    def make(_: str, *values: Any) -> Any:
        whole = Summary()
        for one in values:
            part = Summary()
            part.ParseFromString(one)
            whole.value.extend(part.value)
        return whole

    return _summary("MergeSummary", name or "Merge/MergeSummary", inputs, collections or [], None, make)


def merge_all(key: str = GraphKeys.SUMMARIES, scope: str | None = None, name: str | None = None) -> Tensor | None:
    """All summaries of the graph as one; `None` where there are none."""
    found = get_default_graph().get_collection(key, scope)
    return merge(found, name=name) if found else None


class FileWriter:
    """Writes an event file into a directory. A context manager.

    Args:
      logdir: where.
      graph: what TensorBoard shows as the graph.
      max_queue, flush_secs: ignored; events reach the disk within seconds.
      filename_suffix: the end of the file's name.

    Raises:
      ValueError: there are both a graph and a GraphDef.
      TypeError: the graph is none.
    """

    def __init__(
        self,
        logdir: Any,
        graph: Any = None,
        max_queue: int = 10,  # noqa: ARG002
        flush_secs: int = 120,  # noqa: ARG002
        graph_def: Any = None,
        filename_suffix: str | None = None,
        session: Any = None,  # noqa: ARG002
    ) -> None:
        self._described: set[str] = set()
        self._directory, self._suffix = str(logdir), filename_suffix or ""
        self._file = EventFile(Path(self._directory), say_on_stderr, suffix=self._suffix)
        if graph is not None or graph_def is not None:
            self.add_graph(graph, graph_def=graph_def)
            self.add_meta_graph(create_meta_graph_def(graph_def=_graph_def_of(graph, graph_def)))
        atexit.register(self.close)  # many scripts leave it open

    def get_logdir(self) -> str:
        """Where it writes."""
        return self._directory

    def add_summary(self, summary: Any, global_step: Any = None) -> None:
        """Writes a summary: the bytes that a run returned, or a `Summary`."""
        whole = Summary()
        if isinstance(summary, bytes):
            whole.ParseFromString(summary)
        else:
            whole.CopyFrom(summary)
        for one in whole.value:
            if one.HasField("metadata"):
                if one.tag in self._described:
                    one.ClearField("metadata")  # it is in an event before
                self._described.add(one.tag)
        self.add_event(_event(global_step, summary=whole))

    def add_event(self, event: Any) -> None:
        """Writes an event."""
        self._file.write(event)

    def add_session_log(self, session_log: Any, global_step: Any = None) -> None:
        """Writes the start or end of a session."""
        self.add_event(_event(global_step, session_log=session_log))

    def add_graph(self, graph: Any, global_step: Any = None, graph_def: Any = None) -> None:
        """Writes a graph, for TensorBoard.

        Raises:
          ValueError: there are both a graph and a GraphDef, or none of them.
          TypeError: the graph is none.
        """
        self.add_event(_event(global_step, graph_def=_graph_def_of(graph, graph_def).SerializeToString()))

    def add_meta_graph(self, meta_graph_def: Any, global_step: Any = None) -> None:
        """Writes a graph with its collections.

        Raises:
          TypeError: it is no `MetaGraphDef`.
        """
        if not isinstance(meta_graph_def, MetaGraphDef):
            raise TypeError(f"meta_graph_def must be type MetaGraphDef, saw type: {type(meta_graph_def)}")
        self.add_event(_event(global_step, meta_graph_def=meta_graph_def.SerializeToString()))

    def add_run_metadata(self, run_metadata: Any, tag: str, global_step: Any = None) -> None:
        """Writes how long a run has taken."""
        told = TaggedRunMetadata(tag=tag, run_metadata=run_metadata.SerializeToString())
        self.add_event(_event(global_step, tagged_run_metadata=told))

    def flush(self) -> None:
        """Writes everything to the disk."""
        self._file.flush()

    def close(self) -> None:
        """Writes everything to the disk and closes the file. Idempotent."""
        atexit.unregister(self.close)
        self._file.close()

    def reopen(self) -> None:
        """Continues in a new file."""
        self._file.close()
        self._file = EventFile(Path(self._directory), say_on_stderr, suffix=self._suffix)

    def __enter__(self) -> FileWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _graph_def_of(graph: Any, graph_def: Any) -> Any:
    if graph is not None and graph_def is not None:
        raise ValueError("Please pass only graph, or graph_def (deprecated), but not both.")
    if isinstance(graph, Graph):
        return graph.as_graph_def(add_shapes=True)
    given = graph_def if graph is None else graph
    if not hasattr(given, "node"):
        raise TypeError(f"The passed graph must be an instance of `Graph` or the deprecated `GraphDef`, got {given!r}")
    return given


def _event(step: Any, **what: Any) -> Any:
    known = {} if step is None else {"step": int(step)}
    return Event(wall_time=time.time(), **known, **what)


class FileWriterCache:
    """One writer for each directory."""

    _writers: dict[str, FileWriter] = {}  # noqa: RUF012 - one for the process, as TensorFlow has it

    @classmethod
    def get(cls, logdir: Any) -> FileWriter:
        """The writer of a directory."""
        if str(logdir) not in cls._writers:
            cls._writers[str(logdir)] = FileWriter(logdir)
        return cls._writers[str(logdir)]

    @classmethod
    def clear(cls) -> None:
        """Closes all of them."""
        for writer in cls._writers.values():
            with contextlib.suppress(OSError):
                writer.close()
        cls._writers.clear()
