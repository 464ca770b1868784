"""Update programs from the network: checked in a process of their own before this one touches them."""
