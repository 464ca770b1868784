"""Names of `tf.keras` that cannot be, and what to use in their place."""

from __future__ import annotations

REFUSED = {
    "estimator": (
        "tf.keras.estimator: TensorFlow has no estimators any more. Train the model with model.fit, or use "
        "tf.estimator of TensorFlow 1's face."
    ),
    "wrappers": (
        "tf.keras.wrappers: Keras has no wrappers for scikit-learn under this name any more. Use the package scikeras."
    ),
}
