"""What is seen of a job: status, page and metrics. All of it reads the frozen statistics that tasks publish."""
