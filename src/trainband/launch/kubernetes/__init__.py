"""Jobs on Kubernetes: creating their objects and following their pods."""
