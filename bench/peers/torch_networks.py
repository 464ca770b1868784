"""The networks of `bench.allreduce` in PyTorch, which alone it needs."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from bench.peers.steps import (
    CHANNELS,
    CLASSES,
    CONTEXT,
    EPSILON,
    HEADS,
    HIDDEN,
    LAYERS,
    MOMENTUM,
    STAGES,
    VOCABULARY,
    WIDTH,
)


def make_network(model: str) -> Any:
    """Make the network with the initial values of TensorFlow's layers, of He et al. or of GPT-2."""
    if model == "resnet18":
        return resnet18()
    if model == "gpt2":
        return GPT2()
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


def resnet18() -> Any:
    """Make ResNet-18; its module for JAX says more."""
    blocks = []
    before = STAGES[0]
    for after in STAGES:
        blocks += [Block(before, after, 1 if before == after else 2), Block(after, after, 1)]
        before = after
    network = nn.Sequential(
        *_conv_and_norm(3, STAGES[0], 7, 2),
        nn.ReLU(),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(before, CLASSES),
    )
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight)
    return network


class Block(nn.Module):  # type: ignore[misc]
    """Two convolutions of 3x3 and what they leave out."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        """Make the layers."""
        super().__init__()
        self.inner = nn.Sequential(
            *_conv_and_norm(before, after, 3, stride), nn.ReLU(), *_conv_and_norm(after, after, 3, 1)
        )
        self.shortcut = nn.Identity() if before == after else nn.Sequential(*_conv_and_norm(before, after, 1, stride))

    def forward(self, images: Any) -> Any:
        """Compute the block."""
        return functional.relu(self.inner(images) + self.shortcut(images))


def _conv_and_norm(before: int, after: int, size: int, stride: int) -> tuple[Any, Any]:
    conv = nn.Conv2d(before, after, size, stride, padding=size // 2, bias=False)
    return conv, nn.BatchNorm2d(after, EPSILON, 1 - MOMENTUM)


class GPT2(nn.Module):  # type: ignore[misc]
    """The GPT-2, whose embedding also gives the logits."""

    def __init__(self) -> None:
        """Make the layers."""
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Parameter(torch.zeros(CONTEXT, WIDTH))
        self.layers = nn.Sequential(*(Layer() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH, EPSILON)
        for name, values in self.named_parameters():
            if values.ndim == 2:
                nn.init.normal_(values, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(values)

    def forward(self, tokens: Any) -> Any:
        """Return float32[batch, 128, 8192] from int64[batch, 128]."""
        values = self.layers(self.tokens(tokens) + self.positions)
        return functional.linear(self.norm(values), self.tokens.weight)


class Layer(nn.Module):  # type: ignore[misc]
    """Attention to earlier tokens, and two dense layers."""

    def __init__(self) -> None:
        """Make the layers."""
        super().__init__()
        self.attention_norm = nn.LayerNorm(WIDTH, EPSILON)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.mixed = nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.LayerNorm(WIDTH, EPSILON),
            nn.Linear(WIDTH, 4 * WIDTH),
            nn.GELU(approximate="tanh"),
            nn.Linear(4 * WIDTH, WIDTH),
        )

    def forward(self, values: Any) -> Any:
        """Compute the layer."""
        split = self.qkv(self.attention_norm(values)).unflatten(-1, (3, HEADS, WIDTH // HEADS))
        query, key, value = split.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        values = values + self.mixed(mixed.transpose(1, 2).flatten(-2))
        return values + self.mlp(values)
