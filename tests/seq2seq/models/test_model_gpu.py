"""Models on a GPU: what the CPU gives, without waiting for the device, and from CUDA graphs."""

from __future__ import annotations

import pytest
import torch
from small_models import NAMES, PAIRS, build
from torch import Tensor

from fenchel.seq2seq import Batch, Seq2Seq
from fenchel.seq2seq.data._batches import batch
from fenchel.seq2seq.training._graphs import GraphedModel

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
LEARNED = {"mapping": "entmax", "alpha": 1.4, "learned_alpha": True}


def gradients(model: Seq2Seq, pairs: Batch) -> list[Tensor]:
    loss = model.loss(pairs)
    return [loss.detach().cpu()] + [
        gradient.cpu() for gradient in torch.autograd.grad(loss, list(model.parameters()))
    ]


@pytest.mark.parametrize("shape", ["lstm", "no feeding", "transformer"])
@pytest.mark.parametrize("attention", [*NAMES, "learned"])
def test_agrees_with_the_cpu(shape: str, attention: str) -> None:
    options = {"ksubset": {"mapping": "ksubset", "k": 1.0}, "learned": LEARNED}
    model = build(shape, attention=options.get(attention, attention))
    moved = build(shape, attention=options.get(attention, attention)).cuda()
    found, wanted = gradients(moved, PAIRS.to("cuda")), gradients(model, PAIRS)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("shape", ["lstm", "no feeding", "transformer"])
def test_waits_for_nothing(shape: str) -> None:
    model, pairs = build(shape, dropout=0.3).cuda(), PAIRS.to("cuda")
    model.loss(pairs).backward()
    torch.cuda.set_sync_debug_mode("error")
    try:
        model.loss(pairs).backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("attention", ["softmax", "entmax", "fusedmax", "learned"])
@pytest.mark.parametrize("shape", ["lstm", "no feeding", "transformer"])
def test_captured_gradients_are_those_of_the_model(shape: str, attention: str, half: bool) -> None:
    options = {"attention": LEARNED if attention == "learned" else attention}
    dtype, near = (torch.float32, 0.05) if half else (torch.float64, 1e-9)
    model, twin = (build(shape, **options).to("cuda", dtype) for _ in range(2))
    graphed = GraphedModel(model)
    other = batch([([4, 9, 8], [5, 6, 7]), ([7, 6], [4, 9, 8])])
    for pairs in (PAIRS, other, PAIRS, other, PAIRS):
        model.zero_grad(set_to_none=False)
        twin.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            loss = graphed.backward(pairs, 0.5)
            wanted = twin.loss(pairs.to("cuda"), reduction="sum")
        (0.5 * wanted).backward()
        found, expected = (
            torch.cat([parameter.grad.flatten() for parameter in each.parameters()])  # type: ignore[union-attr]
            for each in (model, twin)
        )
        assert abs(float(loss - wanted.detach())) <= near * float(wanted.detach())
        assert float((found - expected).norm()) <= near * float(expected.norm())
    assert {key[:3] for key in graphed._graphs} == {(4, 8, 8), (4, 4, 8)}


def test_captured_dropout_is_new_each_time() -> None:
    model = build(dropout=0.5).cuda()
    graphed = GraphedModel(model)
    losses = {float(graphed.backward(PAIRS, 1.0)) for _ in range(5)}
    assert len(losses) == 5
