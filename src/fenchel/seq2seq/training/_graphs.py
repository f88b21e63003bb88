"""CUDA graphs: forward and backward recorded once for each shape of a batch, and replayed.

The decoder's steps are small operations one after the other, whose launches take longer than their
work; a replay launches them all at once.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..data._batches import Batch
from ..models._model import Seq2Seq

Key = tuple[int, int, int, torch.dtype | None, bool]
"""Items, source and target places, the type of autocast, if any, and whether in training."""


class Recorded:
    """A model whose gradients come from recorded graphs, on a GPU.

    A shape of batches is rounded up, computed as usual the first time, recorded the second time and
    replayed from then on. Rounding up adds padding, which changes nothing.

    Args:
        model: on a GPU, and there to stay; graphs refer to its weights and gradients, so
            `zero_grad` must be given `set_to_none=False`.
        multiple: of which the sizes of a recorded batch are.
        most: how many graphs are kept; other shapes are computed as usual.
    """

    def __init__(self, model: Seq2Seq, multiple: int = 4, most: int = 256) -> None:
        self.model, self.multiple, self.most = model, multiple, most
        self._graphs: dict[Key, _Graph] = {}
        self._seen: set[Key] = set()
        self._pool = torch.cuda.graph_pool_handle()

    def backward(self, batch: Batch, factor: float) -> Tensor:
        """Adds the gradient of the summed loss, times a factor, to the parameters'.

        Args:
            batch: on any device.
            factor: for example one over the number of tokens.
        Returns:
            The summed loss, without the factor and without a gradient.
        """
        sizes = (*batch.source.shape, batch.target.shape[1])
        items, source, target = (math.ceil(n / self.multiple) * self.multiple for n in sizes)
        half = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None
        key = (items, source, target, half, self.model.training)
        graph = self._graphs.get(key)
        if graph is None:
            graph = _Graph(self.model, key)
            if key not in self._seen or len(self._graphs) >= self.most:
                self._seen.add(key)
                graph.load(batch, factor)
                return graph.run()
            graph.record(self._pool)
            self._graphs[key] = graph
        graph.load(batch, factor)
        return graph.replay()


class _Graph:
    """Forward and backward of one shape, on tensors that stay in place."""

    def __init__(self, model: Seq2Seq, key: Key) -> None:
        items, source, target, self.half, _ = key
        device = next(model.parameters()).device
        self.model, self.graph = model, torch.cuda.CUDAGraph()
        self.source, self.lengths, self.target = (
            torch.ones(shape, dtype=torch.int64, device=device)
            for shape in ((items, source), (items,), (items, target))
        )
        self.factor = torch.ones((), device=device)  # not a number: that would be recorded

    def load(self, batch: Batch, factor: float) -> None:
        """Fills in a batch, and sources of one token without a target up to the full size."""
        count = len(batch.source)
        self.lengths.fill_(1)
        self.lengths[:count].copy_(batch.source_lengths, non_blocking=True)
        for place, given in ((self.source, batch.source), (self.target, batch.target)):
            place.zero_()
            place[:count, : given.shape[1]].copy_(given, non_blocking=True)
        self.factor.fill_(factor)

    def run(self) -> Tensor:
        """Computes what is filled in."""
        with torch.autocast("cuda", self.half, enabled=self.half is not None, cache_enabled=False):
            loss = self.model.loss(Batch(self.source, self.lengths, self.target), reduction="sum")
        with torch.autocast("cuda", enabled=False):  # backward has the types of forward
            (loss * self.factor).backward()
        return loss.detach()

    def record(self, pool: Any) -> None:
        """Records the computation, which runs only when it is replayed."""
        for parameter in self.model.parameters():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        with torch.cuda.graph(self.graph, pool=pool):
            self.loss = self.run()

    def replay(self) -> Tensor:
        """Computes what is filled in, as recorded."""
        self.graph.replay()
        return self.loss.clone()
