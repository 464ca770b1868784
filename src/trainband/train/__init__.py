"""What a user drives: the trainer, what it shows and what it gives back."""

from trainband.train.result import Evaluation as Evaluation
from trainband.train.result import FitResult as FitResult
from trainband.train.trainer import Trainer as Trainer
