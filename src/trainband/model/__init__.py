"""The model: what is trained, its variables, and what its traced program is proven to be."""
