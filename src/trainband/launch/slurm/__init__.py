"""Slurm as a platform of the launcher: its allocations, its commands, and submitted jobs."""
