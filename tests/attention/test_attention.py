"""Attention is what its formula says, for every mapping, and torch's own where both exist."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from conftest import EXAMPLES
from fenchel import Entmax, Softmax, mappings
from fenchel.attention import attention

SOLVER = {"general"}  # differences of an iterative solution are too rough for gradcheck
DIFFERENTIABLE = {name: m for name, m in EXAMPLES.items() if m.name not in SOLVER}


def tensors(*batch: int, queries: int = 3, keys: int = 5, size: int = 4) -> list[Tensor]:
    return [
        torch.randn(*batch, count, width, dtype=torch.float64, requires_grad=True)
        for count, width in ((queries, size), (keys, size), (keys, 2))
    ]


def brute_force(q: Tensor, k: Tensor, v: Tensor, mapping: mappings.AbstractMapping) -> Tensor:
    """One query and one item at a time."""
    rows = []
    for item in range(q.shape[0]):
        for query in q[item]:
            scores = torch.stack([query @ key for key in k[item]]) / q.shape[-1] ** 0.5
            y = mapping(scores)
            rows.append(sum(y[j] * v[item, j] for j in range(len(y))))
    return torch.stack(rows).view(*q.shape[:2], v.shape[-1])  # type: ignore[arg-type]


def test_formula(mapping: mappings.AbstractMapping) -> None:
    q, k, v = tensors(2)
    torch.testing.assert_close(attention(q, k, v, mapping), brute_force(q, k, v, mapping))


@pytest.mark.parametrize("kind", ["none", "bool", "float", "causal", "scale"])
def test_agrees_with_torch(kind: str) -> None:
    q, k, v = tensors(2, 3)
    kept = torch.rand(2, 1, 3, 5) > 0.3
    kept[..., 0] = True
    mask = {"bool": kept, "float": torch.randn(3, 5, dtype=torch.float64)}.get(kind)
    scale = 0.3 if kind == "scale" else None
    causal = kind == "causal"
    expected = scaled_dot_product_attention(q, k, v, mask, is_causal=causal, scale=scale)
    for mapping in ("softmax", Entmax(1.0)):
        output, weights = attention(
            q,
            k,
            v,
            mapping,
            mask,
            scale,
            causal=causal,
            weights=True,
        )
        torch.testing.assert_close(output, expected)
        torch.testing.assert_close(weights @ v, output)
    torch.testing.assert_close(attention(q, k, v, mask=mask, scale=scale, causal=causal), expected)


def test_softmax_without_weights_is_torchs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    called = []

    def spy(*arguments: object, **options: object) -> Tensor:
        called.append(options)
        return torch.zeros(1, 3, 2)

    monkeypatch.setattr("fenchel.attention._softmax.scaled_dot_product_attention", spy)
    q, k, v = tensors(1)
    attention(q, k, v)
    assert len(called) == 1
    attention(q, k, v, Softmax(gamma=2.0))
    attention(q, k, v, weights=True)
    assert len(called) == 1


def test_softmax_without_weights_stores_no_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    called = []

    def spy(*arguments: Tensor, **options: object) -> Tensor:
        called.append(arguments[0].ndim)
        return scaled_dot_product_attention(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("fenchel.attention._softmax.scaled_dot_product_attention", spy)
    monkeypatch.setattr("fenchel.attention._blocks.MAX_SCORES", 10)
    x = torch.randn(2, 3, 2, 5, 4)
    for query in (x, x[0], x[0, 0], x[0, 0, 0]):
        expected = scaled_dot_product_attention(query, query, query)
        torch.testing.assert_close(attention(query, query, query), expected)
    assert called == [4] * 4
    torch.testing.assert_close(
        attention(x[0], x[0, :1], x[1, :1]),
        attention(x[0], x[0, :1].expand(3, 2, 5, 4), x[1, :1].expand(3, 2, 5, 4)),
    )
    assert called == [4] * 6
    attention(x, x, x, dropout=0.5)
    attention(x, x, x[..., :2])
    assert called == [4] * 6


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients(name: str) -> None:
    mapping = DIFFERENTIABLE[name]
    kept = torch.tensor([[True, True, False, True, True], [True, False, True, True, True]])[:, None]

    def run(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        found = attention(q, k, v, mapping, kept, weights=True)
        assert isinstance(found, tuple)
        return found

    assert torch.autograd.gradcheck(run, tensors(2, queries=1), atol=1e-4, rtol=1e-3)


def test_masked_keys_count_for_nothing(mapping: mappings.AbstractMapping) -> None:
    q, k, v = tensors(2)
    kept = torch.tensor([True, True, True, False, False])
    short = attention(q, k[:, :3], v[:, :3], mapping)
    torch.testing.assert_close(attention(q, k, v, mapping, kept), short)
    added = torch.zeros(5, dtype=torch.float64).masked_fill(~kept, -torch.inf)
    torch.testing.assert_close(attention(q, k, v, mapping, added), short)


def test_a_query_that_may_look_nowhere_gets_zeros(mapping: mappings.AbstractMapping) -> None:
    q, k, v = tensors(1)
    kept = torch.ones(3, 5, dtype=torch.bool)
    kept[1] = False
    output, weights = attention(q, k, v, mapping, kept, weights=True)
    assert not output[0, 1].any()
    assert not weights[0, 1].any()
    for gradient in torch.autograd.grad(output.sum(), (q, k, v)):
        assert gradient.isfinite().all()


def test_causal_attention_looks_back_only(mapping: mappings.AbstractMapping) -> None:
    if mapping.name == "ksubset":
        pytest.skip("the first place alone cannot hold k")
    q, k, v = tensors(1, queries=4, keys=4)
    output, weights = attention(q, k, v, mapping, causal=True, weights=True)
    assert not weights.triu(1).any()
    for place in range(4):
        alone = attention(q[:, place : place + 1], k[:, : place + 1], v[:, : place + 1], mapping)
        torch.testing.assert_close(output[:, place : place + 1], alone)


def test_alpha_per_head_receives_a_gradient() -> None:
    q, k, v = (x.detach() for x in tensors(2, 3))
    alpha = torch.tensor([1.2, 1.5, 1.8], dtype=torch.float64, requires_grad=True)

    def run(alpha: Tensor) -> Tensor:
        return attention(q, k, v, Entmax(alpha.view(3, 1, 1)))  # type: ignore[return-value]

    for head, value in enumerate(alpha.tolist()):
        one = attention(q[:, head], k[:, head], v[:, head], Entmax(value))
        torch.testing.assert_close(run(alpha)[:, head], one)
    assert torch.autograd.gradcheck(run, (alpha,))


def test_dropout_keeps_the_mean() -> None:
    q, k, v = (x.detach() for x in tensors(1, queries=1))
    many = attention(
        q.expand(4000, -1, -1),
        k.expand(4000, -1, -1),
        v.expand(4000, -1, -1),
        "entmax",
        dropout=0.3,
    )
    torch.testing.assert_close(
        many.mean(0, keepdim=True), attention(q, k, v, "entmax"), atol=0.1, rtol=0
    )
    dropped, weights = attention(q, k, v, "entmax", dropout=1.0, weights=True)
    assert not dropped.any()
    assert weights.sum() > 0.99


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(mapping: mappings.AbstractMapping, dtype: torch.dtype) -> None:
    q, k, v = (x.detach().to(dtype) for x in tensors(2))
    output, weights = attention(q, k, v, mapping, weights=True)
    assert output.dtype == weights.dtype == dtype
    exact = attention(q.double(), k.double(), v.double(), mapping)
    torch.testing.assert_close(output.double(), exact, atol=0.05, rtol=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["softmax", "entmax-alpha1.5", "fusedmax-lam0.1"])
def test_compiles(name: str) -> None:
    q, k, v = tensors(2)
    compiled = torch.compile(attention, fullgraph=True, backend="aot_eager")
    expected = attention(q, k, v, EXAMPLES[name], causal=True)
    output = compiled(q, k, v, EXAMPLES[name], causal=True)
    torch.testing.assert_close(output, expected)
    for new, old in zip(
        torch.autograd.grad(output.sum(), (q, k, v)),
        torch.autograd.grad(expected.sum(), (q, k, v)),
        strict=True,
    ):
        torch.testing.assert_close(new, old)


@pytest.mark.slow
@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_softmax_compiles_for_any_shape(batch: tuple[int, ...]) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(attention, fullgraph=True, backend="aot_eager", dynamic=True)
    for keys in (5, 6):
        q, k, v = tensors(*batch, keys=keys)
        for options in ({}, {"causal": True}, {"mask": torch.rand(keys) > 0.2}):
            expected = attention(q, k, v, **options)
            torch.testing.assert_close(compiled(q, k, v, **options), expected)


def test_errors_name_the_argument() -> None:
    q, k, v = tensors(1)
    with pytest.raises(ValueError, match="`key` must have vectors of the query's size, 4; got"):
        attention(q, v, v)
    with pytest.raises(ValueError, match="`value` must have one row per key, 5; got shape"):
        attention(q, k, v[:, :2])
    with pytest.raises(TypeError, match="`key` must have the type of `query`"):
        attention(q, k.float(), v, "entmax")
    with pytest.raises(ValueError, match="`query` must have at least two dimensions"):
        attention(q[0, 0], k, v)
    with pytest.raises(
        ValueError, match=r"`mask` must broadcast to \(1, 3, 5\), .*; got \(4, 5\)."
    ):
        attention(q, k, v, "entmax", mask=torch.ones(4, 5, dtype=torch.bool))
    with pytest.raises(TypeError, match="`mask` must be a boolean or floating-point"):
        attention(q, k, v, mask=torch.ones(3, 5, dtype=torch.int64))
    with pytest.raises(TypeError, match=r"`mask` must .* got list"):
        attention(q, k, v, mask=[True])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="`mapping` must be a mapping"):
        attention(q, k, v, 1.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the name of a mapping must be one of"):
        attention(q, k, v, "entmax15")
    with pytest.raises(ValueError, match="`dropout` must be at least 0 and at most 1"):
        attention(q, k, v, dropout=1.5)


@pytest.mark.parametrize("mapping", ["softmax", "entmax"])
def test_shapes_of_other_libraries_get_a_remedy(mapping: str) -> None:
    q, k, v = torch.randn(2, 8, 3, 4), torch.randn(2, 2, 5, 4), torch.randn(2, 2, 5, 6)
    shapes = r"multiple of those of the keys; got query \(2, 8, 3, 4\), key \(3, 5, 4\), .*6\)\.$"
    with pytest.raises(ValueError, match=shapes):
        attention(q, torch.randn(3, 5, 4), torch.randn(3, 5, 6), mapping)
    kept = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    expected = r"`mask` must broadcast to \(2, 8, 3, 5\), .*got \(2, 5\); .*`mask\[:, None, None\]`"
    with pytest.raises(ValueError, match=expected):
        attention(q, k, v, mapping, kept)
    output = attention(q, k, v, mapping, kept[:, None, None])
    torch.testing.assert_close(output[1:], attention(q[1:], k[1:, :, :3], v[1:, :, :3], mapping))
    elsewhere = torch.randn(2, 2, 5, 4, device="meta")
    with pytest.raises(ValueError, match="`key` must be on the device of `query`, cpu; got meta"):
        attention(q, elsewhere, v, mapping)


@pytest.mark.parametrize("name", ["alibi", "sinks", "scale", "softcap"])
@pytest.mark.parametrize("mapping", ["entmax", "softmax"])
@pytest.mark.parametrize("default", [torch.float32, torch.bfloat16])
def test_a_number_keeps_its_digits(name: str, mapping: str, default: torch.dtype) -> None:
    inputs = [x.detach() for x in tensors(1, 2, queries=40, keys=40)]
    before = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        found = attention(*inputs, mapping, **{name: 0.1})
        single = attention(*(x.float() for x in inputs), mapping, **{name: 0.1})
    finally:
        torch.set_default_dtype(before)
    number = 0.1 if name == "softcap" else torch.tensor(0.1, dtype=torch.float64)
    expected = attention(*inputs, mapping, **{name: number})
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(single.double(), expected, rtol=1e-5, atol=1e-5)
