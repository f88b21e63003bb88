"""Small calls on a CPU take a shorter way, with the same results."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fenchel import Entmax, mappings
from fenchel.attention import _attention, _blocks, _direct, attention

ALPHAS = Entmax(torch.tensor([[1.2], [1.5], [2.0]], dtype=torch.float64))
MAPPINGS = ["entmax", "sparsemax", "fusedmax", "ksubset", ALPHAS]
MASK = torch.tensor([[True, False, True, True, False], [False] * 5, [True] * 5])
OPTIONS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "scale": {"scale": 0.3},
    "mask": {"mask": MASK},
    "mask of keys": {"mask": torch.tensor([True, True, False, True, False])},
    "added mask": {"mask": torch.where(MASK, 0.5, -torch.inf).double()},
    "causal": {"causal": True},
    "lower right": {"causal": "lower_right"},
    "causal, masked": {"causal": "upper_left", "mask": MASK},
}


def vectors(*batch: int, needs_grad: bool = False) -> list[Tensor]:
    torch.manual_seed(0)
    shapes = ((3, 4), (5, 4), (5, 2))
    return [
        torch.randn(*batch, *shape, dtype=torch.float64).requires_grad_(needs_grad)
        for shape in shapes
    ]


def general(monkeypatch: pytest.MonkeyPatch, *arguments: Any, **options: Any) -> Any:
    with monkeypatch.context() as patch:
        patch.setattr(_attention, "direct_attention", lambda *arguments: None)
        return attention(*arguments, **options)


def is_direct(monkeypatch: pytest.MonkeyPatch, *arguments: Any, **options: Any) -> bool:
    found = []

    def note(*arguments: Any) -> Any:
        found.append(_direct.direct_attention(*arguments))
        return found[-1]

    with monkeypatch.context() as patch:
        patch.setattr(_attention, "direct_attention", note)
        attention(*arguments, **options)
    return bool(found) and found[-1] is not None


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("mapping", MAPPINGS)
@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_as_the_general_way(
    mapping: str | Entmax, name: str, batch: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs, options = vectors(*batch, needs_grad=True), OPTIONS[name]
    given = mappings.get(mapping) if isinstance(mapping, str) else mapping
    assert is_direct(monkeypatch, *inputs, given, **options)
    output, weights = attention(*inputs, given, weights=True, **options)
    expected, y = general(monkeypatch, *inputs, given, weights=True, **options)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(weights, y)
    v = torch.randn_like(output)
    for ours, theirs in zip(
        torch.autograd.grad(output, inputs, v),
        torch.autograd.grad(expected, inputs, v),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("name", ["nothing", "causal", "mask of keys"])
def test_derivatives(name: str) -> None:
    inputs = vectors(2, needs_grad=True)

    def solve(*inputs: Tensor) -> Tensor:
        return attention(*inputs, Entmax(1.5), **OPTIONS[name])  # type: ignore[return-value]

    assert torch.autograd.gradcheck(solve, inputs)
    assert torch.autograd.gradgradcheck(solve, inputs)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_what_is_hidden_does_not_matter(bad: float) -> None:
    query, key, value = vectors(2)
    mask = torch.tensor([True, True, True, True, False])
    expected = attention(query, key[:, :4], value[:, :4], "entmax")
    spoiled = [torch.cat([x[:, :4], torch.full_like(x[:, :1], bad)], 1) for x in (key, value)]
    torch.testing.assert_close(attention(query, *spoiled, "entmax", mask), expected)
    assert attention(query, spoiled[0], value, "entmax").isnan().all()
    first = attention(query, *spoiled, "entmax", causal=True)[:, 0]
    torch.testing.assert_close(first, value[:, 0])


def test_under_another_default_device() -> None:
    inputs = vectors(2)
    expected = attention(*inputs, "entmax", causal=True)
    with torch.device("meta"):
        found = attention(*inputs, "entmax", causal=True)
    torch.testing.assert_close(found, expected)


def test_who_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    query, key, value = inputs = vectors(2, 2)
    assert is_direct(monkeypatch, *inputs, "entmax")
    assert is_direct(monkeypatch, *inputs, "softmax", weights=True)
    assert not is_direct(monkeypatch, *inputs, "softmax")
    assert not is_direct(monkeypatch, *inputs, "entmax", window=2)
    assert not is_direct(monkeypatch, *inputs, "entmax", dropout=0.5)
    assert not is_direct(monkeypatch, *inputs, "entmax", softcap=1.0)
    assert is_direct(monkeypatch, *inputs, Entmax(torch.full((2, 1, 1), 1.5)))
    assert not is_direct(monkeypatch, *inputs, Entmax(gamma=torch.tensor(1.5)))
    assert not is_direct(monkeypatch, query, key[:, :1], value[:, :1], "entmax")
    assert not is_direct(monkeypatch, *(x.bfloat16() for x in inputs), "entmax")
    assert not is_direct(monkeypatch, *inputs, "entmax", torch.zeros(3, 5).requires_grad_())
    with torch.autocast("cpu", torch.bfloat16):
        assert not is_direct(monkeypatch, *inputs, "entmax")
    monkeypatch.setattr(_blocks, "MIN_SAVED", 1)
    assert is_direct(monkeypatch, *inputs, "entmax")
    assert not is_direct(monkeypatch, *inputs, "entmax", causal=True)
    monkeypatch.setattr(_blocks, "MAX_SCORES", 10)
    assert not is_direct(monkeypatch, *inputs, "entmax")


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_bad_input_is_refused_as_ever() -> None:
    query, key, value = vectors()
    with pytest.raises(ValueError, match="`key` must have at least two dimensions"):
        attention(query, key[0], value, "entmax")
    with pytest.raises(TypeError, match="`query` must be a dense tensor, got a nested one"):
        attention(torch.nested.nested_tensor([query]), key[None], value[None], "entmax")
    with pytest.raises(TypeError, match="`dropout` must be a number"):
        attention(query, key, value, "entmax", dropout=False)
    with pytest.raises(ValueError, match="`scale` must be finite"):
        attention(query, key, value, "entmax", scale=torch.inf)
    with pytest.raises(ValueError, match=r"`alpha` must broadcast to .* one entry per query"):
        attention(query, key, value, Entmax(torch.full((7, 1), 1.5)))
    with pytest.raises(ValueError, match="`mask` must broadcast"):
        attention(query, key, value, "entmax", torch.ones(4, 5, dtype=torch.bool))
