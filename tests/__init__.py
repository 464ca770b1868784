"""The tests. A package, so that a helper is imported by one name wherever pytest is started: `tests.ps.jobs`."""
