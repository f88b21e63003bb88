"""The model, and how it is trained and measured."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

import fenchel
from fenchel.latent import Expectation, History, estimators, log_likelihood, marginalize

from .. import latents, runs
from ..images import read_training

PIXELS = 784
EXACT = ("sparsemap", "sparsemap-budget", "top-k")
ESTIMATORS = (*EXACT, *latents.sampling())
PAIRS = 20_000
"""The most pairs that the likelihood decodes at once."""


class BitvectorVae(nn.Module):
    """Scores of bits from an image, and an image from bits, each with one hidden layer."""

    def __init__(self, bits: int, hidden: int = 128) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(PIXELS, hidden), nn.ReLU(), nn.Linear(hidden, bits))
        self.decoder = nn.Sequential(nn.Linear(bits, hidden), nn.ReLU(), nn.Linear(hidden, PIXELS))

    def loss(self, x: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
        """−log p(x | z) of pairs of an image of the batch x and of bits."""

        def of_pairs(item: Tensor, z: Tensor) -> Tensor:
            logits = self.decoder(z)
            return binary_cross_entropy_with_logits(logits, x[item], reduction="none").sum(-1)

        return of_pairs


def build(name: str, bits: int, top_k: int, budget: float) -> Any:
    """The estimator of a name."""
    if name == "sparsemap":
        return estimators.Exact(fenchel.Bits(bits))
    if name == "sparsemap-budget":
        return estimators.Exact(fenchel.Budget(bits, max(1, int(budget * bits))))
    if name == "top-k":
        return estimators.TopK(fenchel.Bits(bits), k=min(32, top_k), max_k=top_k)
    return latents.sampling(fenchel.Bits(bits))[name](PIXELS)


def train(
    folder: Path,
    data: Path,
    *,
    estimator: str,
    bits: int,
    epochs: int,
    seed: int,
    lr: float,
    batch: int,
    top_k: int,
    budget: float,
    images: int,
    likelihood: int,
    samples: int,
    device: str,
    minutes: float | None = None,
) -> runs.History:
    """Trains on a folder of images, or resumes the run in `folder`.

    Args:
        folder: of the run.
        data: see `images.read_training`; a pixel is black or white, split in the middle.
        estimator: one of ESTIMATORS.
        bits: of the latent variable.
        epochs: in all.
        seed: for weights, order and samples.
        lr: Adam's learning rate.
        batch: images per step.
        top_k: the most configurations that top-k looks at.
        budget: the most bits that may be one, as a share of all, for the estimator with a budget.
        images: how many are used for training.
        likelihood, samples: of how many validation images the likelihood is estimated, and by how
            many samples each.
        device: to train on.
        minutes: see `runs.fit`.
    Returns:
        One record per epoch: on the validation images `elbo` in nats, the negative sum of
        `distortion` and `rate`, and `bits_per_dimension`; decoder calls, times.
    Raises:
        ValueError: for a budget that is no such share.
    """
    if not 0 < budget <= 1:
        raise ValueError(f"`budget` must be above 0 and at most 1, got {budget}.")
    options = {"estimator": estimator, "bits": bits, "seed": seed, "lr": lr, "batch": batch}
    options |= {"top_k": top_k, "budget": budget, "images": images}
    options |= {"likelihood": likelihood, "samples": samples}
    runs.open_run(folder, options)
    training, validation = (part.pixels.to(device).gt(0.5).float() for part in read_training(data))
    training, validation = training[:images], validation[: max(1000, images // 5)]
    torch.manual_seed(seed)
    network = BitvectorVae(bits)
    model = latents.Trained(network, build(estimator, bits, top_k, budget)).to(device)
    optimizer = latents.adam(model, lr)
    history = History()

    def one_epoch() -> float:
        total = torch.zeros((), device=device)
        for chosen in model.batches(len(training), batch, device):
            x = training[chosen]
            outcome = expected(network, x, model.estimator)
            history.add(outcome)
            loss = (outcome.value + rate_of(outcome, bits)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach() * len(x)
        return float(total) / len(training)

    def evaluate() -> dict[str, float]:
        # In evaluation the samplers would take the mode; the ELBO is an expectation.
        evaluated = model.estimator if estimator in EXACT else _sampler(bits)
        outcomes = [expected(network, x, evaluated) for x in validation.split(500)]
        distortion = mean_of(outcome.value for outcome in outcomes)
        rate = mean_of(rate_of(outcome, bits) for outcome in outcomes)
        return {
            "elbo": -distortion - rate,
            "distortion": distortion,
            "rate": rate,
            "bits_per_dimension": bits_per_dimension(
                network, validation[:likelihood], evaluated, samples
            ),
            **latents.calls(history),
        }

    return runs.fit(
        folder,
        model,
        optimizer,
        epochs=epochs,
        minutes=minutes,
        seed=seed,
        train=one_epoch,
        evaluate=evaluate,
        measure="elbo",
    )


def expected(network: BitvectorVae, x: Tensor, estimator: Any) -> Expectation:
    """Σ q(z | x) (−log p(x | z))."""
    return marginalize(network.encoder(x), network.loss(x), estimator, context=x)


def rate_of(outcome: Expectation, bits: int) -> Tensor:
    """The divergence from a uniform prior over all bits, for a budget too."""
    return outcome.kl(structure=fenchel.Bits(bits))


def bits_per_dimension(network: BitvectorVae, x: Tensor, estimator: Any, samples: int) -> float:
    """−log₂ p(x) per pixel, by importance sampling."""

    def log_density(z_item: Tensor, z: Tensor, part: Tensor) -> Tensor:
        return -network.loss(part)(z_item, z)

    values = [
        log_likelihood(
            network.encoder(part),
            lambda item, z, part=part: log_density(item, z, part),
            estimator,
            samples=samples,
            chunk=PAIRS,
        ).value
        for part in x.split(100)
    ]
    return -mean_of(values) / (PIXELS * math.log(2))


def mean_of(parts: Any) -> float:
    """The mean of all values of some tensors."""
    return float(torch.cat(list(parts)).mean())


def _sampler(bits: int) -> estimators.ScoreFunction:
    return estimators.ScoreFunction(fenchel.Bits(bits), samples=4)
