"""Records that tasks send to each other, and their encoding."""
