"""A torch module of the user's: trained by mini-batches, and its scores."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...mappings import AbstractMapping


@contextlib.contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Random numbers from a seed; afterwards torch's own go on as if nothing had been drawn."""
    is_cuda = device.type == "cuda"
    with torch.random.fork_rng(devices=[device] if is_cuda else []):
        torch.default_generator.manual_seed(seed)
        if is_cuda:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


def build(
    module: nn.Module | Callable[[int, int], nn.Module], num_features: int, num_classes: int
) -> nn.Module:
    """A copy of the module, or what the function returns for these numbers."""
    if isinstance(module, nn.Module):
        return copy.deepcopy(module)
    if not callable(module):
        raise TypeError(
            "`module` must be a torch.nn.Module, or a function of the numbers of features and "
            f"classes that returns one, got {type(module).__name__}."
        )
    made = module(num_features, num_classes)
    if not isinstance(made, nn.Module):
        raise TypeError(f"`module` must return a torch.nn.Module, got {type(made).__name__}.")
    return made


def train(
    module: nn.Module,
    mapping: AbstractMapping,
    X: np.ndarray,
    target: np.ndarray,
    weights: np.ndarray,
    num_classes: int,
    *,
    epochs: int,
    batch_size: int,
    lr: float,
    weight_decay: float,
    device: torch.device,
) -> list[float]:
    """Trains the module with AdamW, and returns the mean loss of each epoch.

    Args:
        weights: (n,), with mean one.
    """
    n = len(X)
    module.to(device).train()
    optimizer = torch.optim.AdamW(module.parameters(), lr=lr, weight_decay=weight_decay)
    classes, per_row = torch.from_numpy(target), torch.from_numpy(weights)
    means = []
    for _ in range(epochs):
        total = 0.0
        # Batches of nearly equal size: a last one of a single row would stop a batch norm.
        for batch in torch.randperm(n).tensor_split(math.ceil(n / batch_size)):
            scores = _forward(module, X[batch.numpy()], num_classes, device)
            losses = mapping.loss(scores, classes[batch].to(device), reduction="none")
            loss = (losses * per_row[batch].to(losses)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(batch) / n
        if not math.isfinite(total):
            raise ValueError(f"the loss is {total}: training diverged; try a smaller `lr`.")
        means.append(total)
    module.eval().cpu()
    return means


def module_scores(
    module: nn.Module, X: np.ndarray, num_classes: int, batch_size: int, device: torch.device
) -> np.ndarray:
    """The scores of a trained module, (n, classes), in float64."""
    module.to(device)
    with torch.inference_mode():
        found = [
            _forward(module, X[first : first + batch_size], num_classes, device).cpu().double()
            for first in range(0, len(X), batch_size)
        ]
    module.cpu()  # where every machine can load it
    return torch.cat(found).numpy()


def _forward(module: nn.Module, X: Any, num_classes: int, device: torch.device) -> Tensor:
    """The scores of some rows, which have the type of the module's parameters."""
    floats = (p.dtype for p in module.parameters() if p.is_floating_point())
    scores = module(torch.tensor(X, dtype=next(floats, torch.float32), device=device))
    if scores.shape != (len(X), num_classes):
        raise ValueError(
            f"`module` must return one score for each class, of shape {(len(X), num_classes)}, "
            f"got {tuple(scores.shape)}."
        )
    return scores
