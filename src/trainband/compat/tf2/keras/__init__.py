"""`tf.keras`: Keras 3 on JAX, and what programs written for Keras 2 expect beyond it."""
