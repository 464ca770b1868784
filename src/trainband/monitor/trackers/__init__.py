"""Trackers: services that also keep a run's configuration, metrics and files. One tracker per file."""

from trainband.monitor.trackers.base import Tracker as Tracker
from trainband.monitor.trackers.mlflow import MLflowTracker as MLflowTracker
from trainband.monitor.trackers.wandb import WandbTracker as WandbTracker
