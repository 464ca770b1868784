"""Measurements against peers; each is one command, run from the repository's root.

::

    python -m bench.ps_mnist     parameter-server training of a small network: the peers and trainband in turn
    python -m bench.push_pull    moving 400 MB to a parameter server and back: a socket, TensorFlow, trainband
    python -m bench.scaling      how an exchange grows with the number of ps and workers
    python -m bench.stragglers   the cost of a slow worker under each update rule
    python -m bench.standbys     the cost of a standby for every shard while nothing fails
    python -m bench.allreduce    two workers with the whole model, also ResNet-18 and GPT-2: the peers and trainband
    python -m bench.tables       a table of embeddings on ps: TensorFlow, dense JAX, trainband
    python -m bench.gpu          the checks that need a GPU (`make test-gpu`); says so without one
    python -m bench.chaos        a job under random faults: its throughput and recovery

`peers` holds the compared programs, `tasks` trainband's own; both are programs that the commands start, one process a
task. TensorFlow has its own environment, which is made when first needed (see `environments`).
"""
