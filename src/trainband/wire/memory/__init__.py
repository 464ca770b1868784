"""Transport within one process, for tests and simulations."""
