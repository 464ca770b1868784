"""Measurements against peers; each is one command, run from the repository's root.

::

    python -m bench.ps_mnist     parameter-server training of a small network: TensorFlow and trainband in turn
    python -m bench.push_pull    moving 400 MB to a parameter server and back: a socket, TensorFlow, trainband

`peers` holds what we compare with, `tasks` what runs of ours; both are programs that the commands start, one process a
task. TensorFlow lives in an environment of its own, which is made when first needed (see `environments`).
"""
