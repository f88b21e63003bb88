"""The time of an epoch with each attention mapping, measured side by side on the same batches."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from typing import Any

import torch
from torch.optim import Adam

from fenchel.seq2seq import Batch, Config, Seq2Seq
from fenchel.seq2seq.data._corpus import encode, shuffled
from fenchel.seq2seq.data._readers import Malformed, pairs
from fenchel.seq2seq.training._distributed import DistributedModel, World, device_of
from fenchel.seq2seq.training._preparation import build_vocabularies


def seconds_per_epoch(
    config: Config, attentions: Mapping[str, Any], batches: int, rounds: int
) -> dict[str, float]:
    """The median time of an epoch with each attention, estimated from some of its batches.

    Every model takes the same steps, one model after the other, several rounds of them; the first
    round, in which kernels are compiled and graphs recorded, is not counted.

    Args:
        config: of the training.
        attentions: mappings by name, as in a configuration.
        batches: of how many batches a round consists.
        rounds: how many count.
    """
    device = device_of(config.training.device)
    texts = list(pairs(config.data, "train", Malformed()))
    source, target = build_vocabularies(config.data, lambda: texts)
    corpus = encode(texts, source, target, config.data.max_length)
    order = shuffled(corpus, config.training.batch_size, (config.training.seed,))
    chosen = [(corpus.batch(rows).to(device), corpus.count(rows)) for rows in order[:batches]]
    runners = {}
    for name, attention in attentions.items():
        torch.manual_seed(config.training.seed)
        settings = {**config.model.model_dump(), "attention": attention}
        model = Seq2Seq(config.model.model_validate(settings), source, target).to(device)
        runners[name] = _Runner(model, config, World(0, 1, device))
    times: dict[str, list[float]] = {name: [] for name in attentions}
    for counted in range(-1, rounds):
        for name, runner in runners.items():
            seconds = runner.run(chosen)
            if counted >= 0:
                times[name].append(seconds)
    return {name: statistics.median(t) * len(order) / len(chosen) for name, t in times.items()}


class _Runner:
    """Training steps of one model, as `fenchel train` takes them."""

    def __init__(self, model: Seq2Seq, config: Config, world: World) -> None:
        self.model, self.plan, self.device = model, config.training, world.device
        self.together = DistributedModel(model, world, "ddp", self.plan.cuda_graphs)
        on_gpu = world.device.type == "cuda"
        self.optimizer = Adam(model.parameters(), lr=self.plan.learning_rate, fused=on_gpu)

    def run(self, batches: list[tuple[Batch, int]]) -> float:
        """Seconds of a step on each batch."""
        self._wait()
        began = time.perf_counter()
        for batch, tokens in batches:
            self.together.backward(batch, 1 / tokens)
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.plan.max_grad_norm)
            self.optimizer.step()
            self.together.zero_grad()
        self._wait()
        return time.perf_counter() - began

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
