"""Attention in blocks: each row once, memory with a bound, and dropout that can be repeated."""

from __future__ import annotations

import subprocess
import sys
from math import prod
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from attention_problems import FEATURES, WAYS, adaptive, feature, learned, take, vectors
from fenchel import Entmax, General
from fenchel.attention import _blocks, attention
from fenchel.attention._dense import shape
from fenchel.attention._pattern import pattern
from fenchel.attention._problem import Inputs, Setting


class Largest(TorchDispatchMode):
    """Notes the size of the largest tensor that an operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: Any = (), options: Any = None
    ) -> Any:
        out = function(*arguments, **(options or {}))
        for x in tree_iter(out):
            if isinstance(x, Tensor) and x.numel():
                self.numel = max(self.numel, x.untyped_storage().nbytes() // x.element_size())
        return out


@pytest.mark.parametrize("name", ["none", "causal_window", "lengths", "packed"])
@pytest.mark.parametrize("most", [1, 7, 50, 300, 10_000])
def test_blocks_hold_each_row_once(name: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_blocks, "MAX_SCORES", most)
    query, key, value = vectors()
    options = feature(name)
    options = {
        {"cu_seqlens_q": "query_offsets", "cu_seqlens_k": "key_offsets"}.get(n, n): x
        for n, x in options.items()
    }
    inputs = Inputs(query.unflatten(1, (2, 2)), key[:, :, None], value[:, :, None])
    whole = shape(inputs)
    setting = Setting(Entmax(1.5), pattern(*whole[3:], query.device, **options))
    times = torch.zeros(*whole[:4], 1)
    for block in _blocks.blocks(inputs, setting):
        rows = block.part("output", times)
        rows += 1
        assert rows.numel() == 1 or rows.numel() * (block.keys.stop - block.keys.start) <= most
    assert (times == 1).all()


@pytest.mark.parametrize(
    ("options", "share"),
    [
        ({}, 1.0),
        ({"causal": True}, 0.57),
        ({"window": (32, 32)}, 0.11),
        (
            {
                "query_offsets": torch.arange(0, 4097, 512),
                "key_offsets": torch.arange(0, 4097, 512),
            },
            0.125,
        ),
    ],
)
def test_blocks_leave_out_what_nobody_sees(options: dict[str, Any], share: float) -> None:
    x = torch.randn(1, 1, 1, 4096, 2)
    setting = Setting(Entmax(1.5), pattern(4096, 4096, x.device, **options))
    found = list(_blocks.blocks(Inputs(x, x, x), setting))
    sizes = [prod(part.stop - part.start for part in block) for block in found]
    assert sum(sizes) <= share * 4096**2
    assert len(found) <= 20  # each takes time of its own


def test_blocks_of_sequences_of_different_lengths() -> None:
    x = torch.randn(4, 1, 1, 512, 2)
    lengths = torch.tensor([512, 256, 128, 64])
    setting = Setting(Entmax(1.5), pattern(512, 512, x.device, key_lengths=lengths))
    found = list(_blocks.blocks(Inputs(x, x, x), setting))
    sizes = [prod(part.stop - part.start for part in block) for block in found]
    assert sum(sizes) <= 1.1 * 512 * int(lengths.sum())


@pytest.mark.parametrize("name", FEATURES)
@pytest.mark.parametrize("most", [60, 2**21])
def test_divided_blocks_have_the_same_answers(
    name: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs, options = vectors(), feature(name)
    if name == "dropout":
        return
    expected = attention(*inputs, "entmax", **options, weights=True)[0]
    monkeypatch.setattr(_blocks, "MIN_SAVED", 0)
    monkeypatch.setattr(_blocks, "MAX_SCORES", most)
    output = attention(*inputs, "entmax", **options)
    torch.testing.assert_close(output, expected)
    needed = [*inputs, *learned(options).values()]
    grad = torch.randn_like(expected)
    found = torch.autograd.grad(output, needed, grad)
    for new, old in zip(found, torch.autograd.grad(expected, needed, grad), strict=True):
        torch.testing.assert_close(new, old)


@pytest.mark.parametrize("mapping", ["entmax", "fusedmax", "softmax"])
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": 3}, {"dropout": 0.1}])
def test_no_tensor_is_larger_than_a_block(
    mapping: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 2**13
    monkeypatch.setattr(_blocks, "MAX_SCORES", most)
    query = torch.randn(1, 4, 600, 4, requires_grad=True)
    key, value = (torch.randn(1, 2, 600, 4, requires_grad=True) for _ in range(2))
    with Largest() as largest:
        output = attention(query, key, value, mapping, softcap=5.0, **options)
        output.sum().backward()
    assert largest.numel <= max(most + 600, query.numel())  # a sink or the like has its own column


def test_a_mask_is_never_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_blocks, "MAX_SCORES", 2**12)
    query, key, value = (torch.randn(2, 4, 300, 4, requires_grad=True) for _ in range(3))
    bias = torch.randn(300, 300, requires_grad=True)
    with Largest() as largest:
        attention(query, key, value, "sparsemax", bias).square().sum().backward()
    assert largest.numel <= bias.numel()
    assert bias.grad is not None
    found, bias.grad = bias.grad, None
    monkeypatch.setattr(_blocks, "MAX_SCORES", 2**30)
    attention(query, key, value, "sparsemax", bias).square().sum().backward()
    torch.testing.assert_close(found, bias.grad)


SCRIPT = """
import resource
import torch
from fenchel.attention import attention

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

