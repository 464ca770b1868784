"""Input as TensorFlow 1 reads it: queues and their threads, readers of files, parsing, and sparse tensors."""

from __future__ import annotations
