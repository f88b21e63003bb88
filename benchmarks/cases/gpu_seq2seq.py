"""Training steps of a sequence-to-sequence model on a GPU, as in `seq2seq`: with and without CUDA
graphs, in float32 and in mixed precision."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product

import torch
from torch import Tensor

from fenchel.seq2seq import Batch

from ..results import Row
from .options import Options
from .seq2seq import HIDDEN, SUBJECTS, TORCH, VOCABULARY, Step, Subject, batch, check, measured

ROUNDS = 21
WARM_UP = 3


class Recorded:
    """A computation on batches of one shape, recorded as a CUDA graph and replayed.

    Args:
        compute: from a batch to a tensor; it waits for no value of the device.
        example: a batch of that shape.
    """

    def __init__(self, compute: Callable[[Batch], Tensor], example: Batch) -> None:
        self.batch, self.graph = example.to("cuda"), torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):  # compiles kernels, and allocates what is recorded
                compute(self.batch)
        torch.cuda.current_stream().wait_stream(stream)
        with torch.cuda.graph(self.graph):
            self.result = compute(self.batch)

    def __call__(self, pairs: Batch) -> Tensor:
        for place in ("source", "source_lengths", "target"):
            getattr(self.batch, place).copy_(getattr(pairs, place), non_blocking=True)
        self.graph.replay()
        return self.result


class GpuStep(Step):
    """A step from a recorded graph or as usual, in float32 or with autocast to bfloat16."""

    def __init__(self, subject: Subject, size: int, hidden: int, graphs: bool, half: bool) -> None:
        super().__init__(subject, size, hidden, "cuda")
        self.graphs, self.half = graphs, half
        self.gradients: Callable[[Batch], Tensor] = self._gradients
        if graphs:
            self.gradients = Recorded(self._gradients, batch(torch.Generator(), size))

    def __call__(self, pairs: Batch) -> float:
        self.adam.zero_grad(set_to_none=not self.graphs)  # a graph writes where they were
        loss = self.gradients(pairs if self.graphs else pairs.to("cuda"))
        self.update()
        return float(loss)  # waits for the device

    def _gradients(self, pairs: Batch) -> Tensor:
        """The loss; its gradients are added to the parameters'."""
        with torch.autocast("cuda", torch.bfloat16, enabled=self.half, cache_enabled=False):
            loss = self.loss(pairs)
        loss.backward()
        return loss.detach()


def rows(options: Options) -> Iterator[Row]:
    """One row per subject, precision and way to launch."""
    check("cuda")
    for graphs, half in product((False, True), (False, True)):
        generator = torch.Generator().manual_seed(0)
        subjects = [s for s in SUBJECTS if not (graphs and s is TORCH)]
        steps = {s.label: GpuStep(s, VOCABULARY, HIDDEN, graphs, half) for s in subjects}
        fresh = partial(batch, generator, VOCABULARY)
        facts = {"launch": "graphs" if graphs else "eager", "dtype": "bf16" if half else "fp32"}
        yield from measured(steps, fresh, options.rounds if options.quick else ROUNDS, facts)
