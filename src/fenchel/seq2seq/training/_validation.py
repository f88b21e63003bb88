"""Metrics of a model on given pairs: its loss, its accuracy, its outputs and its sparsity."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from .._files import fill, full
from ..config._schema import Config
from ..data._corpus import Encoded, by_length
from ..data._readers import Pair
from ..data._vocabulary import PAD, Vocabulary
from ..decoding._comparison import Comparison
from ..decoding._decode import best_texts, decode
from ..decoding._metrics import measures
from ..models._model import Seq2Seq
from ._distributed import World


@dataclass(frozen=True)
class Metrics:
    """Means over validation pairs.

    Args:
        loss: per target token.
        token_accuracy: the share of target tokens that have the highest score. An unknown token,
            which has no text, is never right.
        accuracy: the share of sources whose target greedy decoding finds: all of its tokens have
            the highest score. Several targets of a source count as `evaluation.references` says.
        attention_nonzeros: source positions with a nonzero weight, per target token and head.
        output_nonzeros: tokens with a nonzero probability, per target token.
        scores: measures of the outputs of greedy decoding, if any were asked for; those of
            `fenchel evaluate --method greedy`.

    >>> Metrics(0.5, 0.9, 0.8, 1.5, 1.2, {"CER": 3.0}).to_json()["scores"]
    {'CER': 3.0}
    """

    loss: float
    token_accuracy: float
    accuracy: float
    attention_nonzeros: float
    output_nonzeros: float
    scores: dict[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The metrics by name."""
        return asdict(self)


class Validator:
    """Validates models on the same pairs, as a configuration says.

    Args:
        config: the whole configuration.
        source, target: the vocabularies.
        texts: the pairs.
        encoded: the same pairs.
    """

    def __init__(
        self,
        config: Config,
        source: Vocabulary,
        target: Vocabulary,
        texts: Sequence[Pair],
        encoded: Encoded,
    ) -> None:
        texts = [(source.normalize(text), reference) for text, reference in texts]
        self._config, self._texts, self._encoded = config, texts, encoded
        self._sources = [source for source, _ in texts]
        self._comparison = Comparison(
            target, config.data.task, self.names or None, config.evaluation.references
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The measures of outputs to compute: none if neither given nor needed for the metric."""
        given, metric = self._config.evaluation.measures or [], self._config.training.metric
        needed = [] if metric in Metrics.__dataclass_fields__ else [metric]
        return tuple(dict.fromkeys([*given, *needed]))

    def metrics(
        self, model: Seq2Seq, world: World, autocast: AbstractContextManager[Any] | None = None
    ) -> Metrics:
        """The metrics of a model. Decoding is in full precision, outside of `autocast`."""
        with autocast or nullcontext():
            found = validate(
                model,
                self._encoded,
                self._config.search.batch_size,
                world,
                lambda is_right: self._comparison.accuracy(is_right, self._sources),
            )
        return replace(found, scores=self._scores(model, world)) if self.names else found

    def rank(self, metrics: dict[str, Any]) -> tuple[float, float]:
        """What is largest for the best model: the metric, and among equals minus the loss."""
        metric, loss = self._config.training.metric, -metrics["loss"]
        if metric == "loss":
            return loss, loss
        if metric in metrics:
            return metrics[metric], loss
        value = metrics["scores"][metric]
        return -value if measures(self._comparison.target)[metric].is_error else value, loss

    def _scores(self, model: Seq2Seq, world: World) -> dict[str, float]:
        """The measures of greedy outputs, which rank 0 decodes."""
        whole = _unsharded(model, world)
        scores = dict.fromkeys(self.names, 0.0)
        if world.is_main:
            search = self._config.search
            inputs = list(dict.fromkeys(self._sources))
            results = decode(
                whole,
                inputs,
                batch_size=search.batch_size,
                method="greedy",
                max_length=search.max_length,
            )
            outputs = dict(zip(inputs, best_texts(whole, results), strict=True))
            scores = self._comparison.scores(outputs, self._texts)
        return {name: world.broadcast(value) for name, value in scores.items()}


def _unsharded(model: Seq2Seq, world: World) -> Seq2Seq:
    """The model, or on rank 0 a copy of it if it is sharded over processes."""
    parameters = dict(model.named_parameters())
    if not any(hasattr(each, "full_tensor") for each in parameters.values()):
        return model
    tensors = {name: full(each) for name, each in parameters.items()}
    if not world.is_main:
        return model
    with torch.random.fork_rng(devices=[]):  # its random weights must not change later dropout
        whole = Seq2Seq(model.config, model.source, model.target).to(world.device)
    fill(dict(whole.named_parameters()), tensors, Path())
    return whole


def _mean(is_right: Sequence[bool]) -> float:
    return sum(is_right) / len(is_right)


@torch.no_grad()
def validate(
    model: Any,
    pairs: Encoded,
    size: int,
    world: World,
    accuracy: Callable[[Sequence[bool]], float] = _mean,
) -> Metrics:
    """The metrics of a model on pairs, which the processes divide among them.

    Args:
        model: a `Seq2Seq`.
        pairs: the encoded pairs.
        size: the number of pairs in a batch.
        world: the processes.
        accuracy: of all pairs, from whether greedy decoding gets each of them right.
    """
    model.eval()
    sums = torch.zeros(5, dtype=torch.float64, device=world.device)
    is_right_pair = torch.zeros(len(pairs), device=world.device)
    batches = by_length(pairs, size * world.size)
    for index in batches:  # each process computes a part of each batch, as FSDP requires
        rows = index[world.rank :: world.size]
        batch = pairs.batch(rows).to(world.device)
        scores, attention = model(batch.source, batch.source_lengths, batch.target[:, :-1])
        target = batch.target[:, 1:]
        is_token = target != PAD
        loss, is_right, output_nonzeros = model.assess(scores.float(), batch)
        is_right = is_right | ~is_token
        if len(rows):
            is_right_pair[torch.from_numpy(rows).to(world.device)] = is_right.all(-1).float()
        attention_nonzeros = (attention > 0).sum(-1).double().mean(-1)
        sums += torch.stack(
            [
                loss.double(),
                (is_right & is_token).sum().double(),
                (attention_nonzeros * is_token).sum(),
                (output_nonzeros * is_token).sum().double(),
                is_token.sum().double(),
            ]
        )
    loss, right_tokens, attended, possible, tokens = world.sum(sums).tolist()
    return Metrics(
        loss=loss / tokens,
        token_accuracy=right_tokens / tokens,
        accuracy=accuracy((world.sum(is_right_pair) > 0).tolist()),
        attention_nonzeros=attended / tokens,
        output_nonzeros=possible / tokens,
    )
