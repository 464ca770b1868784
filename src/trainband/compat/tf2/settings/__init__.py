"""What scripts set and ask of the library itself."""
