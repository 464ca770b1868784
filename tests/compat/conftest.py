"""Every test here begins with an empty default graph and leaves nothing of TensorFlow behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from trainband.compat.tf1.graphs import default_session, graph
from trainband.compat.tf1.operations.summary import FileWriterCache
from trainband.compat.tf1.scripts import logging
from trainband.compat.tf1.scripts.flags import FLAGS


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    graph.reset_default_graph()
    FLAGS.forget()
    yield
    while (left := default_session.get_default_session()) is not None:
        left.close()
    FileWriterCache.clear()
    logging.set_verbosity(logging.WARN)
    graph.reset_default_graph()
    FLAGS.forget()
