"""The fused attention kernels against dense attention in float64, forward and backward."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fenchel.ops.entmax import reference as entmax

pytest.importorskip("triton", reason="Triton is not made for this platform")
from fenchel.ops.attention.triton import Plan, Tiles, attention, attention_backward

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
SMALL = Tiles(16, 16, 4, 1)
LISTS = Plan(
    cap=128, key_cap=64, bytes=2**12, bound=(32, 4, 1), mark=(32, 4, 1),
    rows=((16, 2, 4), (16, 8, 4)), back=(16, 4, 1), keys=(16, 4, 1), words=16,
)  # fmt: skip
SHORT_LISTS = LISTS._replace(cap=24, key_cap=8)
WAYS = {"tiles": SMALL, "lists": LISTS, "short lists": SHORT_LISTS}
"""Dense tiles, candidates that all fit into lists, and candidates of which many do not."""
HALF = {torch.bfloat16: 2**-8 if CUDA else 2**-7, torch.float16: 2**-11}
"""What the types round; the interpreter cuts digits off."""


class Entmax(torch.autograd.Function):
    """α-entmax of rows with its derivatives, from the reference."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, alpha: Tensor) -> Tensor:
        y = torch.empty_like(x)
        for a in alpha.unique():  # exact sorting where α is 1.5 or 2
            y = torch.where(alpha == a, entmax.entmax(x, float(a)), y)
        ctx.save_for_backward(y, alpha)
        return y

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        y, alpha = ctx.saved_tensors
        return entmax.entmax_jvp(y, v, alpha), entmax.entmax_parameter_vjp(y, v, alpha)


def philox(seed: int, counter: np.ndarray) -> np.ndarray:
    """Numbers in [0, 1) for 64-bit counters: the first word of Philox 4x32 with ten rounds."""
    low, word = np.uint64(0xFFFFFFFF), np.uint64(32)
    c = [counter & low, counter >> word, counter * 0, counter * 0]
    k = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        b, a = np.uint64(0xCD9E8D57) * c[2], np.uint64(0xD2511F53) * c[0]
        c = [(b >> word) ^ c[1] ^ np.uint64(k[0]), b & low,
             (a >> word) ^ c[3] ^ np.uint64(k[1]), a & low]  # fmt: skip
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    signed = c[0].astype(np.uint32).view(np.int32)
    return np.where(signed < 0, -signed.astype(np.int64) - 1, signed) * 4.6566127342e-10


CHOSEN = ["tiles"]


def _param(way: str) -> Any:
    """Tiles are tested always; `test_lists` does so for lists, and on a GPU every test."""
    return pytest.param(way, marks=[] if CUDA or way == "tiles" else pytest.mark.slow)


@pytest.fixture(params=map(_param, WAYS), autouse=True)
def chosen_way(request: pytest.FixtureRequest) -> None:
    CHOSEN[0] = request.param


