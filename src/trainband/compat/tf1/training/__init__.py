"""`tf.train`: optimizers, checkpoints, hooks and supervised sessions."""

from __future__ import annotations
