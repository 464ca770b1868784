"""trainband's programs that `bench` starts, one process a task."""
