"""Attention to a cache is that to all keys, whether pages are skipped or not."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from fenchel import Entmax, mappings
from fenchel.attention import KeysValues, MultiHeadAttention, _attend, attend, attention
from fenchel.ops.cached_attention import reference

PAGES = 40


@pytest.fixture
def few_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skips pages of caches that are short."""
    monkeypatch.setitem(_attend.MIN_PAGES, "cpu", 1)
    monkeypatch.setattr(reference, "FIRST", 2)
    monkeypatch.setattr(reference, "SHARE", 1)


def clusters(
    batch: int = 2, groups: int = 2, pages: int = PAGES, d: int = 16, dtype: Any = torch.float32
) -> KeysValues:
    """Keys that differ little within a page."""
    centre = torch.randn(batch, groups, pages, 1, d, dtype=torch.float64)
    key = (centre + 0.05 * torch.randn(batch, groups, pages, 64, d)).flatten(2, 3)[:, :, :-7]
    return KeysValues(key.to(dtype), torch.randn(key.shape).to(dtype))


def queries(t: int = 1, heads: int = 4, d: int = 16, dtype: Any = torch.float32) -> Tensor:
    return torch.randn(2, heads, t, d, dtype=dtype)


def check(query: Tensor, cache: KeysValues, mapping: Any, atol: float, **options: Any) -> Tensor:
    """Compares with attention to all keys, in float64, beyond `atol` up to what scores round;
    returns how many pages were read."""
    found, pages = attend(query, cache, mapping, pages=True, **options)
    wide: dict[str, Any] = {
        name: x.double() if isinstance(x, Tensor) and x.is_floating_point() else x
        for name, x in options.items()
    }
    want = attention(query.double(), cache.key.double(), cache.value.double(), mapping, **wide)
    assert isinstance(want, Tensor)
    assert found.dtype == query.dtype
    atol += rounding(query, cache, options.get("scale", query.shape[-1] ** -0.5))
    torch.testing.assert_close(found.double(), want, rtol=0, atol=atol, equal_nan=True)
    return pages


def rounding(query: Tensor, cache: KeysValues, scale: float | Tensor) -> float:
    """What one rounding of the largest score changes in an output, if weights change as scores."""
    precision = torch.finfo(torch.promote_types(query.dtype, torch.float32)).eps
    sizes = [query.norm(dim=-1), cache.key.norm(dim=-1), cache.value, torch.as_tensor(scale)]
    largest = [float(x.nan_to_num(0, 0, 0).abs().amax()) for x in sizes if x.numel()]
    return precision * math.prod(largest)


@pytest.mark.parametrize("alpha", [1.25, 1.5, 1.75, 2.0, 3.0])
@pytest.mark.parametrize("t", [1, 3])
@pytest.mark.usefixtures("few_pages")
def test_skips_pages_and_is_exact(alpha: float, t: int) -> None:
    cache = clusters(dtype=torch.float64)
    query = queries(t, dtype=torch.float64)
    pages = check(query, cache, Entmax(alpha), 1e-12, scale=4.0)
    assert pages.shape == (2, 2)
    assert pages.dtype == torch.int32
    assert (pages < PAGES).all()


FEATURES = {
    "window": {"causal": "lower_right", "window": 500},
    "last": {"causal": "lower_right"},
    "lengths": {"key_lengths": torch.tensor([200, 370])},
    "empty": {"key_lengths": torch.tensor([0, 1])},
    "alibi": {"causal": "lower_right", "alibi": torch.tensor([0.5, 0.1, 0.05, 0.02])},
    "rising": {"causal": "lower_right", "alibi": torch.tensor([-0.5, -0.1, 0.05, 0.02])},
    "softcap": {"softcap": 4.0},
    "sinks": {"sinks": torch.tensor([-3.0, 0.0, 3.0, 30.0])},
    "negative": {"scale": -2.0},
    "scales": {"scale": torch.tensor([-2.0, 2.0, 0.0, 1.0])[:, None, None]},
}


