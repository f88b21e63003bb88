"""Image features: from a file, or from a small classifier of the images, trained here."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from .. import files, latents
from ..images import Images, read_training

WIDTH = 128
STEPS = 2000
BATCH = 128


def read(path: Path, device: str, images: int) -> tuple[Tensor, Tensor]:
    """The features of the training and of the validation images, (N, F) each; over those for
    training each feature has mean zero and variance one, or is zero.

    Args:
        path: a safetensors file with `train` and `validation`.
        device: where to put them.
        images: how many training images at most.
    Raises:
        ValueError: if the file lacks a tensor, or their widths differ.
    """
    found = load_file(path)
    if not {"train", "validation"} <= found.keys():
        raise ValueError(f"{path} must hold the tensors `train` and `validation`.")
    train, validation = found["train"].float(), found["validation"].float()
    if train.ndim != 2 or validation.ndim != 2 or train.shape[1] != validation.shape[1]:
        raise ValueError(
            f"`train` and `validation` of {path} must have shape (N, F) with one F; got "
            f"{tuple(train.shape)} and {tuple(validation.shape)}."
        )
    mean, spread = train.mean(0), train.std(0, correction=0)
    spread = torch.where(spread > 0, spread, torch.inf)
    return ((train[:images] - mean) / spread).to(device), ((validation - mean) / spread).to(device)


def cached(data: Path, folder: Path, device: str) -> Path:
    """A file of the features of a folder of images, computed once for all runs of a folder; or
    the file that is given."""
    if data.is_file():
        return data
    path = folder / f"features-{data.resolve().name}.safetensors"
    if not path.exists():
        train, validation = _compute(data, device)
        folder.mkdir(parents=True, exist_ok=True)
        files.write(path, save({"train": train.cpu(), "validation": validation.cpu()}))
    return path


def _compute(data: Path, device: str) -> tuple[Tensor, Tensor]:
    training, validation = (part.to(device) for part in read_training(data))
    network = _trained(training, device)
    with torch.no_grad():
        return network(training.pixels), network(validation.pixels)


def _trained(images: Images, device: str) -> nn.Module:
    """The layers below the classes of a classifier."""
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, WIDTH), nn.ReLU())
    body.to(device)
    head = nn.Linear(WIDTH, 10).to(device)
    optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()], 1e-3)
    taken, right = 0, torch.zeros((), device=device)
    while taken < STEPS:
        for chosen in latents.batches(len(images.labels), BATCH, device):
            scores = head(body(images.pixels[chosen]))
            loss = cross_entropy(scores, images.labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            taken += 1
            hit = (scores.argmax(-1) == images.labels[chosen]).float().mean()
            right.lerp_(hit, 0.01)
            if taken == STEPS:
                break
    print(f"features from a classifier with training accuracy {right:.3f}", file=sys.stderr)
    return body
