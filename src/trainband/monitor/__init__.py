"""Seeing a job: histories, and what hands its figures to trackers."""
