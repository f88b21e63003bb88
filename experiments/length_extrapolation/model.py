"""Several Transformers of one shape, trained side by side."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, embedding, gelu, rms_norm

from . import attentions
from .settings import Settings
from .tasks import NOTHING

DIGITS = 256
"""The base in which a token is written."""
EXPANSION = 2
"""The hidden layer of a network's second half, as a multiple of its width."""
OUTPUT_GAIN = 2.0
"""Of the last normalization, at the start."""


class Networks(nn.Module):
    """Causal Transformers with normalization before each part, one for each seed.

    The vectors of the digits serve both to read and to predict them.

    All parameters are one tensor, (networks, parameters of each). So a step is the same few
    operations however many networks there are, and none knows of another.

    Args:
        settings: their shape; network i is initialized from seed i + 1.
        kind: of attention.
    """

    def __init__(self, settings: Settings, kind: str) -> None:
        super().__init__()
        self.kind, self.heads, self.layers = kind, settings.heads, settings.layers
        width = settings.width
        inner = EXPANSION * width
        # For each parameter its shape and its standard deviation, or the value that it starts with.
        table: dict[str, tuple[tuple[int, ...], float]] = {
            "embedding": ((2 * DIGITS + 1, width), 0.5),
            "gain": ((width,), OUTPUT_GAIN),
        }
        learned = attentions.parameters(kind, self.heads)
        for layer in range(self.layers):
            table |= {
                f"{layer}.qkv": ((width, 3 * width), width**-0.5),
                f"{layer}.out": ((width, width), width**-0.5),
                f"{layer}.up": ((width, inner), width**-0.5),
                f"{layer}.down": ((inner, width), inner**-0.5),
                **{f"{layer}.{name}": ((n,), start) for name, (n, start) in learned.items()},
            }
        self._shapes = {name: shape for name, (shape, _) in table.items()}
        rows = []
        for seed in range(1, settings.seeds + 1):
            generator = torch.Generator().manual_seed(seed)
            parts = [
                torch.randn(shape, generator=generator).flatten() * value
                if len(shape) > 1
                else torch.full(shape, value)
                for shape, value in table.values()
            ]
            rows.append(torch.cat(parts))
        self.flat = nn.Parameter(torch.stack(rows))

    def named(self) -> dict[str, Tensor]:
        """The parameters by name, each (networks, *shape)."""
        sizes = [torch.Size(shape).numel() for shape in self._shapes.values()]
        parts = self.flat.split(sizes, 1)
        return {
            name: part.unflatten(1, shape)
            for (name, shape), part in zip(self._shapes.items(), parts, strict=True)
        }

    def learned(self) -> dict[str, list]:
        """What heads learn besides their maps, by name: for each network its layers and heads."""
        given = self.named()
        return {
            name: torch.stack(
                [given[f"{layer}.{name}"] for layer in range(self.layers)], 1
            ).tolist()
            for name in attentions.parameters(self.kind, self.heads)
        }

    def forward(self, tokens: Tensor, num_answers: int | None = None) -> Tensor:
        """The scores of both digits of the next symbol.

        Args:
            tokens: (N, B, T), the sequences of each network.
            num_answers: at how many of the last positions; None for all. The last layer computes
                no others.
        Returns:
            (N, B, num_answers, 2, 256).
        """
        given = self.named()
        x = self._embed(given["embedding"], tokens)
        for layer in range(self.layers):
            rows = num_answers if layer == self.layers - 1 else None
            own = {n.split(".")[1]: v for n, v in given.items() if n.startswith(f"{layer}.")}
            x = self._layer(x, own, rows or x.shape[2])
        x = _normal(x) * given["gain"][:, None, None] * x.shape[-1] ** -0.5
        table = given["embedding"]
        digits = torch.cat([table[:, :DIGITS], table[:, DIGITS + 1 :]], 1)
        return _linear(x, digits.mT).unflatten(-1, (2, DIGITS))

    def _embed(self, table: Tensor, tokens: Tensor) -> Tensor:
        """The sum of the vectors of a token's two digits; only symbols' first one is below 256."""
        first = table.shape[1] * torch.arange(len(table), device=tokens.device)[:, None, None]
        table = table.flatten(0, 1)
        high, low = tokens // DIGITS, tokens % DIGITS + DIGITS + 1
        return embedding(first + high, table) + embedding(first + low, table)

    def _layer(self, x: Tensor, own: dict[str, Tensor], rows: int) -> Tensor:
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(2, 3)
            for part in _linear(_normal(x), own["qkv"]).chunk(3, -1)
        )
        found = attentions.attend(self.kind, query[..., -rows:, :], key, value, own)
        x = x[:, :, -rows:] + _linear(found.transpose(2, 3).flatten(3), own["out"])
        return x + _linear(gelu(_linear(_normal(x), own["up"]), approximate="tanh"), own["down"])


def _normal(x: Tensor) -> Tensor:
    return rms_norm(x, x.shape[-1:])


def _linear(x: Tensor, weight: Tensor) -> Tensor:
    """(N, B, T, d) by a weight of each network, (N, d, e)."""
    return torch.bmm(x.flatten(1, 2), weight).unflatten(1, x.shape[1:3])


def losses(scores: Tensor, targets: Tensor) -> Tensor:
    """−log p of an answer of each network, on average over each sequence and over these, (N,).

    Short sequences, which are learned first, count as much as long ones.

    Args:
        scores: (N, B, T, 2, 256).
        targets: (N, B, T), NOTHING where there is no answer.
    """
    is_answer = targets != NOTHING
    digits = torch.stack([targets // DIGITS, targets % DIGITS], -1)
    digits = digits.masked_fill(~is_answer[..., None], NOTHING)
    each = cross_entropy(
        scores.flatten(0, -2).float(), digits.flatten(), ignore_index=NOTHING, reduction="none"
    )
    return (each.reshape(digits.shape).sum((2, 3)) / is_answer.sum(2).clamp(min=1)).mean(1)


def correct(scores: Tensor, targets: Tensor) -> Tensor:
    """Whether both digits of an answer have the largest scores, of its shape (N, B, T)."""
    found = scores.argmax(-1)
    return (found[..., 0] * DIGITS + found[..., 1]) == targets
