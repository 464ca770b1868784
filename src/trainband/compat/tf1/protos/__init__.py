"""The protocol buffers of TensorFlow 1 that scripts make and read: one file for each group."""

from __future__ import annotations
