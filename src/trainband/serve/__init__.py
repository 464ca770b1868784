"""Serve: predictions over HTTP, from an exported model, from checkpoints or from a running job."""
