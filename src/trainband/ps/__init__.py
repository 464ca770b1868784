"""The parameter server: where variables live, how pushes become updates, and both ends of the exchange."""
