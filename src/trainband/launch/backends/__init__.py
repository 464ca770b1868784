"""The platforms that a job can run on, one per file."""
