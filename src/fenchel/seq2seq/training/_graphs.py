"""CUDA graphs: forward and backward are captured once for each shape of a batch, and replayed.

The decoder takes many small steps, whose kernels take longer to launch than to run. A replay
launches them all at once.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..data._batches import Batch
from ..models._model import Seq2Seq

Key = tuple[int, int, int, torch.dtype | None, bool]
"""Items, source length, target length, the dtype of autocast or None, and whether in training."""


class GraphedModel:
    """A model on a GPU whose gradients come from CUDA graphs.

    The sizes of a batch are rounded up by padding, which changes nothing. A shape is computed
    without a graph the first time, captured the second time, and replayed from then on.

    Args:
        model: on a GPU, where it must stay. Graphs write to its gradients, so call `zero_grad`
            with `set_to_none=False`.
        multiple: sizes are rounded up to a multiple of this.
        max_graphs: how many graphs are kept; other shapes are computed without.
        smoothing: the label smoothing of the loss.
    """

    def __init__(
        self, model: Seq2Seq, multiple: int = 4, max_graphs: int = 256, smoothing: float = 0.0
    ) -> None:
        self.model, self.multiple, self.max_graphs = model, multiple, max_graphs
        self.smoothing = smoothing
        self._graphs: dict[Key, _Graph] = {}
        self._seen: set[Key] = set()
        self._pool = torch.cuda.graph_pool_handle()

    def backward(self, batch: Batch, factor: float) -> Tensor:
        """Adds the gradient of `factor` times the summed loss to the parameters' gradients.

        Args:
            batch: on any device.
            factor: for example one over the number of tokens.
        Returns:
            The summed loss, without the factor and without a gradient.
        """
        sizes = (*batch.source.shape, batch.target.shape[1])
        items, source, target = (math.ceil(n / self.multiple) * self.multiple for n in sizes)
        is_autocast = torch.is_autocast_enabled("cuda")
        autocast_dtype = torch.get_autocast_dtype("cuda") if is_autocast else None
        key = (items, source, target, autocast_dtype, self.model.training)
        graph = self._graphs.get(key)
        if graph is None:
            graph = _Graph(self.model, key, self.smoothing)
            if key not in self._seen or len(self._graphs) >= self.max_graphs:
                self._seen.add(key)
                graph.load(batch, factor)
                return graph.run()
            graph.capture(self._pool)
            self._graphs[key] = graph
        graph.load(batch, factor)
        return graph.replay()


class _Graph:
    """Forward and backward of one shape, on tensors whose memory stays in place."""

    def __init__(self, model: Seq2Seq, key: Key, smoothing: float) -> None:
        items, source, target, self.autocast_dtype, _ = key
        device = next(model.parameters()).device
        self.model, self.graph, self.smoothing = model, torch.cuda.CUDAGraph(), smoothing
        self.source, self.lengths, self.target = (
            torch.ones(shape, dtype=torch.int64, device=device)
            for shape in ((items, source), (items,), (items, target))
        )
        self.factor = torch.ones((), device=device)  # a Python number would be fixed at capture

    def load(self, batch: Batch, factor: float) -> None:
        """Copies a batch, and adds items of one source token without a target up to the size."""
        count = len(batch.source)
        self.lengths.fill_(1)
        self.lengths[:count].copy_(batch.source_lengths, non_blocking=True)
        for static, given in ((self.source, batch.source), (self.target, batch.target)):
            static.zero_()
            static[:count, : given.shape[1]].copy_(given, non_blocking=True)
        self.factor.fill_(factor)

    def run(self) -> Tensor:
        """Computes the loaded batch."""
        dtype = self.autocast_dtype
        with torch.autocast("cuda", dtype, enabled=dtype is not None, cache_enabled=False):
            batch = Batch(self.source, self.lengths, self.target)
            loss = self.model.loss(batch, "sum", self.smoothing)
        with torch.autocast("cuda", enabled=False):  # backward has the dtypes of forward
            (loss * self.factor).backward()
        return loss.detach()

    def capture(self, pool: Any) -> None:
        """Captures the computation, which does not run before it is replayed."""
        for parameter in self.model.parameters():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        with torch.cuda.graph(self.graph, pool=pool):
            self.loss = self.run()

    def replay(self) -> Tensor:
        """Computes the loaded batch by the captured graph."""
        self.graph.replay()
        return self.loss.clone()
