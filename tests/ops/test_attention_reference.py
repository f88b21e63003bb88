"""The reference of fused attention against its definition, row by row, and its gradients against
autograd's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from attention_truth import attention_truth
from fenchel import Entmax
from fenchel.ops.attention import attention, attention_backward
from fenchel.ops.attention.dropout import uniform

B, H, G, T, S, D, E = 2, 4, 2, 5, 6, 3, 2
VECTORS = ("query", "key", "value")
ROWS = ("alpha", "gamma", "scale", "slopes", "sinks")
FEATURES = {
    "plain": set(),
    "causal": {"interval"},
    "capped": {"softcap"},
    "biased": {"slopes", "interval"},
    "sunk": {"sinks"},
    "masked": {"bool"},
    "added": {"float", "slopes"},
    "dropped": {"dropout", "sinks"},
    "all": {"interval", "softcap", "slopes", "sinks", "float", "dropout"},
}


def arguments(features: set[str], dtype: torch.dtype = torch.float64) -> dict[str, Any]:
    """Random arguments of the operator, by name and in its order."""

    def rows(low: float, high: float) -> Tensor:
        return (low + (high - low) * torch.rand(B, H, T, dtype=dtype)).requires_grad_()

    place = torch.arange(T, dtype=torch.int32)
    first = torch.tensor([[0, 0, 1, 2, 6], [0, 0, 0, 0, 1]], dtype=torch.int32)
    mask = None
    if "bool" in features:
        mask = (torch.rand(1, H, T, S) > 0.4).expand(B, H, T, S)
    if "float" in features:
        mask = torch.randn(T, S, dtype=dtype).masked_fill(torch.rand(T, S) > 0.7, -torch.inf)
        mask = mask.expand(B, H, T, S)
    interval = "interval" in features
    return {
        "query": torch.randn(B, H, T, D, dtype=dtype, requires_grad=True),
        "key": torch.randn(B, G, S, D, dtype=dtype, requires_grad=True),
        "value": torch.randn(B, G, S, E, dtype=dtype, requires_grad=True),
        "starts": first if interval else torch.zeros(1, T, dtype=torch.int32),
        "stops": torch.maximum(first, place + 1) if interval else torch.full((1, T), S).int(),
        "diagonal": place.expand(2, T) + torch.tensor([[0], [1]]).int(),
        "alpha": rows(1.1, 2.5),
        "gamma": rows(0.5, 2.0),
        "scale": rows(0.5, 1.0),
        "slopes": rows(0.1, 0.5) if "slopes" in features else None,
        "sinks": rows(-1.0, 1.0) if "sinks" in features else None,
        "mask": mask,
        "seed": torch.tensor([12345678901]) if "dropout" in features else None,
        "softcap": 1.5 if "softcap" in features else 0.0,
        "dropout": 0.3 if "dropout" in features else 0.0,
    }


def truth(a: dict[str, Any]) -> tuple[Tensor, Tensor]:
    keep = None
    if a["dropout"]:
        index = torch.arange(B * H * T * S).view(B, H, T, S)
        keep = (uniform(a["seed"], index) >= a["dropout"]) / 0.7
    starts, stops, diagonal = (a[n].expand(B, T).tolist() for n in ("starts", "stops", "diagonal"))
    return attention_truth(
        a["query"],
        a["key"],
        a["value"],
        lambda b, h, t: Entmax(a["alpha"][b, h, t], gamma=a["gamma"][b, h, t]),
        lambda b, t, j: starts[b][t] <= j < stops[b][t],
        lambda b, t: diagonal[b][t],
        keep=keep,
        **{name: a[name] for name in ("scale", "slopes", "sinks", "mask", "softcap")},
    )


def detached(a: dict[str, Any]) -> list[Any]:
    return [x.detach() if isinstance(x, Tensor) else x for x in a.values()]


@pytest.mark.parametrize("name", FEATURES)
def test_reference_is_the_definition(name: str) -> None:
    a = arguments(FEATURES[name])
    output, tau, state = attention(*detached(a))
    expected, _ = truth(a)
    torch.testing.assert_close(output, expected)
    grad = torch.randn_like(output)
    given = [n for n in (*VECTORS, *ROWS) if a[n] is not None]
    wanted = torch.autograd.grad(expected, [a[n] for n in given], grad)
    *vectors, rows = attention_backward(grad, *detached(a), output, tau, state, 31)
    found: dict[str, Any] = dict(zip((*VECTORS, *ROWS), (*vectors, *rows), strict=True))
    for n, gradient in zip(given, wanted, strict=True):
        torch.testing.assert_close(found[n], gradient, msg=lambda m, n=n: f"{n}: {m}")
    assert not attention_backward(grad, *detached(a), output, tau, state, 0)[-1].numel()


def test_numbers_are_the_same_for_every_row() -> None:
    a = arguments({"interval", "slopes"})
    numbers = {"alpha": 1.4, "gamma": 0.8, "scale": 0.6}
    rows = {name: torch.full((B, H, T), x, dtype=torch.float64) for name, x in numbers.items()}
    results = [attention(*detached(a | given)) for given in (numbers, rows)]
    grads = [
        attention_backward(results[0][0], *detached(a | given), *results[0], 31)
        for given in (numbers, rows)
    ]
    for one, other in zip((*results[0], *grads[0]), (*results[1], *grads[1]), strict=True):
        assert torch.equal(one, other)


def test_tau_is_the_threshold() -> None:
    a = arguments({"interval", "slopes"})
    _, tau, _ = attention(*detached(a))
    _, weights = truth(a)
    alpha, gamma, seen = a["alpha"], a["gamma"], weights > 0
    r = torch.einsum("bgrtd,bgsd->bgrts", a["query"].unflatten(1, (G, -1)), a["key"]).flatten(1, 2)
    far = (a["diagonal"][:, None, :, None] - torch.arange(S)).abs()
    z = a["scale"][..., None] * r - a["slopes"][..., None] * far
    x = ((alpha - 1) / gamma)[..., None] * z - tau[..., None]
    powers = x.clamp(min=0) ** (1 / (alpha - 1))[..., None]
    torch.testing.assert_close(powers[seen], weights[seen])
    assert (tau[0, :, 4] == torch.inf).all()  # it sees nothing


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_types(dtype: torch.dtype) -> None:
    a = arguments({"sinks"}, dtype)
    for name in ROWS:
        a[name] = None if a[name] is None else a[name].float()
    output, tau, state = attention(*detached(a))
    assert (output.dtype, tau.dtype) == (dtype, torch.float32)
    *vectors, rows = attention_backward(output, *detached(a), output, tau, state, 1)
    assert {x.dtype for x in vectors} == {dtype}
    assert rows.dtype == torch.float32
    wide = [
        x.double() if isinstance(x, Tensor) and x.is_floating_point() else x for x in detached(a)
    ]
    assert torch.equal(attention(*wide)[0].to(dtype), output)


@pytest.mark.parametrize(("queries", "keys"), [(0, 3), (3, 0), (1, 1), (0, 0)])
@pytest.mark.parametrize("sunk", [False, True])
def test_no_queries_or_no_keys(queries: int, keys: int, sunk: bool) -> None:
    query, key = torch.randn(B, H, queries, D), torch.randn(B, G, keys, D)
    one = torch.ones(()).expand(B, H, queries)
    ends = torch.full((1, queries), keys).int()
    rest = (1.5 * one, one, one, None, one if sunk else None, None, None, 0.0, 0.0)
    inputs = (query, key, key, torch.zeros_like(ends), ends, ends, *rest)
    output, tau, state = attention(*inputs)
    assert output.shape == (B, H, queries, D)
    if not keys:
        assert not output.any()
        assert sunk or (tau == torch.inf).all()
    gradients = attention_backward(torch.ones_like(output), *inputs, output, tau, state, 31)
    assert [x.shape for x in gradients[:3]] == [query.shape, key.shape, key.shape]
    assert all(x.isfinite().all() for x in gradients)


def test_what_is_not_finite_spoils_only_who_sees_it() -> None:
    a = arguments({"interval"})
    a["key"] = a["key"].detach()
    clean = detached(a)
    expected = attention(*clean)
    a["key"][0, :, 3] = torch.nan
    a["value"] = a["value"].detach().clone()
    a["value"][1, :, 4, 0] = torch.inf
    output, tau, state = attention(*detached(a))
    spoiled = torch.zeros(B, T, dtype=torch.bool)
    spoiled[0, 3] = spoiled[1, 4] = True
    spoiled = spoiled[:, None].expand(B, H, T)
    assert torch.equal(output.isnan().any(-1), spoiled)
    assert torch.equal(output[~spoiled], expected[0][~spoiled])
    grad = torch.ones_like(output).masked_fill(spoiled[..., None], 0.0)
    query = attention_backward(grad, *detached(a), output, tau, state, 0)[0]
    wanted = attention_backward(grad, *clean, *expected, 0)[0]
    torch.testing.assert_close(query[~spoiled], wanted[~spoiled])


def test_shapes_without_values() -> None:
    a = arguments({"sinks"})
    meta = [x.to("meta") if isinstance(x, Tensor) else x for x in detached(a)]
    results = torch.ops.fenchel.attention(*meta)
    for shape, real in zip(results, attention(*detached(a)), strict=True):
        assert (shape.shape, shape.dtype) == (real.shape, real.dtype)
    found = torch.ops.fenchel.attention_backward(results[0], *meta, *results, 3)
    assert [x.shape for x in found] == [(B, H, T, D), (B, G, S, D), (B, G, S, E), (5, B, H, T)]


def test_the_generator_is_tritons() -> None:
    # Philox 4×32-10 for key 0 and counter 0 starts with 0x6627e8d5.
    first = uniform(torch.tensor([0]), torch.tensor([0]))
    assert first.item() == torch.tensor(0x6627E8D5).float().item() * torch.tensor(4.6566127342e-10)
    many = uniform(torch.tensor([7]), torch.arange(100_000) + 2**33)
    assert many.min() >= 0
    assert many.max() < 1
    assert abs(many.mean() - 0.5) < 0.01
    assert abs((many < 0.1).float().mean() - 0.1) < 0.01
