"""`tf.estimator`: models that are trained, evaluated and asked as one object."""

from __future__ import annotations
