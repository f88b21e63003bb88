"""Sender and receiver, and how they are trained and measured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fenchel.latent import History, embed, estimators, marginalize

from .. import latents, runs
from . import features

INITIAL_SCALE = 0.1
"""The scale of the sender's output layer, relative to torch's default. Small scores give sparsemax
a wide support at first; a symbol outside every support is never learnt."""


class Game(nn.Module):
    """A sender, which sees an image, and a receiver, which sees a symbol and candidates.

    Args:
        width: of the features.
        symbols: in the vocabulary.
        hidden, embedding: the widths of hidden layers and of the symbols' vectors.
    """

    def __init__(
        self, width: int, symbols: int = 256, hidden: int = 512, embedding: int = 256
    ) -> None:
        super().__init__()
        output = nn.Linear(hidden, symbols)
        with torch.no_grad():
            for parameter in output.parameters():
                parameter.mul_(INITIAL_SCALE)
        self.sender = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), output)
        self.symbols = nn.Parameter(torch.randn(symbols, embedding) * embedding**-0.5)
        self.listen = nn.Linear(embedding, hidden)
        self.look = nn.Linear(width, hidden, bias=False)

    def receiver(self, candidates: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
        """Scores (N, candidates) of pairs of a round of candidates (B, 16, F) and a symbol: the
        products of what is heard and each candidate, looked at."""

        def of_pairs(item: Tensor, z: Tensor) -> Tensor:
            heard = self.listen(embed(z, self.symbols))
            sought = heard @ self.look.weight  # with one product a pair, not one a candidate
            return (candidates[item] @ sought.unsqueeze(-1)).squeeze(-1)

        return of_pairs


def train(
    folder: Path,
    data: Path,
    *,
    estimator: str,
    epochs: int,
    seed: int,
    lr: float,
    entropy: float,
    batch: int,
    candidates: int,
    images: int,
    device: str,
    minutes: float | None = None,
) -> runs.History:
    """Trains on features, or resumes the run in `folder`.

    Args:
        folder: of the run.
        data: a folder of images, or a file of features; see `features`.
        estimator: of the expectation over symbols, a name in `latents.CATEGORICAL`.
        epochs: in all.
        seed: for weights, rounds and samples.
        lr: Adam's learning rate.
        entropy: how much of the sender's entropy is added to the aim.
        batch: rounds per step.
        candidates: images that the receiver sees.
        images: how many are used for training.
        device: to train on.
        minutes: see `runs.fit`.
    Returns:
        One record per epoch: `success`, the percentage of validation rounds that the receiver
        wins, decoder calls, times.
    """
    options = {"data": data.resolve().name, "estimator": estimator, "seed": seed, "lr": lr}
    options |= {"entropy": entropy, "batch": batch, "candidates": candidates, "images": images}
    runs.open_run(folder, options)
    path = features.cached(data, folder.parent, device)
    training, validation = features.read(path, device, images)
    if not 2 <= candidates <= len(training):
        raise ValueError(f"`candidates` must be from 2 to {len(training)}, got {candidates}.")
    torch.manual_seed(seed)
    game = Game(training.shape[1])
    model = latents.Trained(game, latents.CATEGORICAL[estimator](training.shape[1])).to(device)
    optimizer = latents.adam(model, lr)
    history = History()

    def one_epoch() -> float:
        total = torch.zeros((), device=device)
        for chosen in model.batches(len(training), batch, device):
            shown, place = rounds(training, chosen, candidates)
            score = game.receiver(shown)

            def loss_fn(item: Tensor, z: Tensor, score=score, place=place) -> Tensor:
                return cross_entropy(score(item, z), place[item], reduction="none")

            x = training[chosen]
            outcome = marginalize(game.sender(x), loss_fn, model.estimator, context=x)  # type: ignore[arg-type]
            history.add(outcome)
            optimizer.zero_grad()
            (outcome.value - entropy * outcome.entropy).mean().backward()
            optimizer.step()
            total += outcome.value.detach().sum()
        return float(total) / len(training)

    def evaluate() -> dict[str, float]:
        return {"success": 100 * success(game, validation, candidates), **latents.calls(history)}

    return runs.fit(
        folder,
        model,
        optimizer,
        epochs=epochs,
        minutes=minutes,
        seed=seed,
        train=one_epoch,
        evaluate=evaluate,
        measure="success",
    )


def rounds(images: Tensor, chosen: Tensor, candidates: int) -> tuple[Tensor, Tensor]:
    """Candidates (B, candidates, F) with each chosen image at a random place (B) among others."""
    offsets = torch.randint(
        1, len(images), (len(chosen), candidates), device=images.device
    )  # never the chosen image itself
    shown = (chosen.unsqueeze(1) + offsets) % len(images)
    place = torch.randint(candidates, (len(chosen),), device=images.device)
    return images[shown.scatter(1, place.unsqueeze(1), chosen.unsqueeze(1))], place


def success(game: Game, images: Tensor, candidates: int) -> float:
    """The share of rounds that the receiver wins when the sender output its likeliest symbol."""
    likeliest = estimators.ScoreFunction().eval()
    won = torch.zeros((), device=images.device)
    for chosen in torch.arange(len(images), device=images.device).split(500):
        shown, place = rounds(images, chosen, candidates)
        score = game.receiver(shown)

        def hit(item: Tensor, z: Tensor, score=score, place=place) -> Tensor:
            return (score(item, z).argmax(-1) == place[item]).float()

        won += marginalize(game.sender(images[chosen]), hit, likeliest).value.sum()
    return float(won) / len(images)
