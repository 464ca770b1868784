"""The user's interface to training: the trainer, its display and its results."""

from trainband.train.hooks import CheckpointSaverHook as CheckpointSaverHook
from trainband.train.hooks import EarlyStopping as EarlyStopping
from trainband.train.hooks import FinalOpsHook as FinalOpsHook
from trainband.train.hooks import Hook as Hook
from trainband.train.hooks import LoggingHook as LoggingHook
from trainband.train.hooks import NanHook as NanHook
from trainband.train.hooks import ProfilerHook as ProfilerHook
from trainband.train.hooks import StepCounterHook as StepCounterHook
from trainband.train.hooks import StepProfileHook as StepProfileHook
from trainband.train.hooks import StopAtStepHook as StopAtStepHook
from trainband.train.hooks import SummarySaverHook as SummarySaverHook
from trainband.train.hooks import TrackerHook as TrackerHook
from trainband.train.hooks import ValidationHook as ValidationHook
from trainband.train.result import Evaluation as Evaluation
from trainband.train.result import FitResult as FitResult
from trainband.train.session import MonitoredSession as MonitoredSession
from trainband.train.trainer import Trainer as Trainer
