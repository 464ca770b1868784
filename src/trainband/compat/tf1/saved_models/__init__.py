"""SavedModel: a graph with its signatures and the values of its variables, in a directory."""
