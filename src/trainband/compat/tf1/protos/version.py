"""The version of TensorFlow whose behaviour is kept, as scripts and stored graphs see it."""

from __future__ import annotations

VERSION = "1.15.5"
GIT_VERSION = "trainband"
