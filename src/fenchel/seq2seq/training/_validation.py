"""Metrics of a model on given pairs: its loss, its accuracy and its sparsity."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

from ..data._corpus import Encoded, by_length
from ..data._vocabulary import PAD
from ._distributed import World


@dataclass(frozen=True)
class Metrics:
    """Means over validation pairs.

    Args:
        loss: per target token.
        token_accuracy: the share of target tokens that have the highest score.
        accuracy: the share of targets whose tokens all have the highest score, so that greedy
            decoding finds them.
        attention_nonzeros: source positions with a nonzero weight, per target token and head.
        output_nonzeros: tokens with a nonzero probability, per target token.
    """

    loss: float
    token_accuracy: float
    accuracy: float
    attention_nonzeros: float
    output_nonzeros: float

    def to_json(self) -> dict[str, float]:
        """The metrics by name."""
        return asdict(self)


@torch.no_grad()
def validate(model: Any, pairs: Encoded, size: int, world: World) -> Metrics:
    """The metrics of a model on pairs, which the processes divide among them.

    Args:
        model: a `Seq2Seq`.
        pairs: the encoded pairs.
        size: the number of pairs in a batch.
        world: the processes.
    """
    model.eval()
    sums = torch.zeros(7, dtype=torch.float64, device=world.device)
    batches = by_length(pairs, size * world.size)
    for index in batches:  # each process computes a part of each batch, as FSDP requires
        batch = pairs.batch(index[world.rank :: world.size]).to(world.device)
        scores, attention = model(batch.source, batch.source_lengths, batch.target[:, :-1])
        target = batch.target[:, 1:]
        is_token = target != PAD
        has_tokens = is_token.any(-1)
        loss, is_right, output_nonzeros = model.assess(scores.float(), batch)
        is_right = is_right | ~is_token
        attention_nonzeros = (attention > 0).sum(-1).double().mean(-1)
        sums += torch.stack(
            [
                loss.double(),
                (is_right & is_token).sum().double(),
                (is_right.all(-1) & has_tokens).sum().double(),
                (attention_nonzeros * is_token).sum(),
                (output_nonzeros * is_token).sum().double(),
                is_token.sum().double(),
                has_tokens.sum().double(),
            ]
        )
    loss, right_tokens, right_items, attended, possible, tokens, items = world.sum(sums).tolist()
    return Metrics(
        loss=loss / tokens,
        token_accuracy=right_tokens / tokens,
        accuracy=right_items / items,
        attention_nonzeros=attended / tokens,
        output_nonzeros=possible / tokens,
    )
