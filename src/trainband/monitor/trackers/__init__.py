"""Trackers: where a run's configuration, metrics and files go besides its own directory. One tracker a file."""

from trainband.monitor.trackers.base import Tracker as Tracker
from trainband.monitor.trackers.mlflow import MLflowTracker as MLflowTracker
from trainband.monitor.trackers.wandb import WandbTracker as WandbTracker