@pytest.mark.parametrize("name", FEATURES)
@pytest.mark.usefixtures("few_pages")
def test_features(name: str) -> None:
    options = {"scale": 2.0, **FEATURES[name]}
    for t in (1, 4):
        cache = clusters(dtype=torch.float64)
        check(queries(t, dtype=torch.float64), cache, "entmax", 1e-6, **options)


@pytest.mark.usefixtures("few_pages")
def test_alphas_and_gammas_of_heads() -> None:
    alpha = torch.tensor([1.2, 1.5, 2.0, 3.0])[:, None, None]
    gamma = torch.tensor([0.5, 1.0, 2.0, 1.0])[:, None, None]
    check(queries(), clusters(), Entmax(alpha, gamma=gamma), 1e-5)
    check(queries(), clusters(), Entmax(alpha.clamp(max=2) * 0 + 1.0), 1e-5)


@pytest.mark.parametrize(("dtype", "atol"), [(torch.bfloat16, 0.02), (torch.float16, 0.003)])
@pytest.mark.usefixtures("few_pages")
def test_half_precision(dtype: torch.dtype, atol: float) -> None:
    pages = check(queries(dtype=dtype), clusters(dtype=dtype), "sparsemax", atol, scale=2.0)
    assert (pages < PAGES).all()


@pytest.mark.usefixtures("few_pages")
def test_flat_scores_need_every_page() -> None:
    cache = clusters()
    pages = check(torch.zeros(2, 4, 1, 16), cache, "entmax", 1e-5)
    assert pages.eq(PAGES).all()
    pages = check(queries(), KeysValues(cache.key.roll(1, 2) * 0 + 1, cache.value), "entmax", 1e-5)
    assert pages.eq(PAGES).all()


@pytest.mark.usefixtures("few_pages")
def test_ties() -> None:
    key = torch.randint(-1, 2, (2, 2, PAGES * 64, 16)).float()
    query = torch.randint(-2, 3, (2, 4, 1, 16)).float()
    check(query, KeysValues(key, torch.randn(key.shape)), "sparsemax", 1e-5, scale=1.0)


@pytest.mark.usefixtures("few_pages")
def test_nan_spoils_who_sees_it() -> None:
    cache = clusters()
    cache.key[0, 0, 1000, 3] = torch.nan
    output = attend(queries(), cache, "entmax", scale=2.0)
    assert isinstance(output, Tensor)
    assert output[0, :2].isnan().all()
    assert output[0, 2:].isfinite().all()
    assert output[1].isfinite().all()
    lengths = torch.tensor([1000, 1000])
    output = attend(queries(), cache, "entmax", scale=2.0, key_lengths=lengths)
    assert isinstance(output, Tensor)
    assert output.isfinite().all()


@pytest.mark.usefixtures("few_pages")
def test_padding_may_hold_anything() -> None:
    cache = clusters()
    query, lengths = queries(), torch.tensor([300, 900])
    want = attend(query, cache, "entmax", key_lengths=lengths)
    for b, length in enumerate(lengths.tolist()):
        cache.value[b, :, length:] = torch.nan
        cache.key[b, :, length:] = torch.inf
    found = attend(query, cache, "entmax", key_lengths=lengths)
    torch.testing.assert_close(found, want)


@pytest.mark.parametrize("s", [0, 1, 63, 64, 65])
@pytest.mark.usefixtures("few_pages")
def test_short_caches(s: int) -> None:
    cache = KeysValues(torch.randn(2, 2, s, 16), torch.randn(2, 2, s, 16))
    check(queries(), cache, "entmax", 1e-6)


