"""The protocols that requests are read and answered in, one a file."""
