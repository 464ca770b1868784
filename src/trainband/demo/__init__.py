"""`python -m trainband.demo`: trains on handwritten digits with one ps and two workers on this machine.

`mnist.py` is the repository's `examples/mnist.py`, by a link, so that an installed package has it too.
"""
