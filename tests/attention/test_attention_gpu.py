"""Attention on a GPU, where fused kernels compute it: features, types, graphs and memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fenchel import Entmax, Sparsemax
from fenchel.attention import attention

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

B, H, G, D, E = 2, 4, 2, 32, 24
LENGTHS = {"short": (70, 90), "long": (600, 700)}
"""Queries and keys: those of dense tiles, and those of candidates."""


def vectors(queries: int, keys: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    shapes = ((H, queries, D), (G, keys, D), (G, keys, E))
    return [torch.randn(B, *x, device="cuda", dtype=dtype).requires_grad_() for x in shapes]


def learned(*shape: int, low: float = 0.1, high: float = 1.0) -> Tensor:
    return (low + (high - low) * torch.rand(shape, device="cuda")).requires_grad_()


def integers(*given: int) -> Tensor:
    return torch.tensor(given, device="cuda")


FEATURES: dict[str, Any] = {
    "none": lambda t, s: {},
    "causal": lambda t, s: {"causal": True},
    "lower_right": lambda t, s: {"causal": "lower_right"},
    "window": lambda t, s: {"causal": True, "window": t // 3},
    "key_lengths": lambda t, s: {"key_lengths": integers(s // 2, 0)},
    "lengths": lambda t, s: {
        "key_lengths": integers(s // 2, s),
        "query_lengths": integers(t, t // 2),
    },
    "packed": lambda t, s: {
        "cu_seqlens_q": integers(0, t // 3, t // 3, t),
        "cu_seqlens_k": integers(0, s // 3, s // 2, s),
        "causal": True,
    },
    "bool": lambda t, s: {"mask": torch.rand(H, t, s, device="cuda") > 0.4},
    "float": lambda t, s: {"mask": torch.randn(t, s, device="cuda")},
    "alibi": lambda t, s: {"alibi": learned(H, high=0.2)},
    "softcap": lambda t, s: {"softcap": 2.0},
    "sinks": lambda t, s: {"sinks": learned(H, low=-1.0)},
    "scale": lambda t, s: {"scale": learned(H, t, 1, low=0.2, high=0.5)},
    "everything": lambda t, s: {
        "causal": "lower_right",
        "window": s // 2,
        "key_lengths": integers(s, s // 2),
        "alibi": learned(H, high=0.05),
        "softcap": 3.0,
        "sinks": learned(H, low=-1.0),
        "scale": learned(H, 1, 1, low=0.2, high=0.5),
    },
}


def doubled(x: Any) -> Any:
    """The same in float64, a leaf of its own."""
    if not isinstance(x, Tensor) or not x.is_floating_point():
        return x
    return x.detach().double().requires_grad_(x.requires_grad)


def compare(
    inputs: list[Tensor], alpha: Any, options: dict[str, Any], tol: float, grad_tol: float
) -> None:
    """Outputs and all gradients against those of stored weights in float64."""
    wide, wide_alpha = [doubled(x) for x in inputs], doubled(alpha)
    wide_options = {name: doubled(x) for name, x in options.items()}
    output = attention(*inputs, Entmax(alpha), **options)
    expected, _ = attention(*wide, Entmax(wide_alpha), **wide_options, weights=True)
    rtol = torch.finfo(output.dtype).eps if output.dtype != torch.float32 else 0.0
    torch.testing.assert_close(output.double(), expected, rtol=rtol, atol=tol)
    grad = torch.randn_like(output)
    given = [x for x in (*inputs, alpha, *options.values()) if isinstance(x, Tensor)]
    truth = [x for x in (*wide, wide_alpha, *wide_options.values()) if isinstance(x, Tensor)]
    found = torch.autograd.grad(output, [x for x in given if x.requires_grad], grad)
    wanted = torch.autograd.grad(expected, [x for x in truth if x.requires_grad], grad.double())
    for got, want in zip(found, wanted, strict=True):
        atol = grad_tol * max(1.0, float(want.abs().amax()))
        torch.testing.assert_close(got.double(), want, rtol=0, atol=atol)


@pytest.mark.parametrize("name", FEATURES)
@pytest.mark.parametrize("lengths", LENGTHS)
def test_features(lengths: str, name: str) -> None:
    queries, keys = LENGTHS[lengths]
    compare(vectors(queries, keys), 1.5, FEATURES[name](queries, keys), 1e-5, 1e-5)


@pytest.mark.parametrize("lengths", LENGTHS)
def test_learned_alpha(lengths: str) -> None:
    """Near α = 2 a key at the edge of the support would take or leave its part p^(2 − α) of the
    gradient by the rounding of its score."""
    compare(vectors(*LENGTHS[lengths]), learned(H, 1, 1, low=1.2, high=1.6), {}, 1e-5, 3e-5)
    compare(vectors(*LENGTHS[lengths]), torch.full((H, 1, 1), 2.0, device="cuda"), {}, 1e-5, 3e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_half_precision(lengths: str, dtype: torch.dtype) -> None:
    queries, keys = LENGTHS[lengths]
    for name in ("causal", "packed", "everything"):
        options = FEATURES[name](queries, keys)
        tol = torch.finfo(dtype).eps
        compare(vectors(queries, keys, dtype), 1.5, options, 1e-5, 8 * tol)


@pytest.mark.parametrize("lengths", LENGTHS)
def test_compiles_as_one_graph(lengths: str) -> None:
    inputs = vectors(*LENGTHS[lengths])
    grad = torch.randn(B, H, LENGTHS[lengths][0], E, device="cuda")
    for mapping in (Sparsemax(), Entmax(1.5), Entmax(torch.full((H, 1, 1), 1.3, device="cuda"))):

        def f(*x: Tensor, mapping: Any = mapping) -> Any:
            return attention(*x, mapping, causal=True, alibi=0.1)

        output, compiled = f(*inputs), torch.compile(f, fullgraph=True)(*inputs)
        torch.testing.assert_close(compiled, output, rtol=0, atol=1e-6)
        for got, want in zip(
            torch.autograd.grad(compiled, inputs, grad),
            torch.autograd.grad(output, inputs, grad),
            strict=True,
        ):
            torch.testing.assert_close(got, want, rtol=0, atol=1e-5)


@pytest.mark.parametrize("lengths", LENGTHS)
def test_graphs_and_no_waiting(lengths: str) -> None:
    inputs = vectors(*LENGTHS[lengths])
    grad = torch.randn(B, H, LENGTHS[lengths][0], E, device="cuda")

    def step() -> tuple[Tensor, ...]:
        output = attention(*inputs, "sparsemax", causal=True, window=50, sinks=0.1)
        return (output, *torch.autograd.grad(output, inputs, grad))

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step()
        torch.cuda.set_sync_debug_mode("error")
        try:
            step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = step()
    with torch.no_grad():
        for x in inputs:
            x.copy_(torch.randn_like(x))
    graph.replay()
    for got, want in zip(kept, step(), strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize("lengths", LENGTHS)
def test_the_same_bits_every_time(lengths: str) -> None:
    inputs = vectors(*LENGTHS[lengths], dtype=torch.bfloat16)
    torch.use_deterministic_algorithms(True)
    try:
        found = []
        for _ in range(3):
            output = attention(*inputs, "entmax", causal=True)
            found.append([output, *torch.autograd.grad(output.float().square().sum(), inputs)])
    finally:
        torch.use_deterministic_algorithms(False)
    for other in found[1:]:
        assert all(torch.equal(x, y) for x, y in zip(found[0], other, strict=True))


def test_dropout_follows_the_generator() -> None:
    inputs = vectors(*LENGTHS["long"])
    outputs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        outputs.append(attention(*inputs, "entmax", dropout=0.3))
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])


def test_derivatives_of_derivatives_and_functions() -> None:
    query, key, value = vectors(12, 15)
    grads = []
    for weights in (False, True):
        output = attention(query, key, value, "entmax", causal=True, weights=weights)
        output = output[0] if isinstance(output, tuple) else output
        (first,) = torch.autograd.grad(output.square().sum(), query, create_graph=True)
        grads.append(torch.autograd.grad(first.square().sum(), (query, key, value)))
    for got, want in zip(*grads, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=1e-4 * float(want.abs().amax()))

    def f(q: Tensor) -> Tensor:
        return attention(q, key.detach(), value.detach(), "entmax").square().sum()

    got = torch.func.grad(f)(query.detach())
    (want,) = torch.autograd.grad(f(query), query)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_hard_rows() -> None:
    query, key, value = (x.detach() for x in vectors(600, 5000))
    query[:, :, 0] = 0  # all keys tie
    query[:, :, 100:110] *= 1e-3  # a wide support
    query[:, :, 200:210] *= 20
    key[:, 0, 1000:3000] = key[:, 0, 1000:1001]
    inputs = [x.requires_grad_() for x in (query, key, value)]
    # The 2000 equal keys magnify what a threshold in float32 rounds.
    compare(inputs, 1.5, {}, 1e-4, 5e-4)
    with torch.no_grad():
        key[0, 0, 4000] = torch.nan
        output = attention(*inputs, "entmax", causal="lower_right")
    assert (
        output[0, :2]
        .isnan()
        .all(-1)
        .equal((torch.arange(600, device="cuda") + 4400 >= 4000).expand(2, 600))
    )
    assert not output[0, 2:].isnan().any()
    assert not output[1].isnan().any()


@pytest.mark.parametrize("alpha", [1.25, 4.0])
def test_sums_of_equal_keys_keep_their_digits(alpha: float) -> None:
    """The gradient of the queries is zero, up to a few roundings of its terms."""
    query, key, value = (x.detach() for x in vectors(100, 4096))
    key[:] = key[:, :, :1]
    query.requires_grad_()
    output = attention(query, key, value, Entmax(alpha))
    grad = torch.randn_like(output)
    (found,) = torch.autograd.grad(output, query, grad)
    w = key.size(-2) ** (alpha - 2.0)
    dp = grad @ value.repeat_interleave(H // G, 1).mT
    # Above α = 2 the sums are of differences from the first of the smallest weights.
    shift = dp[..., :1] if alpha > 2 else dp.mean(-1, keepdim=True)
    terms = w * (dp - shift).abs().sum(-1, keepdim=True) / D**0.5
    terms = terms * key[:, :, :1].repeat_interleave(H // G, 1).abs()
    assert (found.abs() <= 4e-6 * terms).all()


def test_memory_has_a_bound() -> None:
    inputs = [torch.randn(1, 2, 40_000, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    inputs = [x.requires_grad_() for x in inputs]
    torch.cuda.reset_peak_memory_stats()
    base = torch.cuda.memory_allocated()
    attention(*inputs, "entmax", causal=True).sum().backward()
    scores = 2 * 40_000**2 * 2
    assert torch.cuda.max_memory_allocated() - base < scores / 10


def test_autocast() -> None:
    inputs = vectors(*LENGTHS["long"])
    with torch.autocast("cuda", torch.bfloat16):
        output = attention(*inputs, "entmax")
    assert output.dtype == torch.bfloat16
    grads = torch.autograd.grad(output.sum(), inputs)
    assert all(x.dtype == torch.float32 for x in grads)


@pytest.mark.parametrize("alpha", [1.5, 4 / 3])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("widths", [(40, 24), (24, 40), (20, 100), (32, 64), (8, 8)])
def test_widths_that_differ(widths: tuple[int, int], dtype: torch.dtype, alpha: float) -> None:
    shapes = ((H, 70, widths[0]), (G, 90, widths[0]), (G, 90, widths[1]))
    given = [torch.randn(B, *x, device="cuda", dtype=dtype).requires_grad_() for x in shapes]
    exact = [x.detach().cpu().double().requires_grad_() for x in given]
    found, expected = (attention(*x, Entmax(alpha)) for x in (given, exact))
    grad = torch.randn_like(found)
    grads = torch.autograd.grad(found, given, grad)
    wanted = torch.autograd.grad(expected, exact, grad.cpu().double())
    for one, other in zip((found, *grads), (expected, *wanted), strict=True):
        assert (one.cpu().double() - other).norm() < 0.01 * other.norm()
