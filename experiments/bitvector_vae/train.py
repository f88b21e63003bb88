"""The model, and how it is trained and measured."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

import fenchel
from fenchel.latent import Expectation, History, estimators, log_likelihood, marginalize

from .. import latents, runs
from ..images import read_training

PIXELS = 784
EXACT = ("sparsemap", "sparsemap-budget", "top-k")
ESTIMATORS = (*EXACT, *latents.sampling())
RANK = 5
"""How many numbers say which level of grey a pixel has, if there are more than two levels."""
MAX_NUMBERS = 20_000 * PIXELS
"""The most numbers that are decoded at once."""


class BitvectorVae(nn.Module):
    """Scores of bits from an image, and an image from bits, each with one hidden layer.

    A pixel is black or white with one score; of more levels of grey, all have scores, by one linear
    map for all pixels.

    Args:
        bits: of the latent variable.
        levels: of grey.
        hidden: the width of the hidden layers.
    """

    def __init__(self, bits: int, levels: int = 2, hidden: int = 128) -> None:
        super().__init__()
        self.levels = levels
        self.encoder = nn.Sequential(nn.Linear(PIXELS, hidden), nn.ReLU(), nn.Linear(hidden, bits))
        first = nn.Linear(bits, hidden), nn.ReLU()
        if levels == 2:
            self.decoder = nn.Sequential(*first, nn.Linear(hidden, PIXELS))
        else:
            pixels = nn.Linear(hidden, PIXELS * RANK), nn.Unflatten(-1, (PIXELS, RANK))
            self.decoder = nn.Sequential(*first, *pixels, nn.Linear(RANK, levels))

    @property
    def chunk(self) -> int:
        """How many pairs are decoded at once."""
        return max(1, MAX_NUMBERS // (PIXELS * (self.levels if self.levels > 2 else 1)))

    def scores(self, x: Tensor) -> Tensor:
        """Scores of the bits, from images x of levels."""
        return self.encoder(x.float() / (self.levels - 1))

    def loss(self, x: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
        """−log p(x | z) of pairs of an image of the batch x and of bits."""

        def of_pairs(item: Tensor, z: Tensor) -> Tensor:
            logits = self.decoder(z)
            if self.levels == 2:
                target = x[item].to(logits.dtype)
                return binary_cross_entropy_with_logits(logits, target, reduction="none").sum(-1)
            return cross_entropy(logits.movedim(-1, 1), x[item], reduction="none").sum(-1)

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
    levels: int,
    likelihood: int,
    samples: int,
    device: str,
    minutes: float | None = None,
) -> runs.History:
    """Trains on a folder of images, or resumes the run in `folder`.

    Args:
        folder: of the run.
        data: see `images.read_training`.
        estimator: one of ESTIMATORS.
        bits: of the latent variable.
        epochs: in all.
        seed: for weights, order and samples.
        lr: Adam's learning rate.
        batch: images per step.
        top_k: the most configurations that top-k looks at.
        budget: the most bits that may be one, as a share of all, for the estimator with a budget.
        images: how many are used for training.
        levels: of grey, to which a pixel is rounded; 2 for black and white.
        likelihood, samples: of how many validation images the likelihood is estimated, and by how
            many samples each.
        device: to train on.
        minutes: see `runs.fit`.
    Returns:
        One record per epoch: on the validation images `elbo` in nats, the negative sum of
        `distortion` and `rate`, and `bits_per_dimension`; decoder calls, times.
    Raises:
        ValueError: for a budget that is no such share, or levels that are not from 2 to 256.
    """
    if not 0 < budget <= 1:
        raise ValueError(f"`budget` must be above 0 and at most 1, got {budget}.")
    if not 2 <= levels <= 256:
        raise ValueError(f"`levels` must be from 2 to 256, got {levels}.")
    options = {"data": data.resolve().name, "estimator": estimator, "bits": bits, "seed": seed}
    options |= {"lr": lr, "batch": batch, "top_k": top_k, "budget": budget, "images": images}
    options |= {"levels": levels, "likelihood": likelihood, "samples": samples}
    runs.open_run(folder, options)
    parts = read_training(data)
    parts[0].check("images", images)
    training, validation = (grey(part.pixels, levels).to(device) for part in parts)
    training, validation = training[:images], validation[: max(1000, images // 5)]
    torch.manual_seed(seed)
    network = BitvectorVae(bits, levels)
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


def grey(pixels: Tensor, levels: int) -> Tensor:
    """Pixels in [0, 1] as the nearest levels, from 0 on."""
    return (pixels * (levels - 1)).round().long()


def expected(network: BitvectorVae, x: Tensor, estimator: Any) -> Expectation:
    """Σ q(z | x) (−log p(x | z))."""
    scores, context = network.scores(x), x.float() / (network.levels - 1)
    return marginalize(scores, network.loss(x), estimator, context=context, chunk=network.chunk)


def rate_of(outcome: Expectation, bits: int) -> Tensor:
    """The divergence from a uniform prior over all bits, for a budget too."""
    return outcome.kl(structure=fenchel.Bits(bits))


def bits_per_dimension(network: BitvectorVae, x: Tensor, estimator: Any, samples: int) -> float:
    """−log₂ p(x) per pixel, by importance sampling."""

    def log_density(z_item: Tensor, z: Tensor, part: Tensor) -> Tensor:
        return -network.loss(part)(z_item, z)

    values = [
        log_likelihood(
            network.scores(part),
            lambda item, z, part=part: log_density(item, z, part),
            estimator,
            samples=samples,
            chunk=network.chunk,
        ).value
        for part in x.split(100)
    ]
    return -mean_of(values) / (PIXELS * math.log(2))


def mean_of(parts: Any) -> float:
    """The mean of all values of some tensors."""
    return float(torch.cat(list(parts)).mean())


def _sampler(bits: int) -> estimators.ScoreFunction:
    return estimators.ScoreFunction(fenchel.Bits(bits), samples=4)
