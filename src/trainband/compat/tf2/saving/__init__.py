"""Checkpoints of objects and their variables, and models as files."""
