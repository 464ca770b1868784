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

from bench.peers.steps import Batch, Part, make_peer_parser
from bench.peers.torch_networks import make_network

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
        inputs, labels = batches[number % len(batches)]
        loss = cross_entropy(replica(inputs), labels)
        optimizer.zero_grad(set_to_none=False)  # the gradients are views of the bucket
        loss.backward()
        optimizer.step()

    part.run(step, lambda: None)  # on the CPU, a step is done when it returns
    for buffer in network.buffers():
        dist.broadcast(buffer, 0)  # running averages, as each step begins
    network.eval()
    inputs, labels = as_tensors(part.test)
    with torch.no_grad():
        part.write_result(float(cross_entropy(network(inputs), labels)))


def cross_entropy(logits: Any, labels: Any) -> Any:
    """Return the mean over the examples, and over the tokens of each."""
    return nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten())


def as_tensors(batch: Batch) -> Any:
    """Return the batch as PyTorch takes it: channels before rows, and long labels."""
    inputs, labels = (torch.from_numpy(array) for array in batch)
    if inputs.ndim == 4:
        inputs = inputs.permute(0, 3, 1, 2).contiguous()
    return inputs, labels.long()


if __name__ == "__main__":
    main()
