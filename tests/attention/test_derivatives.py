"""Derivatives of every kind, and graphs of every kind, whichever way attention is computed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad

from attention_problems import WAYS, adaptive, take, vectors
from fenchel import Entmax, Softmax, Sparsemax, mappings
from fenchel.attention import _blocks, attention

OPTIONS: dict[str, Any] = {"causal": "lower_right", "window": 3, "softcap": 2.0}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    take(request.param, monkeypatch)
    return request.param


def small() -> tuple[Tensor, Tensor, Tensor]:
    query, key, value = (x[:1, :2].detach() for x in vectors(queries=3, keys=4))
    return query.requires_grad_(), key[:, :1].requires_grad_(), value[:, :1].requires_grad_()


def test_gradients_of_all_that_is_learnt(way: str) -> None:
    query, key, value = small()
    parameters = [
        torch.tensor(x, dtype=torch.float64, requires_grad=True)
        for x in ([1.3, 2.0], [0.7, 1.5], [0.4, 0.6], [0.1, 0.2], [-0.3, 0.4])
    ]

    def run(query: Tensor, key: Tensor, value: Tensor, *rows: Tensor) -> Any:
        alpha, gamma, scale, slopes, sinks = rows
        mapping = Entmax(alpha[:, None, None], gamma=gamma[:, None, None])
        return attention(
            query,
            key,
            value,
            mapping,
            None,
            scale[:, None, None],
            alibi=slopes,
            sinks=sinks,
            **OPTIONS,
        )

    inputs = (query, key, value, *parameters)
    assert torch.autograd.gradcheck(run, inputs)
    assert torch.autograd.gradgradcheck(run, inputs, atol=1e-4)


@pytest.mark.parametrize("mapping", ["sparsemax", "softmax", "pnormmax", "fusedmax"])
def test_second_derivatives(mapping: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_blocks, "MAX_SCORES", 5)
    assert torch.autograd.gradgradcheck(lambda *x: attention(*x, mapping, **OPTIONS), small())


def test_second_derivatives_with_dropout(way: str) -> None:
    query, key, value = small()

    def run(query: Tensor, key: Tensor, value: Tensor) -> Any:
        torch.manual_seed(5)
        return attention(query, key, value, "entmax", dropout=0.4)

    assert torch.autograd.gradgradcheck(run, (query, key, value))


def test_keys_computed_from_queries_are_not_counted_twice(way: str) -> None:
    x = torch.randn(2, 5, 3, dtype=torch.float64, requires_grad=True)

    def norm(create_graph: bool) -> Tensor:
        query = x.sin()
        output = attention(query, query * 2, query + 1, Entmax(1.5), causal=True)
        return torch.autograd.grad(output.square().sum(), x, create_graph=create_graph)[0]

    torch.testing.assert_close(norm(True), norm(False))


def test_func(way: str) -> None:
    query, key, value = (x.detach() for x in small())
    mapping, tangents = Entmax(1.5), tuple(torch.randn_like(x) for x in (query, key, value))

    def run(query: Tensor, key: Tensor, value: Tensor) -> Any:
        return attention(query, key, value, mapping, causal=True, sinks=0.1)

    output, along = torch.func.jvp(run, (query, key, value), tangents)
    torch.testing.assert_close(output, run(query, key, value))
    step, pairs = 1e-6, list(zip((query, key, value), tangents, strict=True))
    ahead = run(*(x + step * t for x, t in pairs))
    behind = run(*(x - step * t for x, t in pairs))
    torch.testing.assert_close(along, (ahead - behind) / (2 * step), atol=1e-6, rtol=1e-5)
    with forward_ad.dual_level():
        duals = [
            forward_ad.make_dual(x, t) for x, t in zip((query, key, value), tangents, strict=True)
        ]
        torch.testing.assert_close(forward_ad.unpack_dual(run(*duals)).tangent, along)
    gradient = torch.func.grad(lambda q: run(q, key, value).square().sum())(query)
    leaf = query.clone().requires_grad_()
    torch.testing.assert_close(
        gradient, torch.autograd.grad(run(leaf, key, value).square().sum(), leaf)[0]
    )
    many = torch.randn(4, *query.shape, dtype=torch.float64)
    expected = torch.stack([run(q, key, value) for q in many])
    torch.testing.assert_close(torch.vmap(run, (0, None, None))(many, key, value), expected)


def test_vmap_over_lengths() -> None:
    x, lengths = torch.randn(3, 2, 5, 4), torch.tensor([5, 2, 0])

    def run(x: Tensor, length: Tensor) -> Any:
        return attention(x[None], x[None], x[None], "entmax", key_lengths=length[None])

    found = torch.vmap(run)(x, lengths)[:, 0]
    torch.testing.assert_close(found, attention(x, x, x, "entmax", key_lengths=lengths))


def test_softmax_by_torch_has_transforms_too() -> None:
    query, key, value = (x.detach() for x in vectors())
    torch.func.jvp(lambda q: attention(q, key, value), (query,), (torch.ones_like(query),))
    hessian = torch.func.hessian(lambda q: attention(q, key, value, causal=True).sum())(
        query[:1, :2]
    )
    assert hessian.isfinite().all()


@pytest.mark.slow
@pytest.mark.parametrize(
    "mapping",
    [Entmax(1.5), Sparsemax(gamma=0.5), Entmax(0.9)],
    ids=["entmax", "sparsemax", "heavy"],
)
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiles(mapping: mappings.AbstractMapping, dynamic: bool, way: str) -> None:
    torch._dynamo.reset()
    ends, key_ends = torch.tensor([0, 2, 3]), torch.tensor([0, 2, 4])
    slopes = torch.rand(2, dtype=torch.float64, requires_grad=True)

    def run(x: Tensor, key: Tensor, value: Tensor, slopes: Tensor) -> Any:
        packed = {"cu_seqlens_q": ends, "cu_seqlens_k": key_ends, "alibi": slopes}
        return attention(x, key, value, mapping, causal=True, sinks=0.0, **packed)

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for _ in range(2):
        inputs = (*small(), slopes)
        output, expected = compiled(*inputs), run(*inputs)
        torch.testing.assert_close(output, expected)
        grad = torch.randn_like(output)
        found = torch.autograd.grad(output, inputs, grad)
        for new, old in zip(found, torch.autograd.grad(expected, inputs, grad), strict=True):
            torch.testing.assert_close(new, old)


@pytest.mark.slow
def test_compiled_alpha_is_learnt(way: str) -> None:
    torch._dynamo.reset()
    query, key, value = vectors()
    mapping, _, parameters = adaptive()

    def run(*parameters: Tensor) -> Any:
        alpha, gamma = parameters
        return attention(query, key, value, Entmax(alpha, gamma=gamma), **OPTIONS)

    output = torch.compile(run, fullgraph=True, backend="aot_eager")(*parameters)
    expected = attention(query, key, value, mapping, **OPTIONS)
    for new, old in zip(
        torch.autograd.grad(output.square().sum(), parameters),
        torch.autograd.grad(expected.square().sum(), parameters),
        strict=True,
    ):
        torch.testing.assert_close(new, old)


@pytest.mark.slow
def test_exports(way: str) -> None:
    class Model(nn.Module):
        def forward(self, query: Tensor, key: Tensor, lengths: Tensor) -> Any:
            return attention(query, key, key, "entmax", causal=True, window=2, key_lengths=lengths)

    query, key, _ = (x.detach() for x in vectors())
    inputs = (query, key, torch.tensor([3, 7]))
    exported = torch.export.export(Model(), inputs)
    torch.testing.assert_close(exported.module()(*inputs), Model()(*inputs))


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{"causal": True, "window": 3}, {"window": (2, None)}, {"causal": "lower_right"}, {}]
)
def test_exports_for_any_length(options: dict[str, Any]) -> None:
    class Model(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return attention(x, x, x, "entmax", **options)

    shapes = ({2: torch.export.Dim("T", min=2, max=512)},)
    exported = torch.export.export(Model(), (torch.randn(1, 2, 7, 4),), dynamic_shapes=shapes)
    for length in (2, 5, 40):
        x = torch.randn(1, 2, length, 4)
        torch.testing.assert_close(exported.module()(x), Model()(x))


def test_shapes_without_values(way: str) -> None:
    shape = (2, 4, 5, 2)
    real = [x.detach() for x in vectors()]
    meta = [x.to("meta") for x in real]
    assert attention(*meta, "sparsemax", causal=True, dropout=0.1).shape == shape
    with FakeTensorMode() as mode:
        fake = [mode.from_tensor(x) for x in real]
        lengths = torch.tensor([3, 4])
        assert attention(*fake, "entmax", window=2, key_lengths=lengths).shape == shape


@pytest.mark.parametrize("mapping", ["softmax", "entmax", "fusedmax"])
def test_autocast(mapping: str, way: str) -> None:
    if way == "fused" and mapping != "entmax":
        pytest.skip("not of the operator")
    query, key, value = (x.detach().float().requires_grad_() for x in vectors())
    expected = attention(*(x.bfloat16() for x in (query, key, value)), mapping, window=2)
    with torch.autocast("cpu", torch.bfloat16):
        output = attention(query, key, value, mapping, window=2)
    assert output.dtype == torch.bfloat16
    assert torch.equal(output, expected)
    wanted = torch.autograd.grad(expected.sum(), (query, key, value))
    with torch.autocast("cpu", torch.bfloat16):  # which backward must not follow
        found = torch.autograd.grad(output.sum(), (query, key, value))
    for new, old in zip(found, wanted, strict=True):
        assert new.dtype == torch.float32
        if way != "dense":
            assert torch.equal(new, old)


HIDDEN = torch.tensor([[True, False, True, False], [False] * 4, [True] * 4])


@pytest.mark.parametrize("mask", [HIDDEN, torch.where(HIDDEN, 0.5, -torch.inf).double()])
def test_gamma_has_its_gradient_where_keys_are_hidden(way: str, mask: Tensor) -> None:
    inputs = [x.detach() for x in small()]
    gamma = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda gamma: attention(*inputs, Entmax(1.5, gamma=gamma), mask), (gamma,)
    )


@pytest.mark.parametrize("way", ["dense", "blocks"])
@pytest.mark.parametrize("mapping", [Sparsemax, Entmax, Softmax])
def test_a_lowest_mask_leaves_gamma_its_gradient(
    way: str, mapping: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    take(way, monkeypatch)
    inputs = [x.detach().float() for x in small()]
    gamma = torch.tensor(0.5, requires_grad=True)

    def gradient(low: float) -> Tensor:
        mask = torch.tensor([0.0, 0.0, low, low])
        output = attention(*inputs, mapping(gamma=gamma), mask)
        return torch.autograd.grad(output.square().sum(), gamma)[0]

    torch.testing.assert_close(gradient(torch.finfo(torch.float32).min), gradient(-torch.inf))


@pytest.mark.parametrize("gamma", [0.5, 1e-40, 1e-45])
@pytest.mark.parametrize("low", [0.0, torch.finfo(torch.float32).min])
def test_gamma_is_the_same_as_a_number_and_as_a_tensor(gamma: float, low: float) -> None:
    inputs = [x.detach().float() for x in small()]
    mask = torch.full((4,), low)
    expected = attention(*inputs, Sparsemax(gamma=gamma), mask, sinks=-1.0)
    found = attention(*inputs, Sparsemax(gamma=torch.tensor(gamma)), mask, sinks=-1.0)
    torch.testing.assert_close(found, expected)
