"""Proofs about a traced program: an optimizer's dependence, and whether a loss is a mean over examples."""
