"""Streams through memory that two processes of one machine share."""
