"""Compress: weights in fewer bytes, and what that costs in accuracy."""
