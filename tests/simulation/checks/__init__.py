"""What must hold of every history: one kind of promise a file. All are pure: a list of records in, violations out."""

from tests.simulation.checks.every import violations as violations