def run(n):
    vectors = [torch.randn(*{batch}, n, size, requires_grad=True) for size in (8, 8, {size})]
    attention(*vectors, {mapping!r}, dropout={dropout}).sum().backward()

run(64)
before = peak()
run(16384)
print(peak() - before)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mapping", "batch", "size", "dropout"),
    [
        ("entmax", (1, 1), 8, 0.0),
        ("softmax", (), 8, 0.0),
        ("softmax", (1,), 8, 0.0),
        ("softmax", (1, 1), 4, 0.0),
        ("softmax", (1, 1), 8, 0.1),
    ],
)
def test_long_sequences_need_little_memory(
    mapping: str, batch: tuple[int, ...], size: int, dropout: float
) -> None:
    pytest.importorskip("resource")
    script = SCRIPT.format(mapping=mapping, batch=batch, size=size, dropout=dropout)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=600
    )
    assert int(done.stdout) < 200  # MiB; the scores alone would be 1024


@pytest.mark.parametrize("way", WAYS)
def test_dropout_repeats_from_a_seed(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    take(way, monkeypatch)
    query, key, value = vectors()

    def run(seed: int | None) -> list[Tensor]:
        if seed is not None:
            torch.manual_seed(seed)
        output = attention(query, key, value, "entmax", dropout=0.5)
        return [output, *torch.autograd.grad(output.square().sum(), (query, key, value))]

    first = run(3)
    again, other = run(3), run(None)
    assert all(torch.equal(x, y) for x, y in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])


@pytest.mark.parametrize("way", WAYS)
def test_dropout_has_its_rate(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    take(way, monkeypatch)
    size = 100
    zeros, value = torch.zeros(2, size, 3), torch.eye(size).expand(2, size, size)
    weights = attention(zeros, zeros, value, "sparsemax", dropout=0.3) * size  # type: ignore[operator]
    assert abs((weights == 0).float().mean() - 0.3) < 0.02
    torch.testing.assert_close(
        weights[weights != 0], torch.tensor(1 / 0.7).expand_as(weights[weights != 0])
    )
    assert len(weights.flatten(0, 1).unique(dim=0)) == 2 * size  # no two rows alike
    assert not attention(zeros, zeros, value, "sparsemax", dropout=1.0).any()


def test_what_omega_holds_is_learnt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_blocks, "MAX_SCORES", 20)
    strength = torch.tensor(1.3, dtype=torch.float64, requires_grad=True)
    mapping = General(lambda y: strength * (y * y).sum(-1) / 2)
    inputs = vectors()
    output = attention(*inputs, mapping, causal=True)
    expected = attention(*inputs, Entmax(2.0, gamma=strength), causal=True)
    torch.testing.assert_close(output, expected, atol=1e-6, rtol=1e-6)
    needed = (strength, *inputs)
    for new, old in zip(
        torch.autograd.grad(output.square().sum(), needed),
        torch.autograd.grad(expected.square().sum(), needed),
        strict=True,
    ):
        torch.testing.assert_close(new, old, atol=1e-5, rtol=1e-5)


def test_sums_over_blocks_are_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    zeros, value = torch.zeros(1, 4000, 1), torch.ones(1, 2, 1)
    value = value.to(torch.bfloat16).requires_grad_()
    query, key = zeros.to(torch.bfloat16), torch.zeros(1, 2, 1, dtype=torch.bfloat16)
    monkeypatch.setattr(_blocks, "MAX_SCORES", 2)
    attention(query, key, value, "sparsemax").sum().backward()
    assert value.grad is not None
    assert value.grad.flatten().tolist() == [2000.0, 2000.0]  # in bfloat16 it would stop at 256


def test_all_parameters_get_gradients_only_if_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_blocks, "MAX_SCORES", 20)
    query, key, value = vectors()
    mapping, _, (alpha, _) = adaptive()
    output = attention(query.detach(), key.detach(), value.detach(), mapping)
    (gradient,) = torch.autograd.grad(output.sum(), alpha)
    assert gradient.shape == alpha.shape
    with torch.no_grad():
        assert not attention(query, key, value, mapping).requires_grad


@pytest.mark.parametrize("mapping", ["entmax", "fusedmax"])
def test_gradients_in_a_batch(mapping: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_blocks, "MAX_SCORES", 20)
    inputs = vectors()
    output = attention(*inputs, mapping, torch.zeros(1, 1))
    several = torch.randn(3, *output.shape)
    batch = torch.autograd.grad(output, inputs, several, is_grads_batched=True, retain_graph=True)
    each = [torch.autograd.grad(output, inputs, grad, retain_graph=True) for grad in several]
    for found, expected in zip(batch, zip(*each, strict=True), strict=True):
        torch.testing.assert_close(found, torch.stack(expected))
