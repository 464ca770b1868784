"""Slurm as a platform of the launcher: what a job of it has, its commands, a job that was submitted to it."""
