"""A small language model of characters, with each attention at the same steps."""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fenchel import Entmax
from fenchel.attention import MultiHeadAttention

from .. import files
from .results import LANGUAGE, Results
from .settings import LanguageSettings
from .train import MAX_NORM, Clock, Step, autocast

KINDS = ("softmax", "entmax", "alpha")
"""Those of `settings.ATTENTIONS` that are compared."""


class Text:
    """Characters as numbers; the end of the text is held out.

    Args:
        path: a text file, plain or .gz, or a folder that holds one.
        device: of the tensors.
        held_out: how many characters; a tenth of them by default.
    Raises:
        ValueError: if the text is not longer than that.
    """

    def __init__(self, path: Path, device: str, held_out: int | None = None) -> None:
        if path.is_dir():
            path = files.find(path, ["input"], [".txt", ".gz"])
        text = "\n".join(files.lines(path))
        self.characters = sorted(set(text))
        number = {character: i for i, character in enumerate(self.characters)}
        codes = torch.tensor([number[character] for character in text], device=device)
        first = len(codes) * 9 // 10 if held_out is None else len(codes) - held_out
        if first <= 0:
            raise ValueError(
                f"the text must have more than {held_out} characters, got {len(codes)}."
            )
        self.training, self.held_out = codes.tensor_split([first])

    def sample(self, rows: int, context: int) -> Tensor:
        """Random stretches of the training text, (rows, context + 1)."""
        device = self.training.device
        first = torch.randint(len(self.training) - context, (rows, 1), device=device)
        return self.training[first + torch.arange(context + 1, device=device)]

    def stretches(self, rows: int, context: int) -> Tensor:
        """The first stretches of the held-out text, (rows, context + 1) or fewer.

        Raises:
            ValueError: if the text is shorter than one.
        """
        if len(self.held_out) <= context:
            raise ValueError(
                f"the held-out tenth of the text must have more than {context} characters, got "
                f"{len(self.held_out)}."
            )
        return self.held_out.unfold(0, context + 1, context)[:rows]


class LanguageModel(nn.Module):
    """A Transformer that predicts the next character.

    Args:
        size: how many characters there are.
        kind: of attention.
        settings: its shape.
    """

    def __init__(self, size: int, kind: str, settings: LanguageSettings) -> None:
        super().__init__()
        width = settings.width
        mapping = "softmax" if kind == "softmax" else Entmax(1.5)
        self.embedding = nn.Embedding(size, width)
        self.positions = nn.Parameter(torch.zeros(settings.context, width))
        nn.init.normal_(self.embedding.weight, std=width**-0.5)
        self.attentions = nn.ModuleList(
            MultiHeadAttention(width, settings.heads, mapping, kind == "alpha")
            for _ in range(settings.layers)
        )
        self.networks = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(settings.layers)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * settings.layers + 1))

    def forward(self, tokens: Tensor) -> Tensor:
        """The scores of the next characters, (B, T, characters)."""
        return self._scores(self._layers(tokens, None))

    def nonzeros(self, tokens: Tensor) -> Tensor:
        """How many weights of a query are not zero, on average, (layers, heads)."""
        counts: list[Tensor] = []
        self._layers(tokens, counts)
        return torch.stack(counts)

    def _layers(self, tokens: Tensor, counts: list[Tensor] | None) -> Tensor:
        x = self.embedding(tokens) + self.positions[: tokens.shape[1]]
        for i, (attention, network) in enumerate(zip(self.attentions, self.networks, strict=True)):
            inputs = self.norms[2 * i](x)
            if counts is None:
                found = attention(inputs, causal=True)
            else:
                found, weights = attention(inputs, causal=True, weights=True)
                counts.append((weights > 0).sum(-1).float().mean((0, 2)))
            x = x + found
            x = x + network(self.norms[2 * i + 1](x))
        return self.norms[-1](x)

    def _scores(self, x: Tensor) -> Tensor:
        return x @ self.embedding.weight.T

    def loss(self, rows: Tensor) -> Tensor:
        """−log p of a character, on average, of rows (B, T + 1)."""
        scores = self(rows[:, :-1])
        return cross_entropy(scores.flatten(0, 1).float(), rows[:, 1:].flatten())


def train(text: Text, kind: str, settings: LanguageSettings, device: str) -> dict[str, Any]:
    """Trains a model; what came of it.

    Returns:
        The loss on the held-out text at the end of each chunk of steps, milliseconds per step, the
        nonzeros by layer and head, the mean number of characters that a query sees, and the α of
        each layer and head if they are learned.
    """
    torch.manual_seed(1)
    model = LanguageModel(len(text.characters), kind, settings).to(device)
    parameters = list(model.parameters())
    step = Step(
        lambda: model.loss(text.sample(settings.batch, settings.context)),
        parameters,
        lr=settings.lr,
        warmup=settings.warmup,
        steps=settings.steps,
        device=device,
        clip=lambda: _clip(parameters),
    )
    held_out = text.stretches(settings.sequences, settings.context)
    history, seconds = [], []
    for first in range(0, settings.steps, settings.chunk):
        count = min(settings.chunk, settings.steps - first)
        start = time.perf_counter()
        total = torch.zeros((), device=device)
        for _ in range(count):
            total += step()
        training = float(total) / count  # waits for the device
        seconds.append((time.perf_counter() - start) / count)
        history.append(
            {"step": first + count, "training": training, "loss": _mean_loss(model, held_out)}
        )
        print(f"{kind}: {history[-1]}", file=sys.stderr, flush=True)
    with torch.no_grad():  # in float32, where weights of softmax do not become zero
        nonzeros = model.nonzeros(held_out[: settings.counted, :-1])
    alphas = [attention.alpha_logit for attention in model.attentions] if kind == "alpha" else []
    return {
        "attention": kind,
        "loss": history[-1]["loss"],
        "milliseconds": 1000 * statistics.median(seconds[1:] or seconds),
        "nonzeros": nonzeros.tolist(),
        "visible": (settings.context + 1) / 2,
        "alpha": [(1 + logit.sigmoid()).tolist() for logit in alphas],  # type: ignore[operator, union-attr]
        "history": history,
    }


def run(
    folder: Path,
    data: Path,
    kinds: list[str],
    settings: LanguageSettings,
    device: str,
    clock: Clock,
) -> Results:
    """Trains with each attention that is not done.

    Raises:
        OutOfTimeError: if the time is over; the next call goes on.
    """
    results = Results(folder / LANGUAGE, settings, device)
    text = Text(data, device)
    for kind in kinds:
        if not results.has(attention=kind):
            clock.check()
            results.add([train(text, kind, settings, device)])
    return results


def _clip(parameters: list[nn.Parameter]) -> None:
    nn.utils.clip_grad_norm_(parameters, MAX_NORM)


@torch.no_grad()
def _mean_loss(model: LanguageModel, rows: Tensor) -> float:
    with autocast(str(rows.device)):
        parts = [model.loss(part) * len(part) for part in rows.split(32)]
    return float(torch.stack(parts).sum()) / len(rows)