@dataclass
class Case:
    """The arguments of the operator, float32 and on the CPU unless given."""

    query: Tensor
    key: Tensor
    value: Tensor
    starts: Tensor
    stops: Tensor
    diagonal: Tensor
    alpha: float | Tensor = 1.5
    gamma: float | Tensor = 1.0
    scale: float | Tensor = 0.5
    slopes: Tensor | None = None
    sinks: Tensor | None = None
    mask: Tensor | None = None
    seed: Tensor | None = None
    softcap: float = 0.0
    dropout: float = 0.0
    way: Tiles | Plan | None = field(default_factory=lambda: WAYS[CHOSEN[0]])

    def arguments(self) -> list[Any]:
        names = (
            "query", "key", "value", "starts", "stops", "diagonal", "alpha", "gamma", "scale",
            "slopes", "sinks", "mask", "seed", "softcap", "dropout",
        )  # fmt: skip
        given = [getattr(self, name) for name in names]
        return [x.to(DEVICE) if isinstance(x, Tensor) else x for x in given]

    def run(self) -> tuple[Tensor, ...]:
        return attention(*self.arguments(), way=self.way)

    def run_backward(self, grad: Tensor, results: tuple[Tensor, ...], needs: int) -> list[Tensor]:
        given = [grad.to(DEVICE), *self.arguments(), *results, needs]
        return list(attention_backward(*given, way=self.way))

    def parameters(self) -> list[Tensor]:
        """Query, key, value, and (B, H, T, 1) each α, γ, scale, slopes and sinks, in float64."""
        shape = self.query.shape[:-1]
        given = (self.alpha, self.gamma, self.scale, self.slopes, self.sinks)
        rows = [torch.zeros(()) if x is None else torch.as_tensor(x) for x in given]
        rows = [x.double().expand(shape).unsqueeze(-1) for x in rows]
        inputs = (self.query, self.key, self.value)
        return [x.double().clone().requires_grad_() for x in (*inputs, *rows)]

    def kept(self) -> Tensor | float:
        if self.seed is None:
            return 1.0
        b, h, t, _ = self.query.shape
        s = self.key.shape[2]
        counter = np.arange(b * h * t * s, dtype=np.uint64).reshape(b, h, t, s)
        random = torch.from_numpy(philox(int(self.seed), counter))
        return (random >= self.dropout) / (1 - self.dropout)

    def truth(self, given: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Dense attention in float64: the output and the weights, the sink's last."""
        query, key, value, alpha, gamma, scale, slopes, sinks = given
        ratio = query.shape[1] // key.shape[1]
        s = key.shape[2]
        z = scale * (query @ key.repeat_interleave(ratio, 1).mT)
        if self.softcap:
            z = self.softcap * torch.tanh(z / self.softcap)
        place = torch.arange(s)
        if self.slopes is not None:
            z = z - slopes * (self.diagonal[:, None, :, None] - place).abs()
        visible = (place >= self.starts[:, None, :, None]) & (place < self.stops[:, None, :, None])
        if self.mask is not None and self.mask.dtype == torch.bool:
            visible = visible & self.mask
        elif self.mask is not None:
            z = z + self.mask.double().clamp(min=-1e300)
            visible = visible & (self.mask > -torch.inf)
        visible = visible.expand(z.shape)
        if self.sinks is not None:
            z = torch.cat([z, sinks], -1)
            visible = torch.nn.functional.pad(visible, (0, 1), value=True)
        p = Entmax.apply(torch.where(visible, z / gamma, -torch.inf), alpha)
        assert isinstance(p, Tensor)
        return (self.kept() * p[..., :s]) @ value.repeat_interleave(ratio, 1), p

    def check_forward(self, tol: float) -> Tensor:
        output, tau, *_ = self.run()
        expected, p = self.truth(self.parameters())
        self.compare(output, tau, expected, p, tol)
        return output

    def compare(self, output: Tensor, tau: Tensor, expected: Tensor, p: Tensor, tol: float) -> None:
        assert output.dtype == self.query.dtype
        rtol = HALF.get(output.dtype, 0.0)
        close = {"rtol": rtol, "atol": tol, "equal_nan": True}
        torch.testing.assert_close(output.cpu().double(), expected, **close)
        empty = (p == 0).all(-1)
        assert tau.cpu()[empty].eq(torch.inf).all()
        assert tau.cpu()[~empty & ~p.isnan().any(-1)].isfinite().all()

    def check(self, tol: float, grad_tol: float, needs: int = 31) -> None:
        """Compares the output, and all gradients relative to the largest entry of each."""
        output, tau, *_ = results = self.run()
        grad = torch.randn(output.shape).to(output.dtype)
        found = self.run_backward(grad, results, needs)
        given = self.parameters()
        expected, p = self.truth(given)
        self.compare(output, tau, expected, p, tol)
        wanted = torch.autograd.grad(expected, given, grad.double(), allow_unused=True)
        names = ("query", "key", "value", "alpha", "gamma", "scale", "slopes", "sinks")
        results = [*found[:3], *(found[3].unsqueeze(-1) if needs else [])]
        for i, (name, got) in enumerate(zip(names, results, strict=False)):
            if i >= 3 and not needs >> (i - 3) & 1:
                continue
            if i < 3:
                assert got.dtype == self.query.dtype
            want = wanted[i] if wanted[i] is not None else torch.zeros_like(given[i])
            atol = grad_tol * max(1.0, float(want.abs().amax()))
            torch.testing.assert_close(
                got.cpu().double(), want, rtol=0, atol=atol, msg=lambda m, n=name: f"{n}: {m}"
            )


def case(
    b: int = 1, h: int = 2, g: int = 1, t: int = 20, s: int = 40, d: int = 16, e: int = 16,
    dtype: torch.dtype = torch.float32, **options: Any,
) -> Case:  # fmt: skip
    """Random queries, keys and values; every query sees every key."""
    return Case(
        torch.randn(b, h, t, d).to(dtype),
        torch.randn(b, g, s, d).to(dtype),
        torch.randn(b, g, s, e).to(dtype),
        torch.zeros(1, t, dtype=torch.int32),
        torch.full((1, t), s, dtype=torch.int32),
        torch.arange(t, dtype=torch.int32)[None] + (s - t),
        **options,
    )


def causal(problem: Case, window: int | None = None) -> Case:
    problem.stops = problem.diagonal + 1
    if window is not None:
        problem.starts = (problem.stops - window).clamp(min=0)
    return problem


def rows(problem: Case, low: float, high: float) -> Tensor:
    """One number per query."""
    return low + (high - low) * torch.rand(problem.query.shape[:-1])


def per_head(problem: Case, low: float, high: float) -> Tensor:
    """One number per head, expanded without a copy."""
    return torch.linspace(low, high, problem.query.shape[1])[:, None].expand(
        problem.query.shape[:-1]
    )


@pytest.mark.parametrize("alpha", [1.5, 2.0, 1.33, 1.75, 1.01, 1.1])
def test_every_alpha(alpha: float) -> None:
    case(t=17, s=35, alpha=alpha).check(2e-6, 1e-5)


@pytest.mark.parametrize("alpha", [2.1, 3.0, 10.0])
def test_alpha_above_two(alpha: float) -> None:
    problem = case(t=6, s=33, alpha=alpha)
    if alpha < 5:
        problem.check(5e-5, 1e-3)
    else:  # 1/p^(α−2) would magnify what scores round
        problem.check_forward(5e-5)


@pytest.mark.parametrize("alpha", [1.5, 2.0, 1.33])
def test_causal_windows(alpha: float) -> None:
    causal(case(h=1, t=50, s=50, alpha=alpha), window=21).check(2e-6, 1e-5, needs=0)


def test_numbers_of_every_query() -> None:
    problem = case(h=4, g=2, t=10, s=25)
    problem.alpha = rows(problem, 1.05, 2.0)
    problem.alpha[..., ::5] = torch.tensor([1.5, 2.0, 1.05, 1.99])[:, None]
    problem.gamma = rows(problem, 0.3, 3.0)
    problem.scale = per_head(problem, -0.5, 0.7)
    problem.check(3e-6, 3e-5)


def test_alphas_above_and_below_two_in_one_block() -> None:
    problem = case(t=9)
    problem.alpha = torch.tensor([1.2, 1.5, 1.9, 2.0, 2.1, 2.5, 3.0, 5.0, 10.0]).expand(1, 2, 9)
    problem.check_forward(5e-5)


@pytest.mark.parametrize("gamma", [1e-3, 0.1, 30.0, 1e4])
@pytest.mark.parametrize("alpha", [1.5, 2.0, 1.2])
def test_small_and_large_gamma(alpha: float, gamma: float) -> None:
    case(t=16, alpha=alpha, gamma=gamma).check_forward(1e-3 if gamma < 0.01 else 1e-5)


def softcap(problem: Case) -> None:
    problem.softcap = 1.5


def slopes(problem: Case) -> None:
    problem.slopes = per_head(problem, 0.05, 0.4)


def sinks(problem: Case) -> None:
    problem.sinks = rows(problem, -1.0, 1.0)


def boolean_mask(problem: Case) -> None:
    shape = (*problem.query.shape[1:-1], problem.key.shape[2])
    problem.mask = (torch.rand(shape) < 0.7).expand(problem.query.shape[0], *shape)


def added_mask(problem: Case) -> None:
    mask = torch.randn(problem.query.shape[2], problem.key.shape[2])
    mask = torch.where(torch.rand(mask.shape) < 0.2, -torch.inf, mask)
    problem.mask = mask.expand(*problem.query.shape[:2], *mask.shape)


def dropout(problem: Case) -> None:
    problem.seed, problem.dropout = torch.tensor([2**40 + 7]), 0.3


def intervals(problem: Case) -> None:
    causal(problem, window=13)


FEATURES = [softcap, slopes, sinks, boolean_mask, added_mask, dropout, intervals]
PAIRS = [(a, b) for i, a in enumerate(FEATURES) for b in FEATURES[i:]]


@pytest.mark.parametrize(
    ("one", "other"), PAIRS, ids=[f"{a.__name__}-{b.__name__}" for a, b in PAIRS]
)
def test_features_and_their_pairs(one: Any, other: Any) -> None:
    if {one, other} == {boolean_mask, added_mask}:
        return
    problem = case(h=1, t=18, s=21, d=8, e=8)
    for add in {one, other}:
        add(problem)
    problem.check(3e-6, 2e-5)


@pytest.mark.parametrize("alpha", [1.3, 2.0])
def test_all_features_with_numbers_of_every_query(alpha: float) -> None:
    problem = case(h=4, g=2, t=5, s=21, d=24, e=40, alpha=alpha)
    for add in (softcap, slopes, sinks, added_mask, dropout, intervals):
        add(problem)
    problem.check(3e-6, 2e-5)
    problem.alpha, problem.gamma = rows(problem, alpha, alpha), rows(problem, 0.5, 2.0)
    problem.scale = rows(problem, 0.2, 0.5)
    problem.check(3e-6, 3e-5)


@pytest.mark.parametrize("dtype", HALF)
def test_half_precision(dtype: torch.dtype) -> None:
    for alpha in (1.5, 2.0, 1.33):
        problem = causal(case(h=4, g=2, t=9, s=25, d=40, e=24, dtype=dtype, alpha=alpha))
        problem.check(1e-5, 8 * HALF[dtype])


@pytest.mark.parametrize("dtype", HALF)
def test_small_weights_are_not_rounded(dtype: torch.dtype) -> None:
    problem = case(t=3, s=2000 if CUDA else 300, dtype=dtype, scale=1e-3)
    problem.value = 1 + problem.value / 8
    output = problem.check_forward(0.0)
    expected, _ = problem.truth(problem.parameters())
    worst = (output.cpu().double() / expected.detach() - 1).abs().amax()
    assert float(worst) <= (1.01 if CUDA else 2) * HALF[dtype] / 2


def test_any_strides() -> None:
    problem = case(b=2, h=2, g=2, t=17, s=19)
    problem.query = torch.randn(2, 17, 2, 16).transpose(1, 2)
    problem.key = torch.randn(2, 16, 2, 19).permute(0, 2, 3, 1)
    problem.value = torch.randn(2, 19, 2, 32).transpose(1, 2)[..., 3:19]
    problem.mask = (torch.rand(17, 1, 2, 1) < 0.8).permute(1, 2, 0, 3).expand(2, 2, 17, 19)
    problem.check(2e-6, 1e-5, needs=0)


@pytest.mark.parametrize(("t", "s"), [(1, 1), (1, 40), (40, 1), (16, 16), (17, 33)])
def test_lengths(t: int, s: int) -> None:
    case(t=t, s=s).check(2e-6, 1e-5)


def test_nothing_to_do() -> None:
    for b, t, s in ((0, 3, 4), (2, 0, 4), (2, 3, 0)):
        problem = case(b=b, t=t, s=s)
        output, tau, *_ = results = problem.run()
        assert output.shape == (b, 2, t, 16)
        assert output.eq(0).all()
        assert tau.eq(torch.inf).all()
        found = problem.run_backward(output, results, 31)
        for got, given in zip(found, (problem.query, problem.key, problem.value), strict=False):
            assert got.shape == given.shape
            assert got.eq(0).all()
        assert found[3].shape == (5, b, 2, t)


def test_packed_and_padded_sequences() -> None:
    problem = case(b=2, h=1, t=40, s=40)
    problem.starts = torch.zeros(2, 40, dtype=torch.int32)
    problem.stops = torch.full((2, 40), 23, dtype=torch.int32)
    problem.starts[1] = torch.tensor([0] * 7 + [7] * 18 + [25] * 15)
    problem.stops[1] = problem.diagonal + 1
    problem.stops[0, 30:] = problem.starts[0, 30:] = 23
    problem.check(2e-6, 1e-5)


@pytest.mark.parametrize("alpha", [1.5, 2.0, 1.33, 3.0])
def test_queries_that_see_nothing(alpha: float) -> None:
    problem = case(t=9, s=20, alpha=alpha)
    problem.mask = torch.ones(1, 2, 9, 20, dtype=torch.bool)
    problem.mask[..., 3, :] = False
    problem.stops[:, :2] = 0
    tol = 1e-5 if alpha <= 2 else 1e-3
    problem.check(5e-6, tol)
    problem.mask = torch.zeros(1, 2, 9, 20)
    problem.mask[..., 3, :] = -torch.inf
    problem.check(5e-6, tol)
    sinks(problem)
    problem.check(5e-6, tol)


@pytest.mark.parametrize("alpha", [1.5, 2.0, 1.33, 1.05, 3.0])
def test_scores_that_are_not_finite(alpha: float) -> None:
    problem = causal(case(h=1, t=20, s=20, alpha=alpha))
    problem.mask = torch.zeros(1, 1, 20, 20)
    problem.mask[:, :, 3, 2] = torch.inf
    problem.mask[:, :, 4, 1:4] = torch.inf
    problem.key[:, :, 17, 3] = torch.nan
    output = problem.check_forward(5e-6)
    assert output[:, :, 17:].isnan().all()
    assert output[:, :, :17].isfinite().all()


@pytest.mark.parametrize("alpha", [1.5, 2.0, 1.33, 1.05, 2.5, 10.0])
def test_ties(alpha: float) -> None:
    problem = case(t=4, s=60, alpha=alpha, scale=1.0)
    problem.key[..., :20, :] = problem.key[..., :1, :]
    problem.key[..., 30:50, :] = problem.key[..., 30:31, :]
    problem.query[:, :, 0] = 0  # all scores are equal
    problem.query[:, :, 1] *= 0.01
    problem.check_forward(1e-5 if alpha <= 2 else 1e-4)


@pytest.mark.parametrize("alpha", [1.5, 2.0, 1.33, 1.1])
def test_flat_and_far_rows(alpha: float) -> None:
    problem = case(t=16, s=3000 if CUDA else 200, alpha=alpha, scale=1.0)
    problem.query[:, :, :4] *= 1e-3
    problem.query[:, :, 4:8] *= 10
    problem.query[:, :, 8:12] *= 1e-6
    problem.check_forward(1e-4)


def test_dropout_does_not_depend_on_tiles() -> None:
    problem = case(t=33, s=40)
    dropout(problem)
    first, *_ = problem.run()
    problem.way = Tiles(32, 16, 4, 1)
    second, *_ = problem.run()
    torch.testing.assert_close(first, second, rtol=1e-5, atol=1e-5)


def test_gradients_of_the_rows_that_are_asked_for() -> None:
    problem = case(t=5, s=9)
    slopes(problem)
    sinks(problem)
    results = problem.run()
    grad = torch.ones_like(results[0])
    *_, everything = problem.run_backward(grad, results, 31)
    for bit in range(5):
        *_, found = problem.run_backward(grad, results, 1 << bit)
        torch.testing.assert_close(found[bit], everything[bit], rtol=0, atol=0)
    assert problem.run_backward(grad, results, 0)[3].shape == (0,)


@pytest.mark.parametrize("width", [16, 64, 128, 256])
@pytest.mark.parametrize(
    "dtype",
    [torch.float32, *(pytest.param(x, marks=[] if CUDA else pytest.mark.slow) for x in HALF)],
)
def test_the_tiles_of_every_width(width: int, dtype: torch.dtype) -> None:
    dense = CHOSEN[0] == "tiles"
    size = (500 if dense else 700) if CUDA else 40
    problem = causal(case(t=size, s=size, d=width, e=width, dtype=dtype, scale=width**-0.5))
    problem.way = None if CUDA or dense else Plan()
    problem.check(2e-5, 8 * HALF.get(dtype, 4e-6), needs=0)


@pytest.mark.parametrize("way", [LISTS, SHORT_LISTS], ids=["lists", "short lists"])
@pytest.mark.parametrize("alpha", [1.5, 2.0, 1.33])
def test_lists(alpha: float, way: Plan) -> None:
    problem = causal(case(h=4, g=2, t=40, s=150, alpha=alpha))
    for add in (slopes, sinks, dropout):
        add(problem)
    problem.way = way
    problem.check(5e-6, 2e-5)


def test_lists_in_half_precision() -> None:
    problem = causal(case(h=2, g=1, t=33, s=140, dtype=torch.bfloat16))
    problem.way = LISTS
    problem.check(1e-5, 8 * HALF[torch.bfloat16])
