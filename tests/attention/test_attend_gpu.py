"""Attention to a cache on a GPU: exact whatever is skipped, in any type, and in graphs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fenchel import Entmax
from fenchel.attention import KeysValues, attend, attention

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

B, H, G, D = 2, 8, 2, 64
TOLERANCES = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def clusters(length: int, dtype: torch.dtype = torch.float32, size: int = 256) -> KeysValues:
    centre = torch.randn(B, G, -(-length // size), D, device="cuda")
    key = centre.repeat_interleave(size, 2)[:, :, :length]
    key = key + 0.1 * torch.randn_like(key)
    return KeysValues(key.to(dtype), torch.randn_like(key).to(dtype))


def looking_for(cache: KeysValues, t: int = 1) -> Tensor:
    """Queries near some of the keys."""
    at = torch.randint(cache.length, (t,), device="cuda")
    query = cache.key[:, :, at].repeat_interleave(H // G, 1)
    return query + 0.2 * torch.randn_like(query)


def check(
    query: Tensor, cache: KeysValues, mapping: Any, tol: float | None = None, **options: Any
) -> Tensor:
    """Compares with attention to all keys, in float64 on the CPU; returns the pages read."""
    found, pages = attend(query, cache, mapping, pages=True, **options)

    def wide(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        return x.cpu().double() if x.is_floating_point() else x.cpu()

    given = {name: wide(x) for name, x in options.items()}
    if isinstance(mapping, Entmax):
        mapping = Entmax(wide(mapping.alpha), gamma=wide(mapping.gamma))
    want = attention(wide(query), wide(cache.key), wide(cache.value), mapping, **given)
    assert found.dtype == query.dtype
    torch.testing.assert_close(
        wide(found), want, rtol=0, atol=tol or TOLERANCES[query.dtype], equal_nan=True
    )
    return pages


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("length", [1, 63, 500, 5000, 70_001])
def test_lengths_and_types(length: int, dtype: torch.dtype) -> None:
    for alpha in (1.25, 1.5, 2.0):
        cache = clusters(length, dtype)
        check(torch.randn(B, H, 1, D, device="cuda", dtype=dtype), cache, Entmax(alpha))
        pages = check(looking_for(cache), cache, Entmax(alpha))
        if length > 5000:
            assert (pages < length // 64 // 2).all()


FEATURES = {
    "window": {"causal": "lower_right", "window": 500},
    "lengths": {"key_lengths": torch.tensor([700, 3000])},
    "empty": {"key_lengths": torch.tensor([0, 1])},
    "alibi": {"causal": "lower_right", "alibi": torch.linspace(0.5, 0.01, H)},
    "softcap": {"softcap": 4.0},
    "sinks": {"sinks": torch.linspace(-3, 10, H)},
    "negative": {"scale": -0.3},
}


@pytest.mark.parametrize("t", [1, 5, 16])
@pytest.mark.parametrize("name", FEATURES)
def test_features(name: str, t: int) -> None:
    cache = clusters(4000)
    options: dict[str, Any] = {
        name: x.cuda() if isinstance(x, Tensor) else x for name, x in FEATURES[name].items()
    }
    check(looking_for(cache, t), cache, "entmax", **options)


def test_alphas_of_heads() -> None:
    cache = clusters(4000)
    alpha = torch.linspace(1.1, 2.0, H, device="cuda")[:, None, None]
    check(looking_for(cache), cache, Entmax(alpha))
    # Above 2 a small weight grows by 1/p^(α − 2) times what its score rounds.
    check(looking_for(cache), cache, Entmax(1 + alpha), 2e-4)


def test_flat_scores_read_everything() -> None:
    cache = clusters(5000)
    pages = check(torch.zeros(B, H, 1, D, device="cuda"), cache, "entmax")
    assert pages.eq(79).all()


def test_grows_and_moves() -> None:
    cache = clusters(3000, torch.bfloat16)
    for size in (1, 1, 100, 64):
        cache = cache.append(clusters(size, torch.bfloat16))
        check(looking_for(cache), cache, "entmax", causal="lower_right")
    moved = cache.index_select(0, torch.tensor([1, 0], device="cuda"))
    query = looking_for(cache)
    found, want = attend(query.flip(0), moved, "entmax"), attend(query, cache, "entmax")
    assert isinstance(want, Tensor)
    assert torch.equal(found, want.flip(0))


def test_the_same_again_and_in_a_graph() -> None:
    cache = clusters(9000, torch.bfloat16)
    query = looking_for(cache)
    want = attend(query, cache, "entmax")
    assert torch.equal(attend(query, cache, "entmax"), want)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = attend(query, cache, "entmax")
    graph.replay()
    assert torch.equal(found, want)


def test_nothing_waits() -> None:
    cache = clusters(9000, torch.bfloat16)
    query = looking_for(cache)
    attend(query, cache, "entmax", pages=True)
    torch.cuda.set_sync_debug_mode("error")
    try:
        attend(query, cache, "entmax", pages=True)
    finally:
        torch.cuda.set_sync_debug_mode("default")
