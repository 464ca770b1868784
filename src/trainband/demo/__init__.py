"""`python -m trainband.demo`: trains on handwritten digits with one ps and two workers on this machine.

`mnist.py` is a copy of the repository's `examples/mnist.py`, so that an installed package has it, too.
"""
