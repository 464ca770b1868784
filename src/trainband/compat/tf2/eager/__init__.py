"""The eager face: tensors, tapes, variables, functions, and what scripts call on them."""
