"""The seed of a graph."""

from __future__ import annotations

from trainband.compat.tf1.graphs.graph import get_default_graph


def set_random_seed(seed: int | None) -> None:
    """Set the graph's seed: with it, every execution of the script draws the same numbers."""
    get_default_graph().seed = seed


def get_seed(op_seed: int | None) -> tuple[int | None, int | None]:
    """The seeds of the graph and of an operation, as TensorFlow fills them in."""
    graph = get_default_graph()
    if graph.seed is None:
        return (None, None) if op_seed is None else (87654321, op_seed)
    seeds = graph.seed, len(graph.operations) if op_seed is None else op_seed
    return (0, 2**31 - 1) if seeds in ((0, 0), (2**31 - 1, 0)) else seeds
