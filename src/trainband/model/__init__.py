"""The model: the trained functions, their variables, and proofs about their traced programs."""
