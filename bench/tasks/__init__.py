"""The programs of ours that `bench` starts, one process a task."""
