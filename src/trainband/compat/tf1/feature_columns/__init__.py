"""`tf.feature_column`: how features become the inputs of a model."""

from __future__ import annotations
