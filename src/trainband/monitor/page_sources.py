"""Sources: everything that feeds the page of a job."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from trainband.cluster.resolvers.local_jobs import credentials_for
from trainband.errors import YourError
from trainband.monitor.collector import Collector
from trainband.monitor.directory_source import DirectorySource
from trainband.monitor.inquiry import Inquiry
from trainband.monitor.live_feed import LiveFeed
from trainband.monitor.live_values import LiveValues
from trainband.monitor.prometheus import job_exposition
from trainband.monitor.step_recordings import PageRecorder
from trainband.monitor.tensor_summary import TensorSummary

ANSWER_S = 5.0


class Sources:
    """Keep a feed up to date while their context lasts: from the ps of a job, its directory, or both.

    Args:
      address: of any ps of the job, if there is one.
      directory: the `checkpoint_dir` of the job; `follow` may set it later.
      lives: whether the job is known to run until `end` is called.

    Raises:
      YourError: there is no such directory.
    """

    def __init__(
        self, feed: LiveFeed, address: str | None, directory: Path | None = None, *, lives: bool = False
    ) -> None:
        self._feed = feed
        self._address = address
        self._lives = lives
        self._stack = ExitStack()
        self._is_open = False
        self._collector = None if address is None else Collector(address, feed)
        self._live = None if address is None else LiveValues(lambda: feed.snapshot, lambda: credentials_for(address))
        self._directory: DirectorySource | None = None
        self.recorder = None if address is None else PageRecorder(self._inquiry, time.time)
        """Records steps; `None` without ps."""
        if directory is not None:
            self.follow(directory)

    def __enter__(self) -> Sources:
        self._is_open = True
        if self.recorder is not None:
            self._stack.callback(self.recorder.close)
        for source in (self._collector, self._directory):
            if source is not None:
                self._stack.enter_context(source)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def follows_directory(self) -> bool:
        """Whether the directory of the job is known."""
        return self._directory is not None

    def follow(self, directory: Path) -> None:
        """Sets the directory of the job, once. Raises `YourError` if it does not exist."""
        source = DirectorySource(directory, self._feed, alone=self._address is None, lives=self._lives)
        self._directory = self._stack.enter_context(source) if self._is_open else source

    def summary(self, name: str) -> TensorSummary:
        """Summarises the values of a variable, in the newest checkpoint or else on the ps.

        Raises:
          TrainbandError: they cannot be read.
        """
        directory = self._directory
        if directory is not None and (self._live is None or directory.has_checkpoints):
            return directory.summary(name)
        if self._live is not None:
            return self._live.summary(name)
        raise YourError("no ps or directory of the job is known to read values from.")

    @property
    def metrics(self) -> Callable[[], str] | None:
        """Returns a function that makes the text for Prometheus; `None` without ps."""
        collector = self._collector
        return None if collector is None else lambda: job_exposition(collector.statuses())

    def end(self) -> None:
        """Marks the job as ended, when its owner reports so."""
        for source in (self._collector, self._directory):
            if source is not None:
                source.end()

    def _inquiry(self) -> Inquiry:
        """Returns an inquiry of a ps that answers now."""
        assert self._address is not None
        up = next((ps.address for ps in self._feed.snapshot.ps if ps.up), self._address)
        return Inquiry(up, ANSWER_S, credentials=credentials_for(self._address))
