"""The contract of every mapping on a GPU, where the fast kernels are other ones."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.autograd import gradcheck

from conftest import assert_compiles, tolerance
from fenchel import (
    Entmax,
    Ksubset,
    Normmax,
    Pnormmax,
    Softmax,
    Sparsemax,
    entmax,
    fenchel_young_loss,
)
from fenchel import linear_fenchel_young_loss as linear_loss
from fenchel.mappings import AbstractMapping

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def gradient(mapping: AbstractMapping, scores: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = scores.detach().requires_grad_()
    return torch.autograd.grad(mapping(scores), scores, v)[0]


@pytest.mark.parametrize("d", [6, 200, 3000])
def test_agrees_with_the_cpu(mapping: AbstractMapping, d: int) -> None:
    if mapping.name == "general" and d > 6:
        return
    scores, v = torch.randn(9, d, dtype=torch.float64), torch.randn(9, d, dtype=torch.float64)
    scores[0, ::2] = -torch.inf
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        rounded, vector = scores.to(dtype), v.to(dtype)
        y = mapping(rounded.cuda()).cpu()
        assert y.dtype == dtype
        close = {"rtol": 0, "atol": max(tolerance(mapping, dtype), 1e-12)}
        torch.testing.assert_close(y.double(), mapping(rounded.double()), **close)
        if dtype in (torch.float64, torch.float32):
            moved = gradient(mapping, rounded.cuda(), vector.cuda()).cpu()
            expected = gradient(mapping, rounded.double(), vector.double())
            near = 1e-9 if dtype == torch.float64 else 1e-3
            torch.testing.assert_close(moved.double(), expected, rtol=near, atol=near)


@pytest.mark.parametrize("d", [3, 13, 28])
@pytest.mark.parametrize("many", [Entmax(1.5), Entmax(4 / 3), Normmax(1.5), Pnormmax(1.5)], ids=str)
def test_lanes_agree(many: AbstractMapping, d: int) -> None:
    # Where they do not, a row in a hundred thousand is lost.
    scores = torch.randn(1 << 22, d, device="cuda")
    assert float((many(scores).sum(-1) - 1).abs().amax()) < 1e-5


def test_first_and_second_order(mapping: AbstractMapping) -> None:
    scores = torch.randn(3, 5, dtype=torch.float64, device="cuda", requires_grad=True)
    assert gradcheck(mapping, (scores,), check_forward_ad=True)
    assert gradcheck(mapping.max, (scores,))
    jacobian = torch.func.vmap(torch.func.jacrev(mapping))(scores)
    torch.testing.assert_close(torch.func.vmap(torch.func.hessian(mapping.max))(scores), jacobian)


def test_compiles_without_graph_breaks(mapping: AbstractMapping) -> None:
    assert_compiles(mapping, "cuda")


@pytest.mark.parametrize("d", [100, 5000])
def test_waits_for_nothing_and_is_captured(mapping: AbstractMapping, d: int) -> None:
    if mapping.name == "general":
        return
    scores = torch.randn(8, d, device="cuda", requires_grad=True)
    v, target = torch.randn(8, d, device="cuda"), torch.zeros(8, dtype=torch.int64, device="cuda")

    def step() -> tuple[torch.Tensor, ...]:
        y = mapping(scores)
        (moved,) = torch.autograd.grad(y, scores, v)
        if mapping.total != 1.0:
            return y, moved
        loss = fenchel_young_loss(mapping, scores, target)
        return y, moved, loss, torch.autograd.grad(loss, scores)[0]

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        expected = [value.clone() for value in step()]
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = step()
    graph.replay()
    for got, value in zip(outputs, expected, strict=True):
        torch.testing.assert_close(got, value, rtol=0, atol=0)


def test_offsets_cost_no_accuracy(mapping: AbstractMapping) -> None:
    if mapping.name == "general":
        return
    mapping = replace(mapping, gamma=0.1)
    scores = (1e5 + torch.randint(-8, 8, (40, 9)) / 16).to(torch.float32)
    close = {"rtol": 0, "atol": 1e-3 if getattr(mapping, "alpha", 1.0) > 2 else 1e-6}
    y = mapping(scores.cuda()).cpu()
    torch.testing.assert_close(y.double(), mapping(scores.double()), **close)
    soft = mapping(scores.double()).float()
    for target in (torch.arange(40) % 9, soft) if mapping.total == 1.0 else (soft,):
        loss = mapping.loss(scores.cuda(), target.cuda(), reduction="none").cpu()
        assert (loss >= 0).all()
        if target is not soft and getattr(mapping, "alpha", 1.5) != 1.0001:
            exact = mapping.loss(scores.double(), target, reduction="none")
            torch.testing.assert_close(loss.double(), exact, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["alpha", "gamma", "k"])
def test_a_number_may_stay_on_the_cpu(name: str) -> None:
    family: Any = Ksubset if name == "k" else Entmax
    scores = torch.randn(4, 6, device="cuda")
    value = torch.tensor(1.5, requires_grad=True)
    mapping = family(**{name: value})
    torch.cuda.set_sync_debug_mode("error")
    try:
        y = mapping(scores)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    y.square().sum().backward()
    torch.testing.assert_close(y.cpu(), mapping(scores.cpu()))
    assert value.grad is not None
    with pytest.raises(ValueError, match=f"`{name}` must be on the device of `scores`, cuda:0"):
        family(**{name: torch.full((4, 1), 1.5)})(scores)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_is_added_up_in_float32(dtype: torch.dtype) -> None:
    scores = torch.randn(8192, 3000, device="cuda").to(dtype)
    target = torch.randint(3000, (8192,), device="cuda")
    wide = Entmax().loss(scores.float(), target)
    loss = Entmax().loss(scores, target)
    torch.testing.assert_close(loss, wide.to(dtype))
    with torch.autocast("cuda", dtype=dtype):
        torch.testing.assert_close(Entmax().loss(scores, target), wide, rtol=1e-4, atol=1e-4)


def test_gradient_in_alpha_per_row() -> None:
    scores = torch.randn(5, 40, dtype=torch.float64)
    alpha = torch.tensor([1.0001, 1.2, 1.5, 1.9, 2.5], dtype=torch.float64)[:, None]
    v = torch.randn(5, 40, dtype=torch.float64)
    gradients = []
    for device in ("cpu", "cuda"):
        a = alpha.to(device).requires_grad_()
        (slope,) = torch.autograd.grad(entmax(scores.to(device), alpha=a), a, v.to(device))
        loss = Entmax(a).loss(scores.to(device), torch.arange(5).to(device), reduction="sum")
        gradients.append((slope.cpu(), torch.autograd.grad(loss, a)[0].cpu()))
    torch.testing.assert_close(*gradients, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("mapping", [Softmax(), Sparsemax(), Entmax(1.5), Entmax(1.33)])
def test_a_loss_needs_its_gradient_and_no_more(mapping: AbstractMapping) -> None:
    leaf = torch.randn(512, 32_768, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    target = torch.randint(32_768, (512,), device="cuda")  # in a block of memory of that size
    size = leaf.numel() * leaf.element_size()
    for inplace, most in ((False, 1.02), (True, 0.02)):
        scores = leaf * 1
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        loss = fenchel_young_loss(mapping, scores, target, inplace=inplace)
        (moved,) = torch.autograd.grad(loss, scores)
        assert torch.cuda.max_memory_allocated() - before <= most * size
        del loss, moved, scores


def test_rows_of_millions() -> None:
    scores = torch.randn(2, 3_000_000, device="cuda")
    for alpha in (1.33, 1.5, 2.0):
        y = entmax(scores, alpha=alpha)
        assert (y.double().sum(-1) - 1).abs().max() < 5e-7
        expected = entmax(scores.cpu(), alpha=alpha)
        torch.testing.assert_close(y.cpu(), expected, rtol=0, atol=3e-7)


def test_linear_loss_holds_a_chunk_of_scores() -> None:
    n, width, classes = 4096, 256, 50_000
    hidden = torch.randn(n, width, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(classes, width, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    target = torch.randint(classes, (n,), device="cuda")
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    loss = linear_loss(Entmax(1.5), hidden, weight, target, chunk=512)
    torch.autograd.grad(loss, (hidden, weight))
    assert torch.cuda.max_memory_allocated() - before < 0.5 * n * classes * 2


def test_first_call_is_quick(tmp_path: Path) -> None:
    """In seconds of computing, compilers included, whatever else the machine is doing."""
    script = (
        "import os, torch, fenchel\n"
        "x = torch.randn(64, 1000, device='cuda', requires_grad=True)\n"
        "z = torch.randn(8, 40000, device='cuda', requires_grad=True)\n"
        "torch.softmax(x, -1).sum().backward()\n"
        "def timed(call, *arguments):\n"
        "    start = sum(os.times()[:4])\n"
        "    result = call(*arguments)\n"
        "    torch.cuda.synchronize()\n"
        "    print(sum(os.times()[:4]) - start)\n"
        "    return result\n"
        "for scores in (x, z):\n"
        "    for alpha in (1.5, 1.33, 3.0):\n"
        "        y = timed(fenchel.Entmax(alpha), scores)\n"
        "        timed(torch.autograd.grad, y.sum(), scores)\n"
        "    y = timed(fenchel.fusedmax, scores)\n"
        "    timed(torch.autograd.grad, y.sum(), scores)\n"
    )
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert max(map(float, done.stdout.split())) < 5.0, done.stdout
