"""Trains and measures the model."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

import fenchel
from fenchel.latent import History, estimators, marginalize

from .. import latents, runs
from ..images import Images, read_training
from .model import PIXELS, SemisupervisedVae


def train(
    folder: Path,
    data: Path,
    *,
    estimator: str,
    epochs: int,
    warm: int,
    seed: int,
    lr: float,
    alpha: float,
    batch: int,
    labels: int,
    images: int,
    device: str,
    minutes: float | None = None,
) -> runs.History:
    """Trains on a folder of digits, or resumes the run in `folder`.

    Args:
        folder: of the run.
        data: see `images.read_training`.
        estimator: of the expectation over classes, a name in `latents.CATEGORICAL`.
        epochs: in all, over the images without labels.
        warm: epochs over the labelled ones alone, before.
        seed: for weights, order and samples.
        lr: Adam's learning rate.
        alpha: how much the classification loss of the labelled images counts.
        batch: images per step, and labelled ones beside them.
        labels: how many of the first images have one.
        images: how many are used for training, those included.
        device: to train on.
        minutes: see `runs.fit`.
    Returns:
        One record per epoch: `accuracy` and `elbo` on the validation images, decoder calls, times.
    """
    options = {"data": data.resolve().name, "estimator": estimator, "warm": warm, "seed": seed}
    options |= {"lr": lr, "batch": batch, "alpha": alpha, "labels": labels, "images": images}
    runs.open_run(folder, options)
    training, validation = (part.to(device) for part in read_training(data))
    training.check("images", images)
    training.check("labels", labels)
    training, validation = training.first(images), validation.first(max(1000, images // 5))
    labelled, unlabelled = training.first(labels), Images(*(part[labels:] for part in training))
    torch.manual_seed(seed)
    network = SemisupervisedVae()
    model = latents.Trained(network, latents.CATEGORICAL[estimator](PIXELS)).to(device)
    optimizer = latents.adam(model, lr)
    sparse = estimator == "sparsemax"
    mapping = fenchel.Sparsemax() if sparse else fenchel.Softmax()
    history = History()

    def supervised(chosen: Tensor) -> Tensor:
        x, y = labelled.pixels[chosen], labelled.labels[chosen]
        item = torch.arange(len(x), device=device)
        known = mapping.loss(network.classifier(x), y)  # for sparsemax the sparsemax loss
        return network.loss(x, item, y).mean() + alpha * known

    def unsupervised(x: Tensor) -> Tensor:
        outcome = marginalize(
            network.classifier(x),
            lambda item, y: network.loss(x, item, y),
            model.estimator,  # type: ignore[arg-type]
            context=x,
        )
        history.add(outcome)
        return (outcome.value + outcome.kl()).mean()

    def update(loss: Tensor) -> None:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def one_epoch() -> float:
        if not model.steps:
            for _ in range(warm):
                for chosen in latents.batches(len(labelled.labels), batch, device):
                    update(supervised(chosen))
        total = torch.zeros((), device=device)
        for chosen in model.batches(len(unlabelled.labels), batch, device):
            beside = torch.randint(len(labelled.labels), (batch,), device=device)
            loss = unsupervised(unlabelled.pixels[chosen])
            total += loss.detach() * len(chosen)
            update(loss + supervised(beside))
        return float(total) / len(unlabelled.labels)

    def evaluate() -> dict[str, float]:
        return {**measure(network, validation, mapping), **latents.calls(history)}

    return runs.fit(
        folder,
        model,
        optimizer,
        epochs=epochs,
        minutes=minutes,
        seed=seed,
        train=one_epoch,
        evaluate=evaluate,
        measure="accuracy",
    )


def measure(
    network: SemisupervisedVae, validation: Images, mapping: fenchel.mappings.AbstractMapping
) -> dict[str, float]:
    """`accuracy` in percent and `elbo` in nats, the expectation over classes exact."""
    scores = network.classifier(validation.pixels)
    right = (scores.argmax(-1) == validation.labels).double().mean()
    total = scores.new_zeros(())
    for x, part in zip(validation.pixels.split(1000), scores.split(1000), strict=True):
        outcome = marginalize(
            part, lambda item, y, x=x: network.loss(x, item, y), estimators.Exact(mapping)
        )
        total -= (outcome.value + outcome.kl()).sum()
    return {"accuracy": 100 * float(right), "elbo": float(total) / len(validation.labels)}
