"""Measurements against peers; each is one command, run from the repository's root.

::

    python -m bench.ps_mnist     parameter-server training of a small network: the peers and trainband in turn
    python -m bench.push_pull    moving 400 MB to a parameter server and back: a socket, TensorFlow, trainband
    python -m bench.scaling      how an exchange grows with the number of ps and workers
    python -m bench.stragglers   what a slow worker costs under each update rule
    python -m bench.replicas     what a standby for every shard costs while nothing fails
    python -m bench.allreduce    synchronous steps of two processes: bare JAX, PyTorch, TensorFlow, trainband
    python -m bench.gpu          the checks that want a GPU (`make test-gpu`); says so where there is none
    python -m bench.chaos        a job under random faults: what it still does, and how soon it is back

`peers` holds what we compare with, `tasks` what runs of ours; both are programs that the commands start, one process a
task. TensorFlow lives in an environment of its own, which is made when first needed (see `environments`).
"""
