"""Every feature, and every pair of features, is what its definition says, whichever way it is
computed: with its scores stored, in blocks, or by the fused operator."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
import torch
from torch import Tensor

from attention_problems import (
    DROPOUT,
    FEATURES,
    WAYS,
    B,
    H,
    S,
    T,
    adaptive,
    feature,
    learned,
    sees,
    solution,
    take,
    vectors,
)
from fenchel import Entmax, Fusedmax, Softmax, Sparsemax, mappings
from fenchel.attention import attention

PATTERNS = {
    *("causal", "lower_right", "window", "window_pair", "causal_window", "lower_right_window"),
}
SEQUENCES = {"key_lengths", "lengths", "packed"}
MASKS = {"bool", "float", "key_mask"}
SCALES = {"scale", "scale_tensor", "scale_per_query"}
PAIRS = [
    pair
    for pair in combinations(FEATURES[1:], 2)
    if not any(kind.issuperset(pair) for kind in (PATTERNS, SEQUENCES, MASKS, SCALES))
]


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    take(request.param, monkeypatch)
    return request.param


def kept(inputs: tuple[Tensor, ...], mapping: Any, options: dict[str, Any], weights: Tensor) -> Any:
    """What dropout multiplies the weights by, if there is any: values that are a unit matrix show
    it. Where a weight is zero it does not matter."""
    if "dropout" not in options:
        return None
    query, key, _ = inputs
    units = torch.eye(S, dtype=query.dtype).expand(B, key.shape[1], S, S)
    torch.manual_seed(1)
    dropped = attention(query, key, units, mapping, **options)
    some = weights > 0
    factors = torch.where(some, dropped / torch.where(some, weights, 1.0), 0.0).detach()
    assert factors.round(decimals=6).unique().tolist() == [0.0, round(1 / (1 - DROPOUT), 6)]
    return factors


def check(mapping: Any, at: Any, options: dict[str, Any], parameters: tuple = ()) -> None:
    inputs = vectors()
    both = attention(*inputs, mapping, **options, weights=True)
    _, weights = solution(*inputs, at, options)
    torch.testing.assert_close(both[1], weights)
    expected, _ = solution(*inputs, at, options, kept(inputs, mapping, options, weights))
    torch.manual_seed(1)
    output = attention(*inputs, mapping, **options)
    torch.testing.assert_close(output, expected)
    needed = [*inputs, *parameters, *learned(options).values()]
    grad = torch.randn_like(expected)
    found = torch.autograd.grad(output, needed, grad)
    for new, old in zip(found, torch.autograd.grad(expected, needed, grad), strict=True):
        torch.testing.assert_close(new, old)


@pytest.mark.parametrize("name", FEATURES)
def test_each_feature(name: str, way: str) -> None:
    if way == "fused" and name == "float":
        pytest.skip("the operator has no gradient of the mask")
    mapping, at, parameters = adaptive()
    check(mapping, at, feature(name), parameters)


@pytest.mark.parametrize("name", FEATURES)
@pytest.mark.parametrize(
    "mapping", [Softmax(gamma=0.5), Sparsemax(), Entmax(0.8), Fusedmax(0.1)], ids=lambda m: m.name
)
def test_each_feature_of_other_mappings(
    name: str, mapping: mappings.AbstractMapping, monkeypatch: pytest.MonkeyPatch
) -> None:
    take("blocks", monkeypatch)
    check(mapping, mapping, feature(name))


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
@pytest.mark.parametrize("way", ["blocks", "fused"])
def test_pairs(pair: tuple[str, str], way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if way == "fused" and "float" in pair:
        pytest.skip("the operator has no gradient of the mask")
    take(way, monkeypatch)
    check(Entmax(1.5), Entmax(1.5), feature(pair[0]) | feature(pair[1]))


def test_all_at_once(way: str) -> None:
    options: dict[str, Any] = {}
    for name in ("lower_right_window", "lengths", "alibi", "softcap", "sinks", "scale_tensor"):
        options |= feature(name)
    options |= feature("bool") | feature("dropout")
    mapping, at, parameters = adaptive()
    check(mapping, at, options, parameters)


@pytest.mark.parametrize("name", ["none", "causal", "lower_right_window", "lengths", "packed"])
def test_softmax_too(name: str) -> None:
    inputs, options = vectors(), feature(name)
    torch.testing.assert_close(
        attention(*inputs, **options), solution(*inputs, Softmax(), options)[0]
    )


@pytest.mark.parametrize(("heads", "groups"), [(4, 1), (4, 2), (4, 4), (1, 1), (1, 3), (6, 2)])
@pytest.mark.parametrize("mapping", [Softmax(), Entmax(1.5)], ids=lambda m: m.name)
def test_heads_share_keys(
    heads: int, groups: int, mapping: mappings.AbstractMapping, way: str
) -> None:
    if way == "fused" and mapping.name == "softmax":
        pytest.skip("not of the operator")
    query, key, value = vectors(heads, groups)
    output = attention(query, key, value, mapping)
    wide = query.expand(B, max(heads, groups), T, -1)
    expected, _ = solution(wide, key, value, mapping, {})
    torch.testing.assert_close(output, expected)
    needed = (query, key, value)
    for new, old in zip(
        torch.autograd.grad(output.square().sum(), needed),
        torch.autograd.grad(expected.square().sum(), needed),
        strict=True,
    ):
        torch.testing.assert_close(new, old)


@pytest.mark.parametrize("mapping", ["softmax", "entmax"])
@pytest.mark.parametrize("batch", [(), (2,), (3, 2)])
@pytest.mark.parametrize(("heads", "groups", "values"), [(6, 2, 2), (6, 2, 1), (6, 1, 1)])
def test_heads_share_keys_in_batches_of_any_rank(
    mapping: str, batch: tuple[int, ...], heads: int, groups: int, values: int
) -> None:
    query = torch.randn(*batch, heads, 3, 4)
    key, value = torch.randn(*batch[1:], groups, 5, 4), torch.randn(*batch, values, 5, 2)
    output = attention(query, key, value, mapping)
    wide = [
        x.repeat_interleave(heads // x.shape[-3], -3).expand(*batch, heads, *x.shape[-2:])
        for x in (key, value)
    ]
    torch.testing.assert_close(output, attention(query, *wide, mapping))


@pytest.mark.parametrize(("queries", "keys"), [(0, 3), (3, 0), (0, 0), (1, 1), (1, 4), (4, 1)])
@pytest.mark.parametrize("name", ["none", "causal", "lower_right_window", "sinks", "alibi"])
@pytest.mark.parametrize("mapping", ["softmax", "entmax", "fusedmax"])
def test_edges(queries: int, keys: int, name: str, mapping: str, way: str) -> None:
    if way == "fused" and mapping != "entmax":
        pytest.skip("not of the operator")
    inputs, options = vectors(queries=queries, keys=keys), feature(name)
    output = attention(*inputs, mapping, **options)
    expected, _ = solution(*inputs, mappings.get(mapping), options)
    torch.testing.assert_close(output, expected)
    gradients = torch.autograd.grad(output.sum(), inputs, allow_unused=True)
    for gradient, x in zip(gradients, inputs, strict=True):
        assert gradient is None or (gradient.shape == x.shape and gradient.isfinite().all())


@pytest.mark.parametrize("name", ["lengths", "bool", "float", "packed"])
def test_queries_that_see_nothing(name: str, way: str) -> None:
    inputs, options = vectors(), feature(name)
    mask = options.get("mask")
    if mask is not None:
        with torch.no_grad():
            mask[..., 2, :] = False if mask.dtype == torch.bool else -torch.inf
        options["mask"] = mask.detach()
    output = attention(*inputs, "sparsemax", **options)
    look = sees(options, T, S)
    blind = torch.tensor(
        [[not any(look(b, t, j) for j in range(S)) for t in range(T)] for b in (0, 1)]
    )
    if mask is not None:
        blind[:, 2] = True
    assert blind.any()
    assert not output.transpose(1, 2)[blind].any()
    grads = torch.autograd.grad(output.sum(), inputs)
    assert all(grad.isfinite().all() for grad in grads)
    assert not grads[0].transpose(1, 2)[blind].any()


@pytest.mark.parametrize("place", ["key", "value", "query"])
@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_what_is_not_finite_spoils_only_who_sees_it(place: str, number: float, way: str) -> None:
    inputs = dict(zip(("query", "key", "value"), vectors(queries=S), strict=True))
    clean = attention(**inputs, mapping="entmax", causal=True)
    changed = {name: x.detach().clone() for name, x in inputs.items()}
    changed[place][1, :, 4] = number
    leaves = {name: x.requires_grad_() for name, x in changed.items()}
    output = attention(**leaves, mapping="entmax", causal=True)
    spoiled = torch.zeros(B, S, dtype=torch.bool)
    spoiled[1, 4 : (5 if place == "query" else S)] = True
    spoiled = spoiled[:, None].expand(B, H, S)
    assert torch.equal(output.isnan().all(-1), spoiled)
    assert torch.equal(output[~spoiled], clean[~spoiled])
    gradient = torch.autograd.grad(output[~spoiled].sum(), leaves["query"])[0]
    expected = torch.autograd.grad(clean[~spoiled].sum(), inputs["query"])[0]
    torch.testing.assert_close(gradient[~spoiled], expected[~spoiled])


@pytest.mark.parametrize("mapping", ["entmax", "softmax"])
def test_padding_may_hold_anything(mapping: str, way: str) -> None:
    inputs, options = vectors(), feature("lengths")
    if way == "fused" and mapping == "softmax":
        pytest.skip("not of the operator")
    expected = attention(*inputs, mapping, **options)
    spoiled = [x.detach().clone() for x in inputs]
    spoiled[0][1, :, 3:] = torch.nan
    spoiled[1][0, :, 4:] = torch.inf
    spoiled[2][0, :, 4:] = torch.nan
    leaves = [x.requires_grad_() for x in spoiled]
    output = attention(*leaves, mapping, **options)
    assert torch.equal(output, expected)
    found = torch.autograd.grad(output.sum(), leaves)
    for new, old in zip(found, torch.autograd.grad(expected.sum(), inputs), strict=True):
        torch.testing.assert_close(new, old)


@pytest.mark.parametrize("mapping", ["entmax", "softmax"])
@pytest.mark.parametrize("hidden", ["future", "masked"])
@pytest.mark.parametrize("way", ["dense", "blocks"])
def test_what_is_hidden_may_hold_anything(
    mapping: str, hidden: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    take(way, monkeypatch)
    inputs = vectors(queries=S)
    options: dict[str, Any] = {"causal": True}
    if hidden == "masked":
        options = {"mask": torch.arange(S) < 4}
    expected = attention(*inputs, mapping, **options)[:, :, :4]
    leaves = [x.detach().clone() for x in inputs]
    for x, bad in zip(leaves, (torch.nan, torch.inf, torch.nan), strict=True):
        x[:, :, 4:] = bad
        x.requires_grad_()
    output = attention(*leaves, mapping, **options)[:, :, :4]
    torch.testing.assert_close(output, expected)
    found = torch.autograd.grad(output.square().sum(), leaves)
    wanted = torch.autograd.grad(expected.square().sum(), inputs)
    for new, old in zip(found, wanted, strict=True):
        torch.testing.assert_close(new, old)


@pytest.mark.parametrize("mapping", ["entmax", "softmax"])
def test_a_query_that_is_not_used_spoils_no_gradient(mapping: str) -> None:
    inputs = vectors()
    expected = attention(*inputs, mapping)[:, :, 1:]
    query = inputs[0].detach().clone()
    query[:, :, 0] = torch.nan
    leaves = [query.requires_grad_(), *inputs[1:]]
    output = attention(*leaves, mapping)[:, :, 1:]
    torch.testing.assert_close(output, expected)
    found = torch.autograd.grad(output.square().sum(), leaves)
    wanted = torch.autograd.grad(expected.square().sum(), inputs)
    for new, old in zip(found, wanted, strict=True):
        torch.testing.assert_close(new, old)


@pytest.mark.slow
@pytest.mark.parametrize("mapping", ["entmax", "fusedmax"])
def test_what_is_hidden_may_hold_anything_in_a_graph(mapping: str) -> None:
    torch._dynamo.reset()
    run = torch.compile(attention, fullgraph=True, backend="aot_eager")
    inputs = vectors(queries=S)
    expected = attention(*inputs, mapping, causal=True)[:, :, :4]
    leaves = [x.detach().clone() for x in inputs]
    for x in leaves:
        x[:, :, 4:] = torch.nan
        x.requires_grad_()
    output = run(*leaves, mapping, causal=True)[:, :, :4]
    torch.testing.assert_close(output, expected)
    found = torch.autograd.grad(output.square().sum(), leaves)
    wanted = torch.autograd.grad(expected.square().sum(), inputs)
    for new, old in zip(found, wanted, strict=True):
        torch.testing.assert_close(new, old)


TYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("of", TYPES)
@pytest.mark.parametrize("mapping", ["entmax", "softmax"])
def test_types_of_other_arguments(dtype: torch.dtype, of: torch.dtype, mapping: str) -> None:
    query, key, value = (x.detach().to(dtype) for x in vectors())
    exact = [x.double() for x in (query, key, value)]
    eps = 4 * max(torch.finfo(dtype).eps, torch.finfo(of).eps)

    def check(found: Any, expected: Any, result: torch.dtype) -> None:
        assert found.dtype == result
        torch.testing.assert_close(found.double(), expected, atol=eps, rtol=eps)

    mask, scale = torch.randn(T, S).to(of), torch.tensor([[[0.3]], [[0.4]]] * 2).to(of)
    check(
        attention(query, key, value, mapping, mask),
        attention(*exact, mapping, mask.double()),
        dtype,
    )
    check(
        attention(query, key, value, mapping, None, scale),
        attention(*exact, mapping, None, scale.double()),
        dtype,
    )
    other = value.to(of)
    check(attention(query, key, other, mapping), attention(*exact[:2], other.double(), mapping), of)


@pytest.mark.parametrize("mapping", ["entmax", "softmax"])
@pytest.mark.parametrize("batch", [(), (4,), (2, 4), (3, 2, 4)])
@pytest.mark.parametrize("shape", [(), (1,), (S,), (1, S), (T, 1), (T, S), (4, 1, S), (2, 1, 1, S)])
def test_masks_broadcast(mapping: str, batch: tuple[int, ...], shape: tuple[int, ...]) -> None:
    if len(shape) > len(batch) + 2:
        pytest.skip("more dimensions than the vectors have")
    query, key = torch.randn(*batch, T, 3), torch.randn(*batch, S, 3)
    for mask in (torch.randn(shape), torch.rand(shape) > 0.3):
        expected = attention(query, key, key, mapping, mask.expand(*batch, T, S), weights=True)[0]
        torch.testing.assert_close(attention(query, key, key, mapping, mask), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("mapping", ["entmax", "fusedmax"])
def test_types(dtype: torch.dtype, mapping: str, way: str) -> None:
    if way == "fused" and mapping == "fusedmax":
        pytest.skip("not of the operator")
    inputs = [x.detach().to(dtype).requires_grad_() for x in vectors()]
    exact = [x.detach().double().requires_grad_() for x in inputs]
    output = attention(*inputs, mapping, causal=True)
    expected = attention(*exact, mapping, causal=True)
    assert output.dtype == dtype
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(output.double(), expected, atol=2 * eps, rtol=2 * eps)
    found = torch.autograd.grad(output.sum(), inputs)
    for new, old in zip(found, torch.autograd.grad(expected.sum(), exact), strict=True):
        assert new.dtype == dtype
        torch.testing.assert_close(new.double(), old, atol=8 * eps, rtol=8 * eps)


def test_any_strides(way: str) -> None:
    query, key, value = vectors()
    expected = attention(query, key, value, "entmax", causal=True)
    strided = [
        query.mT.contiguous().mT,
        key.transpose(0, 2).contiguous().transpose(0, 2),
        torch.stack([value, value], -1)[..., 0],
    ]
    assert not any(x.is_contiguous() for x in strided)
    torch.testing.assert_close(attention(*strided, "entmax", causal=True), expected)


@pytest.mark.parametrize("way", ["dense", "blocks"])
@pytest.mark.parametrize("batch", [(), (3,), (2, 3), (2, 2, 3)])
def test_batches_broadcast(
    batch: tuple[int, ...], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    take(way, monkeypatch)
    query = torch.randn(*batch, 4, 3)
    key, value = torch.randn(*batch[1:], 5, 3), torch.randn(*(1 for _ in batch), 5, 2)
    output = attention(query, key, value, "sparsemax")
    wide = attention(query, key.expand(*batch, 5, 3), value.expand(*batch, 5, 2), "sparsemax")
    torch.testing.assert_close(output, wide)
    assert output.shape == (*batch, 4, 2)


def test_lengths_of_sequences_without_heads() -> None:
    query, key = torch.randn(3, 4, 2), torch.randn(3, 5, 2)
    lengths = torch.tensor([5, 2, 0])
    output = attention(query, key, key, "entmax", key_lengths=lengths)
    for item, length in enumerate(lengths.tolist()):
        alone = attention(query[item], key[item, :length], key[item, :length], "entmax")
        torch.testing.assert_close(output[item], alone)


def test_packed_sequences_are_those_alone(way: str) -> None:
    lengths = [3, 0, 4, 1]
    ends = torch.tensor([0, *lengths]).cumsum(0)
    x = torch.randn(2, int(ends[-1]), 3, dtype=torch.float64)
    slopes = torch.tensor([0.3, 0.5], dtype=torch.float64)
    for causal in (False, True, "lower_right"):
        output = attention(x, x, x, "entmax", cu_seqlens_q=ends, causal=causal, alibi=slopes)
        alone = [
            attention(part, part, part, "entmax", causal=causal, alibi=slopes)
            for part in x.split(lengths, -2)
        ]
        torch.testing.assert_close(output, torch.cat(alone, -2))


def test_a_cache_continues_where_it_ended(way: str) -> None:
    x = torch.randn(B, H, 9, 3, dtype=torch.float64)
    for options in ({}, {"window": 3}, {"alibi": torch.rand(H, dtype=torch.float64)}):
        whole = attention(x, x, x, "sparsemax", causal=True, **options)
        later = attention(x[:, :, 6:], x, x, "sparsemax", causal="lower_right", **options)
        torch.testing.assert_close(later, whole[:, :, 6:])
