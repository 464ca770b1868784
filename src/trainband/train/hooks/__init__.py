"""Hooks: actions at the steps of a training run. One hook a file."""

from trainband.train.hooks.base import Hook as Hook
from trainband.train.hooks.checkpoint_saver import CheckpointSaverHook as CheckpointSaverHook
from trainband.train.hooks.final_ops import FinalOpsHook as FinalOpsHook
from trainband.train.hooks.logging import LoggingHook as LoggingHook
from trainband.train.hooks.nan import NanHook as NanHook
from trainband.train.hooks.profiler import ProfilerHook as ProfilerHook
from trainband.train.hooks.step_counter import StepCounterHook as StepCounterHook
from trainband.train.hooks.step_profile import StepProfileHook as StepProfileHook
from trainband.train.hooks.stop_at_step import StopAtStepHook as StopAtStepHook
from trainband.train.hooks.summary_saver import SummarySaverHook as SummarySaverHook
from trainband.train.hooks.tracker import TrackerHook as TrackerHook
from trainband.train.hooks.validation import EarlyStopping as EarlyStopping
from trainband.train.hooks.validation import ValidationHook as ValidationHook
