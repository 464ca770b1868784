"""Who is in the job, who is stuck, and when the job is over."""
