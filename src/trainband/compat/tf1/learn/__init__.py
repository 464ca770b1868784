"""`tf.contrib.learn`: TensorFlow's first estimators, over those of `tf.estimator`."""

from __future__ import annotations
