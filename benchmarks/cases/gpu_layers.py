"""Linear layers to measure losses on: as a trained model has them, and as they are initialized."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

import fenchel

SUPPORT = 30
"""The mean support of 1.5-entmax on the scores of a trained layer."""
OTHERS, MIN_SHARE, NOISE = 64, 0.5, 0.5
"""Classes beside the target that a hidden state resembles, how much at least, and noise."""
SAMPLE = 256
"""Rows on which supports are counted."""


class Layer(NamedTuple):
    """Hidden states (n, width), weights (classes, width) and the classes of the rows (n,)."""

    hidden: Tensor
    weight: Tensor
    target: Tensor


def _support(scores: Tensor) -> float:
    """The mean number of entries that 1.5-entmax keeps."""
    return float((fenchel.entmax(scores, alpha=1.5) > 0).sum(-1).double().mean())


def _layer(hidden: Tensor, weight: Tensor, target: Tensor) -> Layer:
    """In bfloat16, with gradients wanted."""
    return Layer(hidden.bfloat16().requires_grad_(), weight.bfloat16().requires_grad_(), target)


def _states(n: int, width: int, classes: int) -> Layer:
    """Weights of about unit length; hidden states near their class's and, less so, some others'."""
    weight = torch.randn(classes, width, device="cuda").div_(width**0.5)
    target = torch.randint(classes, (n,), device="cuda")
    others = torch.randint(classes, (n, OTHERS), device="cuda")
    shares = torch.rand(n, OTHERS, device="cuda").mul_(1 - MIN_SHARE).add_(MIN_SHARE)
    hidden = functional.embedding_bag(others, weight, mode="sum", per_sample_weights=shares)
    hidden += weight[target]
    hidden += torch.randn_like(hidden).mul_(NOISE / width**0.5)
    return Layer(hidden, weight, target)


def trained(n: int, width: int, classes: int) -> Callable[[], Layer]:
    """Layers whose hidden states are scaled so that supports have SUPPORT entries on average."""
    sample = _states(SAMPLE, width, classes)
    scores = sample.hidden @ sample.weight.T
    low, high = 0.01, 100.0
    for _ in range(14):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if _support(scores * middle) > SUPPORT else (low, middle)
    scale = (low * high) ** 0.5

    def make() -> Layer:
        hidden, weight, target = _states(n, width, classes)
        return _layer(hidden * scale, weight, target)

    return make


def initialization(n: int, width: int, classes: int) -> Callable[[], Layer]:
    """Layers with hidden states N(0, 1) and weights N(0, 0.02²)."""

    def make() -> Layer:
        hidden = torch.randn(n, width, device="cuda")
        weight = torch.randn(classes, width, device="cuda").mul_(0.02)
        return _layer(hidden, weight, torch.randint(classes, (n,), device="cuda"))

    return make


REGIMES = {"trained": trained, "initialization": initialization}


def support(layer: Layer) -> float:
    """The mean number of entries that 1.5-entmax keeps of the layer's scores."""
    hidden, weight, _ = layer
    return _support(hidden[:SAMPLE].detach() @ weight.detach().T)
