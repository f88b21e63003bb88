"""Problems of the fused attention kernels, and dense attention in float64 to compare with."""

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
from fenchel.ops.attention.triton_plan import Bucket, Program

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
SMALL = Tiles(16, 16, 4, 1)
TINY = Program(16, 4)
LISTS = Plan(
    cap=128, pairs=64, bytes=2**12, bound=Program(32, 4), mark=Program(32, 4),
    rows=(Bucket(TINY, 2), Bucket(TINY, 8, 4)), back=TINY, keys=TINY, words=16,
)  # fmt: skip
SHORT_LISTS = LISTS._replace(cap=24, pairs=1)
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


def param(way: str) -> Any:
    """A way to test; in the interpreter lists take long."""
    return pytest.param(way, marks=[] if CUDA or way == "tiles" else pytest.mark.slow)


@pytest.fixture(params=[param(name) for name in WAYS])
def way(request: pytest.FixtureRequest) -> str:
    """The way that problems are solved in, chosen for all of a test."""
    CHOSEN[0] = request.param
    return request.param


@pytest.fixture
def tiles() -> None:
    CHOSEN[0] = "tiles"


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
