"""Names of `tf.keras` that cannot be, and what to use in their place."""

from __future__ import annotations

REFUSED = {
    "estimator": (
        "tf.keras.estimator: TensorFlow no longer has estimators. Train the model with model.fit, or use "
        "tf.estimator of TensorFlow 1's face."
    ),
    "wrappers": (
        "tf.keras.wrappers: Keras no longer has wrappers for scikit-learn under this name. Use the package scikeras."
    ),
}
