"""Cached attention against dense attention in float64: its reference, and the Triton kernels."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fenchel.ops.attention import reference as dense
from fenchel.ops.cached_attention import PAGE, cached_attention, num_pages, reference

pytest.importorskip("triton", reason="Triton is not made for this platform")
from fenchel.ops.cached_attention import triton as triton_module
from fenchel.ops.cached_attention.triton import Plan
from fenchel.ops.cached_attention.triton import cached_attention as by_triton

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
SMALL = Plan(
    min_pages=1, max_seeds=2, bound_pages=16, list_pages=8, threshold_pages=2, chunk_pages=2,
    value_keys=16,
)  # fmt: skip
EVERYTHING = SMALL._replace(min_pages=10**6)
HALF = {torch.bfloat16: 2**-8 if CUDA else 2**-7, torch.float16: 2**-11}


@pytest.fixture(autouse=True)
def few_pages_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "FIRST", 1)
    monkeypatch.setattr(reference, "GROWTH", 2)
    monkeypatch.setattr(reference, "SHARE", 1)


def bounds_of(key: Tensor) -> Tensor:
    pages = key.split(PAGE, 2)
    return torch.stack([
        torch.stack([page.amin(2) for page in pages], 2),
        torch.stack([page.amax(2) for page in pages], 2),
    ])  # fmt: skip


class Case:
    """Some queries and a cache. Keys of one cluster follow each other if there are clusters."""

    alpha: Any
    gamma: Any
    scale: Any
    slopes: Any
    sinks: Any

    def __init__(
        self, b: int = 1, h: int = 2, g: int = 1, t: int = 1, s: int = 400, d: int = 8, e: int = 12,
        clusters: int = 0, dtype: torch.dtype = torch.float32, **options: Any,
    ) -> None:  # fmt: skip
        self.query, self.key = torch.randn(b, h, t, d), torch.randn(b, g, s, d)
        if clusters:
            centre = 2 * torch.randn(b, g, clusters, d)
            self.key = centre.repeat_interleave(-(-s // clusters), 2)[:, :, :s] + 0.1 * self.key
        self.value = torch.randn(b, g, s, e)
        self.starts = torch.zeros(1, t, dtype=torch.int32)
        self.stops = torch.full((1, t), s, dtype=torch.int32)
        self.diagonal = torch.arange(s - t, s, dtype=torch.int32)[None]
        self.alpha, self.gamma, self.scale = 1.5, 1.0, 0.7
        self.slopes, self.sinks, self.softcap = None, None, 0.0
        for name in ("query", "key", "value"):
            setattr(self, name, getattr(self, name).to(dtype))
        for name, value in options.items():
            setattr(self, name, value)

    def rows(self, low: float, high: float) -> Tensor:
        """One number per head."""
        shape = self.query.shape[:-1]
        return torch.linspace(low, high, shape[1])[:, None].expand(shape)

    def arguments(self, dtype: torch.dtype | None = None) -> list[Any]:
        given = [
            self.query, self.key, self.value, bounds_of(self.key), self.starts, self.stops,
            self.diagonal, self.alpha, self.gamma, self.scale, self.slopes, self.sinks,
        ]  # fmt: skip

        def cast(x: Any) -> Any:
            return x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() and dtype else x

        return [*map(cast, given), self.softcap]

    def truth(self) -> Tensor:
        *first, softcap = self.arguments(torch.float64)
        del first[3]
        return dense.attention(*first, None, None, softcap, 0.0)[0]

    def by_reference(self) -> tuple[Tensor, Tensor]:
        given: list[Any] = self.arguments(torch.float64)
        return reference.cached_attention(*given)

    def by_triton(self, plan: Plan = SMALL) -> tuple[Tensor, Tensor]:
        given: list[Any] = [x.to(DEVICE) if isinstance(x, Tensor) else x for x in self.arguments()]
        output, pages = by_triton(*given, plan=plan)
        return output.cpu(), pages.cpu()

    def check(self, tol: float = 5e-6, plan: Plan = SMALL) -> Tensor:
        """Compares both with the truth, and returns how many pages the kernels read."""
        expected = self.truth()
        output, _ = self.by_reference()
        torch.testing.assert_close(output, expected, rtol=0, atol=1e-12, equal_nan=True)
        output, pages = self.by_triton(plan)
        assert output.dtype == self.query.dtype
        rtol = HALF.get(output.dtype, 0.0)
        torch.testing.assert_close(output.double(), expected, rtol=rtol, atol=tol, equal_nan=True)
        return pages


@pytest.mark.parametrize("alpha", [1.25, 1.5, 2.0])
def test_every_alpha(alpha: float) -> None:
    Case(alpha=alpha).check()


def test_alpha_above_two() -> None:
    Case(alpha=3.0, s=200).check(5e-5)


@pytest.mark.parametrize("alpha", [1.5, 2.0])
def test_skips_clusters_and_is_exact(alpha: float) -> None:
    problem = Case(clusters=8, s=8 * PAGE, alpha=alpha, scale=2.0, d=16)
    pages = problem.check(1e-5)
    assert (pages < 8).all()
    _, read = problem.by_reference()
    assert (read < 8).all()


def test_reads_everything_where_all_is_the_same() -> None:
    problem = Case(s=300)
    problem.key = problem.key[:, :, :1].expand_as(problem.key).contiguous()
    assert problem.check().eq(num_pages(300)).all()
    problem.query = torch.zeros_like(problem.query)
    assert problem.check().eq(num_pages(300)).all()


def test_without_bounds() -> None:
    pages = Case(s=150, clusters=3).check(plan=EVERYTHING)
    assert pages.eq(3).all()


@pytest.mark.parametrize("dtype", HALF)
def test_half_precision(dtype: torch.dtype) -> None:
    pages = Case(h=4, g=2, s=330, d=20, clusters=5, dtype=dtype, scale=1.0).check(1e-5)
    assert (pages < 6).any()


def test_several_queries_with_intervals() -> None:
    problem = Case(b=2, h=4, g=2, t=3, s=200)
    problem.starts = torch.tensor([[0, 70, 130], [5, 5, 5]], dtype=torch.int32)
    problem.stops = torch.tensor([[200, 200, 200], [5, 66, 140]], dtype=torch.int32)
    pages = problem.check()
    assert (pages[1] <= 3).all()
    assert problem.by_triton()[0][1, :, 0].eq(0).all()


def softcap(problem: Case) -> None:
    problem.softcap = 1.5


def slopes(problem: Case) -> None:
    problem.slopes = problem.rows(0.05, 0.4)


def rising(problem: Case) -> None:
    problem.slopes = problem.rows(-0.1, -0.02)


def sinks(problem: Case) -> None:
    problem.sinks = problem.rows(-1.0, 3.0)


def negative(problem: Case) -> None:
    problem.scale = -0.9


def own_parameters(problem: Case) -> None:
    problem.alpha, problem.gamma = problem.rows(1.2, 2.0), problem.rows(0.5, 2.0)
    problem.scale = problem.rows(-0.5, 0.8)


@pytest.mark.parametrize("feature", [softcap, slopes, rising, sinks, negative, own_parameters])
def test_features(feature: Any) -> None:
    problem = Case(clusters=3, s=200, scale=1.5)
    feature(problem)
    problem.check(1e-5)


def test_all_features() -> None:
    problem = Case(b=2, h=4, g=2, t=2, s=150)
    for add in (own_parameters, softcap, slopes, sinks):
        add(problem)
    problem.check(1e-5)


def test_slopes_skip_what_is_far() -> None:
    problem = Case(s=6 * PAGE)
    problem.slopes = problem.rows(0.5, 0.5)
    assert (problem.check() < 6).all()


@pytest.mark.parametrize("s", [1, 63, 64, 65])
def test_lengths(s: int) -> None:
    Case(s=s).check()


def test_nothing_to_do() -> None:
    for b, t, s in ((0, 1, 4), (2, 0, 4), (2, 1, 0)):
        problem = Case(b=b, t=t, s=max(s, 1))
        problem.key, problem.value = problem.key[:, :, :s], problem.value[:, :, :s]
        given = problem.arguments() if s else [*Case(b=b, t=t, s=1).arguments()]
        given[1:3] = problem.key, problem.value
        for solve in (reference.cached_attention, by_triton):
            output, pages = solve(*given)
            assert output.shape == (b, 2, t, 12)
            assert output.eq(0).all()
            assert pages.shape == (b, 1)


def test_ties() -> None:
    problem = Case(s=260)
    problem.key = torch.randint(-1, 2, problem.key.shape).float()
    problem.query = torch.randint(-1, 2, problem.query.shape).float()
    problem.scale = 1.0
    problem.check()


def test_nan_spoils_the_rows_that_see_it() -> None:
    problem = Case(b=2, t=2, s=200, clusters=4, scale=2.0)
    problem.key[0, 0, 150, 3] = torch.nan
    problem.stops = torch.tensor([[140, 200]], dtype=torch.int32)
    problem.check()
    output, _ = problem.by_triton()
    assert output[0, :, 1].isnan().all()
    assert output[0, :, 0].isfinite().all()
    assert output[1].isfinite().all()


def test_values_without_weight_may_be_anything() -> None:
    problem = Case(clusters=4, s=4 * PAGE, scale=4.0, d=16, alpha=2.0)
    expected, _ = problem.by_triton()
    weight = torch.einsum("bhtd,bgsd->bhs", problem.query, problem.key).amax((0, 1))
    problem.value[:, :, weight.argmin()] = torch.nan
    torch.testing.assert_close(problem.by_triton()[0], expected, rtol=0, atol=0)


def mostly_weighted(**options: Any) -> Case:
    """Keys that almost all have weight, but for a page in the middle that has none, and is not
    read, and every ninth key of the last pages."""
    problem = Case(s=7 * PAGE - 3, scale=0.01, **options)
    problem.key[:, :, 2 * PAGE : 3 * PAGE] -= 1e6 * problem.query[:, :1].sign()
    problem.key[:, :, 4 * PAGE :: 9] -= 1e4 * problem.query[:, :1].sign()
    return problem


@pytest.mark.parametrize("chunk_pages", [1, 2, 4, 8])
@pytest.mark.parametrize("garbage", [0.0, 50.0, -torch.inf])
def test_values_are_read_whole_where_most_have_weight(
    chunk_pages: int, garbage: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory that the kernels do not write may hold anything."""

    def filled(*arguments: Any) -> tuple:
        buffer, floats, integers = made(*arguments)
        for part in floats:
            part.fill_(garbage)
        for part in integers:
            part.fill_(7)
        return buffer, floats, integers

    made = triton_module._buffer
    monkeypatch.setattr(triton_module, "_buffer", filled)
    pages = mostly_weighted(h=1).check(1e-5, SMALL._replace(chunk_pages=chunk_pages))
    assert pages.item() == 6


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_values_without_weight_that_are_read_may_be_anything(bad: float) -> None:
    problem = mostly_weighted(h=1)
    expected, _ = problem.by_triton()
    problem.value[:, :, 4 * PAGE + 9] = bad
    torch.testing.assert_close(problem.by_triton()[0], expected, rtol=1e-6, atol=1e-6)
    problem.value[:, :, 4 * PAGE + 10] = bad  # this one has weight
    assert not problem.by_triton()[0].isfinite().any()


