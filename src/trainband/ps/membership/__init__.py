"""Who is in the job, who stands still, and when the job is over."""
