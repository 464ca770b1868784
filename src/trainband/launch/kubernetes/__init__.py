"""Jobs on Kubernetes: the objects that make one, and how its pods are followed."""
