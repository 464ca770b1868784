"""One worker of PyTorch's DistributedDataParallel on gloo: the gradients are averaged while they are computed.

The settings are those that are fastest here: the gradients lie in the bucket that travels, and Adam is the fused one.

It keeps the contract of `bench.allreduce`, which see. It needs PyTorch and NumPy, and nothing of trainband.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from bench.peers.steps import CHANNELS, CLASSES, HIDDEN, Batch, Part, make_peer_parser

TIMEOUT_S = 120


def main() -> None:
    """Run the worker that the flags name."""
    flags = make_peer_parser(__doc__).parse_args()
    part = Part(flags, flags.task_index)
    hosts = flags.worker_hosts.split(",")
    torch.set_num_threads(flags.threads)
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://{hosts[0]}",
        world_size=len(hosts),
        rank=part.index,
        timeout=timedelta(seconds=TIMEOUT_S),
    )
    try:
        train(part, flags.model, flags.learning_rate)
        part.wait_for_all(len(hosts))  # the first keeps the store that the others ask
    finally:
        dist.destroy_process_group()


def train(part: Part, model: str, learning_rate: float) -> None:
    """Train, evaluate and say how it went."""
    torch.manual_seed(0)
    network: Any = make_network(model)
    replica: Any = nn.parallel.DistributedDataParallel(network, gradient_as_bucket_view=True)
    optimizer: Any = torch.optim.Adam(replica.parameters(), lr=learning_rate, fused=True)
    batches = [as_tensors(batch) for batch in part.batches]

    def step(number: int) -> None:
        images, labels = batches[number % len(batches)]
        loss = nn.functional.cross_entropy(replica(images), labels)
        optimizer.zero_grad(set_to_none=False)  # the gradients are views of the bucket
        loss.backward()
        optimizer.step()

    part.run(step, lambda: None)  # on the CPU, a step is done when it returns
    images, labels = as_tensors(part.test)
    with torch.no_grad():
        part.write_result(float(nn.functional.cross_entropy(network(images), labels)))


def as_tensors(batch: Batch) -> Any:
    """Return the batch as PyTorch takes it: channels before rows, and long labels."""
    images, labels = (torch.from_numpy(array) for array in batch)
    if images.ndim == 4:
        images = images.permute(0, 3, 1, 2).contiguous()
    return images, labels.long()


def make_network(model: str) -> Any:
    """Make the network with the initial values of TensorFlow's layers."""
    network: Any
    if model == "mlp":
        network = nn.Sequential(nn.Linear(784, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))
    else:
        first, second = CHANNELS
        network = nn.Sequential(
            nn.Conv2d(1, first, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(first, second, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(7 * 7 * second, CLASSES),
        )
    for layer in network:
        if isinstance(layer, nn.Linear | nn.Conv2d):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
    return network


if __name__ == "__main__":
    main()
