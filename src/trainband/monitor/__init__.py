"""Monitor: what people and programs see of a job: histories, snapshots, a live page, metrics."""
