"""Files of events, as `tf.summary.FileWriter` writes them and TensorBoard reads them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tensorboardX.proto.event_pb2 import Event

from trainband.compat.tf1.input.record_files import tf_record_iterator


def summary_iterator(path: Any) -> Iterator[Event]:
    """Yield the events of a file."""
    for record in tf_record_iterator(path):
        yield Event.FromString(record)
