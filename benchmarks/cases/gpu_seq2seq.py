"""Training steps of a sequence-to-sequence model on a GPU, as in `seq2seq`: with and without CUDA
graphs, in float32 and in mixed precision."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product

import torch

from fenchel.seq2seq import Batch
from fenchel.seq2seq.training._graphs import GraphedModel

from ..results import Row
from .options import Options
from .seq2seq import HIDDEN, SUBJECTS, TORCH, VOCABULARY, Step, Subject, batch, check, measured

ROUNDS = 21


class GpuStep(Step):
    """A step from recorded graphs or as usual, in float32 or with autocast to bfloat16."""

    def __init__(self, subject: Subject, size: int, hidden: int, graphs: bool, half: bool) -> None:
        super().__init__(subject, size, hidden, "cuda")
        self.half = half
        self.recorded = GraphedModel(self.model) if graphs else None

    def __call__(self, pairs: Batch) -> float:
        self.adam.zero_grad(set_to_none=self.recorded is None)
        with torch.autocast("cuda", torch.bfloat16, enabled=self.half):
            if self.recorded is not None:
                loss = self.recorded.backward(pairs, 1 / int(pairs.count))
            else:
                loss = self.loss(pairs.to("cuda"))
        if self.recorded is None:
            loss.backward()
        self.update()
        return float(loss.detach())  # waits for the device


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
