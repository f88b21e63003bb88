"""What a model does on pairs that it is shown whole: its loss, its accuracy and its sparsity."""

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
        token_accuracy: the share of target tokens that are the most probable.
        accuracy: the share of targets that greedy decoding finds: those all of whose tokens are.
        attention_nonzeros: source positions with a weight above zero, per target token and head.
        output_nonzeros: tokens with a probability above zero, per target token.
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
    """The metrics of a model on pairs, shared among processes.

    Args:
        model: a `Seq2Seq`.
        pairs: the encoded pairs.
        size: pairs in a batch.
        world: the processes.
    """
    model.eval()
    mapping = model.config.output.build()
    sums = torch.zeros(7, dtype=torch.float64, device=world.device)
    batches = by_length(pairs, size * world.size)
    for index in batches:  # every process takes part in every batch: a divided model needs that
        batch = pairs.batch(index[world.rank :: world.size]).to(world.device)
        scores, attention = model(batch.source, batch.source_lengths, batch.target[:, :-1])
        wanted = batch.target[:, 1:]
        kept = wanted != PAD
        scores = scores.float()
        right = (scores.argmax(-1) == wanted) | ~kept
        attended = (attention > 0).sum(-1).double().mean(-1)
        possible = (model.probabilities(scores) > 0).sum(-1)
        losses = mapping.loss(scores, wanted, reduction="sum", ignore_index=PAD)
        sums += torch.stack(
            [
                losses.double(),
                (right & kept).sum().double(),
                (right.all(-1) & kept.any(-1)).sum().double(),
                (attended * kept).sum(),
                (possible * kept).sum().double(),
                kept.sum().double(),
                kept.any(-1).sum().double(),
            ]
        )
    loss, tokens_right, right_items, attended, possible, tokens, items = world.sum(sums).tolist()
    return Metrics(
        loss / tokens,
        tokens_right / tokens,
        right_items / items,
        attended / tokens,
        possible / tokens,
    )
