"""Histories: what every run with a checkpoint directory keeps of its figures and events, and how it is read."""

from trainband.monitor.history.history import Event as Event
from trainband.monitor.history.history import History as History
from trainband.monitor.history.history import Run as Run
from trainband.monitor.history.history import Series as Series
from trainband.monitor.history.read import history as history
from trainband.monitor.history.recorder import Recorder as Recorder