@pytest.mark.usefixtures("few_pages")
def test_a_cache_that_grows_step_by_step() -> None:
    whole = clusters(pages=20)
    cache = KeysValues(whole.key[:, :, :900], whole.value[:, :, :900])
    place = 900
    for size in (1, 1, 37, 64, 1, 130):
        new = slice(place, place + size)
        cache = cache.append(KeysValues(whole.key[:, :, new], whole.value[:, :, new]))
        place += size
        pages = check(queries(), cache, "sparsemax", 1e-5, scale=2.0)
        assert (pages <= -(-place // 64)).all()
    moved = cache.index_select(0, torch.tensor([1, 0]))
    query = queries()
    found, want = attend(query.flip(0), moved, "sparsemax"), attend(query, cache, "sparsemax")
    assert isinstance(want, Tensor)
    torch.testing.assert_close(found, want.flip(0))


def test_long_caches_skip_without_being_told() -> None:
    cache = clusters(pages=_attend.MIN_PAGES["cpu"])
    pages = check(4 * cache.key[:, :, 5:6], cache, "sparsemax", 1e-5)
    assert (pages < _attend.MIN_PAGES["cpu"]).all()


@pytest.mark.usefixtures("few_pages")
def test_bounds_are_at_least_every_score() -> None:
    cache, query = clusters(), queries(3)
    _, _, bounds = cache.pages()
    rows = reference.Rows(
        1.5, 1.0, -0.3, None, None, torch.zeros(1, 1, 1, 3, 1),
        torch.full((1, 1, 1, 3, 1), cache.length), torch.zeros(1, 1, 1, 3, 1),
    )  # fmt: skip
    grouped = query.unflatten(1, (2, 2))
    upper = reference.upper_bounds(grouped, bounds, rows, 0.0)
    z = -0.3 * grouped.flatten(2, 3) @ cache.key.mT
    most = torch.stack([page.amax(-1) for page in z.split(64, -1)], -1)
    assert (upper.flatten(2, 3) >= most).all()


def test_other_mappings_and_gradients_read_everything(mapping: mappings.AbstractMapping) -> None:
    cache = KeysValues(torch.randn(2, 2, 5, 16), torch.randn(2, 2, 5, 16))
    query = queries().requires_grad_()
    found, pages = attend(query, cache, mapping, pages=True)
    assert pages.eq(1).all()
    want = attention(query, cache.key, cache.value, mapping)
    torch.testing.assert_close(found, want)
    assert found.requires_grad


@pytest.mark.usefixtures("few_pages")
def test_the_layer_says_how_many_pages_it_read() -> None:
    layer = MultiHeadAttention(8, 2, "sparsemax", key_heads=1).eval()
    x = torch.randn(1, 700, 8)
    cache = layer.project(x)
    with torch.no_grad():
        output, pages = layer.attend(x[:, -1:], cache, causal="lower_right", pages=True)
        assert pages.shape == (1, 1)
        torch.testing.assert_close(output, layer(x, causal=True)[:, -1:])
        _, weights, pages = layer.attend(x[:, -1:], cache, weights=True, pages=True)
        assert weights.shape == (1, 2, 1, 700)
        assert pages.item() == 11
        mask = torch.ones(700, dtype=torch.bool)
        assert len(layer.attend(x[:, -1:], cache, mask, pages=True)) == 2


@pytest.mark.usefixtures("few_pages")
def test_errors_name_the_argument() -> None:
    cache = clusters()
    with pytest.raises(TypeError, match="`memory` must be a KeysValues, got Tensor"):
        attend(queries(), cache.key, "entmax")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="`softcap` must be"):
        attend(queries(), cache, "entmax", softcap=-1.0)
    with pytest.raises(ValueError, match="`causal` must be"):
        attend(queries(), cache, "entmax", causal="left")
    with pytest.raises(ValueError, match="heads of the query"):
        attend(queries(heads=3), cache, "entmax")
    with pytest.raises(ValueError, match="`key_lengths` must be from 0 to 2553"):
        attend(queries(), cache, "entmax", key_lengths=torch.tensor([1, 3000]))


@pytest.mark.usefixtures("few_pages")
def test_autocast() -> None:
    cache, query = clusters(dtype=torch.bfloat16), queries(dtype=torch.bfloat16)
    want = attend(query, cache, "sparsemax", scale=2.0)
    with torch.autocast("cpu", torch.bfloat16):
        found, pages = attend(query, cache, "sparsemax", scale=2.0, pages=True)
        whole = attend(
            query.float(), KeysValues(cache.key.float(), cache.value.float()), "sparsemax"
        )
    assert torch.equal(found, want)
    assert (pages < PAGES).all()
    assert isinstance(whole, Tensor)
    assert whole.dtype == torch.bfloat16


def test_looking_first_does_not_cut_gradients() -> None:
    layer = MultiHeadAttention(8, 2, "entmax")
    x = torch.randn(1, 64 * _attend.MIN_PAGES["cpu"] + 5, 8)
    cache = layer.project(x)
    with torch.no_grad():
        layer.attend(x[:, -1:], cache)
    output = layer.attend(x[:, -1:], cache)
    assert isinstance(output, Tensor)
    output.sum().backward()
    assert layer.key_value.weight.grad is not None
    assert layer.key_value.weight.grad.abs().max() > 0


def test_gradients_of_queries_while_the_cache_grows() -> None:
    def pair(length: int) -> KeysValues:
        return KeysValues(torch.randn(1, 1, length, 4), torch.randn(1, 1, length, 4))

    query, cache, total = torch.randn(1, 1, 1, 4, requires_grad=True), pair(5), torch.zeros(())
    expected = torch.zeros(())
    for _ in range(3):
        cache = cache.append(pair(1))
        total = total + attend(query, cache, "entmax").sum()
        plain = attention(query, cache.key.clone(), cache.value.clone(), "entmax")
        assert isinstance(plain, Tensor)
        expected = expected + plain.sum()
    (found,) = torch.autograd.grad(total, query)
    (want,) = torch.autograd.grad(expected, query)
    torch.testing.assert_close(found, want)


@pytest.mark.parametrize("alpha", [1.5, 17.0, 20.0, 200.0])
@pytest.mark.usefixtures("few_pages")
def test_scores_of_zero(alpha: float) -> None:
    pages = check(0 * queries(), clusters(), Entmax(alpha), 1e-5)
    assert (pages == PAGES).all()


@pytest.mark.parametrize("mapping", ["softmax", "entmax"])
def test_no_queries_read_no_page(mapping: str) -> None:
    _, pages = attend(queries()[:, :, :0], clusters(), mapping, pages=True)
    assert (pages == 0).all()
    layer = MultiHeadAttention(8, 2, mapping)
    x = torch.randn(1, 3, 8)
    _, pages = layer.attend(x[:, :0], layer.project(x), weights=False, pages=True)
    assert (pages == 0).all()


@pytest.mark.usefixtures("few_pages")
def test_no_sequences() -> None:
    cache = clusters().index_select(0, torch.tensor([], dtype=torch.long))
    output, pages = attend(queries()[:0], cache, "entmax", pages=True)
    assert output.shape == (0, 4, 1, 16)
    assert pages.shape == (0, 2)


@pytest.mark.parametrize("name", ["lengths", "alibi", "sinks", "scales"])
@pytest.mark.usefixtures("few_pages")
def test_the_kernels_take_what_attend_gives(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="Triton is not made for this platform")
    if torch.cuda.is_available():
        pytest.skip("tests of the GPU take the kernels there")
    from fenchel.ops.cached_attention.triton import Plan, cached_attention

    plan = Plan(min_pages=1, threshold_pages=4, chunk_pages=4, value_keys=16, bound_pages=16)

    def by_kernels(inputs: Any, setting: Any, bounds: Tensor, _: Any) -> tuple[Tensor, Tensor]:
        given = _attend.operator_arguments(inputs, setting)
        return cached_attention(*given[:3], bounds, *given[3:], setting.softcap, plan=plan)

    monkeypatch.setattr(_attend, "_by_pages", by_kernels)
    mapping: Any = "entmax"
    if name == "scales":
        mapping = Entmax(torch.tensor([1.3, 1.5, 1.8, 2.0])[:, None, None], gamma=2.0)
    check(queries(), clusters(pages=6), mapping, 1e-5, **{"scale": 1.0, **FEATURES[name]})
