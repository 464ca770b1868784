"""`tf.summary`: what TensorBoard shows."""
