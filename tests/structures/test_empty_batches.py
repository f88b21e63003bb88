"""Inference, SparseMAP and losses of no instances at all."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from conftest import identify
from fenchel import (
    Sequence,
    log_partition,
    map_inference,
    marginals,
    sparsemap,
    structured_loss,
    structures,
)
from fenchel.structures import AbstractStructure

BATCHES = [(0,), (0, 3), (2, 0)]
CASES = [(structure, None) for structure in structures.examples()]
CASES += [
    (structure, kind)
    for structure in (Sequence(1, 3), Sequence(3, 2))
    for kind in ("shared", "each pair", "each instance", "first tags")
]


def extra_for(structure: AbstractStructure, kind: str | None, batch: tuple) -> tuple | None:
    if kind is None:
        return None
    n, m = structure.shape
    shape = {"shared": (m, m), "each pair": (1,) * len(batch) + (n - 1, m, m)}
    transitions = torch.randn(shape.get(kind, (*batch, 1, m, m)), requires_grad=True)
    start = torch.randn(m, requires_grad=True) if kind == "first tags" else None
    return transitions, start, None


def backward(value: Tensor, inputs: list[Tensor]) -> None:
    for x, gradient in zip(inputs, torch.autograd.grad(value.sum(), inputs), strict=True):
        assert gradient.shape == x.shape
        assert (gradient == 0).all()


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize(
    ("structure", "kind"), CASES, ids=lambda x: x if isinstance(x, str | None) else identify(x)
)
def test_no_instances(structure: AbstractStructure, kind: str | None, batch: tuple) -> None:
    scores = torch.randn(*batch, *structure.shape, requires_grad=True)
    extra_scores = extra_for(structure, kind, batch)
    inputs = [scores, *(piece for piece in extra_scores or () if piece is not None)]
    sizes = [None]
    if structure.max_lengths:
        shape = (*batch, len(structure.max_lengths)) if len(structure.max_lengths) > 1 else batch
        sizes.append(torch.ones(shape, dtype=torch.int64))
    for lengths in sizes:
        best = map_inference(structure, scores, extra_scores, lengths=lengths)
        assert best.indicator.shape == scores.shape
        backward(best.value, inputs)
        if structure.name not in ("matching", "custom"):
            value = log_partition(structure, scores, extra_scores, lengths=lengths)
            assert value.shape == batch
            backward(value, inputs)
            found = marginals(structure, scores, extra_scores, lengths=lengths)
            u = found if extra_scores is None else found[0]
            assert u.shape == scores.shape
            backward(u.square(), inputs)
        for method in (None, "active_set", "pairwise"):
            posterior = sparsemap(structure, scores, extra_scores, lengths=lengths, method=method)
            assert posterior.marginals.shape == scores.shape
            assert posterior.weights.shape[:-1] == posterior.gap.shape == batch
            assert "0 instances" in repr(posterior)
            again = sparsemap(structure, scores, extra_scores, lengths=lengths, start=posterior)
            backward(again.marginals.square(), inputs if method else [scores])
        for kind_of_loss in ("perceptron", "svm", "sparsemap", "margin_sparsemap"):
            loss = structured_loss(
                structure,
                scores,
                best,
                extra_scores,
                lengths=lengths,
                kind=kind_of_loss,
                reduction="none",
            )
            assert loss.shape == batch
            backward(loss, inputs)
