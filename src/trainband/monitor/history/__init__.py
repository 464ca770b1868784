"""Histories: the metrics and events that every run with a checkpoint directory keeps, and how they are read."""

from trainband.monitor.history.history import Event as Event
from trainband.monitor.history.history import History as History
from trainband.monitor.history.history import Run as Run
from trainband.monitor.history.history import Series as Series
from trainband.monitor.history.read import history as history
from trainband.monitor.history.recorder import Recorder as Recorder
from trainband.monitor.history.rows import TrainingStart as TrainingStart
