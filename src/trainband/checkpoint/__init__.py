"""Checkpoints as files: manifest, parts, directory and lock. Nothing here knows of tasks or training."""
