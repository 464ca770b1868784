"""A whole job in simulated time: the real state machines of a ps among faults that a seed decides."""
