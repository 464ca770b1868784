"""One worker of PyTorch's DistributedDataParallel on gloo: the gradients are averaged while they are computed.

Every process holds the model and computes the same Adam update. The settings are those that are fastest here: the
gradients lie in the bucket that travels, and Adam is the fused one.

It keeps the contract of `bench.ps_mnist`, which see, for the job `worker`. It needs PyTorch and NumPy, and nothing of
trainband.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from bench.peers.contract import HIDDEN, Part, parse_flags

TIMEOUT_S = 120


def main() -> None:
    """Run the worker that the flags name."""
    flags = parse_flags(__doc__)
    part = Part(flags)
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://{part.hosts[0]}",
        world_size=len(part.hosts),
        rank=part.index,
        timeout=timedelta(seconds=TIMEOUT_S),
    )
    try:
        work(part, flags.learning_rate)
        part.wait_for_all("done")  # worker:0 keeps the store that the others ask
    finally:
        dist.destroy_process_group()


def work(part: Part, learning_rate: float) -> None:
    """Train, evaluate and say how it went."""
    torch.manual_seed(0)
    network: Any = make_network()
    replica: Any = nn.parallel.DistributedDataParallel(network, gradient_as_bucket_view=True)
    optimizer: Any = torch.optim.Adam(replica.parameters(), lr=learning_rate, fused=True)

    def step(images: Any, labels: Any) -> None:
        loss = nn.functional.cross_entropy(replica(torch.from_numpy(images)), torch.from_numpy(labels).long())
        optimizer.zero_grad(set_to_none=False)  # the gradients are views of the bucket
        loss.backward()
        optimizer.step()

    part.train_together(step, lambda: None)  # on the CPU, a step is done when it returns
    images, labels = (torch.from_numpy(array) for array in part.test())
    with torch.no_grad():
        logits = network(images)
        loss = nn.functional.cross_entropy(logits, labels.long())
    part.print_result(float(loss), float((logits.argmax(dim=1) == labels).float().mean()))


def make_network() -> Any:
    """Make the 784-100-10 network with the initial values of TensorFlow's Dense layer."""
    network: Any = nn.Sequential(nn.Linear(784, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 10))
    for layer in network:
        if isinstance(layer, nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
    return network


if __name__ == "__main__":
    main()
