"""One ps task."""