@pytest.mark.parametrize("alpha", [1.3, 1.5, 2.0])
def test_flat_rows_of_many_pages(alpha: float) -> None:
    """Their thresholds start from a sample of the pages."""
    problem = Case(s=20 * PAGE, scale=0.05, alpha=alpha)
    problem.key[0, 0, 7 * PAGE] = 40 * problem.query[0, 0, 0]  # which the sample may not have
    problem.check(1e-5)
    problem.alpha = problem.rows(alpha, 1.5)
    problem.check(1e-5)


def test_many_sequences_are_taken_one_after_the_other() -> None:
    problem = Case(b=3, s=100)
    at_once, _ = problem.by_triton()
    in_parts, pages = problem.by_triton(SMALL._replace(max_scores=1))
    assert torch.equal(in_parts, at_once)
    assert pages.shape == (3, 1)


def test_strides() -> None:
    problem = Case(b=2, h=2, g=2, s=70)
    problem.query = torch.randn(2, 1, 2, 8).transpose(1, 2)
    problem.key = torch.randn(2, 90, 2, 8).transpose(1, 2)[:, :, :70]
    problem.value = torch.randn(2, 2, 90, 24)[:, :, :70, 3:15]
    problem.check()


def test_the_operator_knows_its_shapes() -> None:
    problem = Case(b=2, h=4, g=2, s=70)
    output, pages = cached_attention(*problem.arguments())
    torch.testing.assert_close(output.double(), problem.truth(), rtol=0, atol=1e-6)
    meta = [x.to("meta") if isinstance(x, Tensor) else x for x in problem.arguments()]
    for found, shape in zip(cached_attention(*meta), (output, pages), strict=True):
        assert (found.shape, found.dtype) == (shape.shape, shape.dtype)
