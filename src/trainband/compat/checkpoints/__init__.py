"""Checkpoints as files, for both versions: which are there, what is in them, and TensorFlow's own."""
