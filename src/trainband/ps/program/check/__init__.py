"""Checks update programs from the network in their own process before this one touches them."""
