"""What shows a job to those who watch it."""
