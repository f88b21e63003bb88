"""Structures with scores on a GPU: closed forms there, the others by way of the host."""

from __future__ import annotations

import pytest
import torch
from test_structures import EXAMPLES, TRACTABLE

from fenchel import Bits, Choice, Sequence, log_partition, map_inference, marginals

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("name", EXAMPLES)
def test_agrees_with_the_cpu(name: str) -> None:
    structure = EXAMPLES[name]
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-6)):
        scores = torch.randn(7, *structure.shape, dtype=dtype)
        here, there = map_inference(structure, scores), map_inference(structure, scores.cuda())
        assert there.indicator.is_cuda
        assert there.value.is_cuda
        torch.testing.assert_close(there.indicator.cpu(), here.indicator)
        torch.testing.assert_close(there.value.cpu(), here.value, rtol=tolerance, atol=tolerance)
        if name not in TRACTABLE:
            continue
        weights = torch.randn_like(scores)
        found = []
        for device in ("cpu", "cuda"):
            x = scores.to(device).requires_grad_()
            u, value = marginals(structure, x), log_partition(structure, x)
            (grad,) = torch.autograd.grad((u * weights.to(device)).sum() + value.sum(), x)
            assert u.device == value.device == grad.device == x.device
            found.append([t.detach().cpu() for t in (u, value, grad)])
        for x, y in zip(*found, strict=True):
            torch.testing.assert_close(x, y, rtol=10 * tolerance, atol=10 * tolerance)


def test_ragged_with_transitions() -> None:
    structure, lengths = Sequence(6, 4), torch.tensor([6, 1, 3])
    scores, transitions = torch.randn(3, 6, 4), torch.randn(4, 4)
    u, v = marginals(structure, scores, transitions, lengths=lengths)
    for place in (lengths, lengths.cuda()):
        moved, pairs = marginals(structure, scores.cuda(), transitions.cuda(), lengths=place)
        torch.testing.assert_close(moved.cpu(), u)
        torch.testing.assert_close(pairs.cpu(), v)
        best = map_inference(structure, scores.cuda(), transitions.cuda(), lengths=place)
        here = map_inference(structure, scores, transitions, lengths=lengths)
        assert best.codes.cpu().equal(here.codes)


@pytest.mark.parametrize("structure", [Bits(50), Choice(50)], ids=lambda s: s.name)
def test_closed_forms_do_not_wait_for_the_device(structure) -> None:
    scores = torch.randn(8, 50, device="cuda", requires_grad=True)
    for _ in range(2):
        marginals(structure, scores).sum().backward()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        value = log_partition(structure, scores) + marginals(structure, scores).sum(1)
        (value + map_inference(structure, scores).value).sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
