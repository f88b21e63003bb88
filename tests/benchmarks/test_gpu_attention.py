"""The benchmark of attention compares with the exact answer, and judges its targets."""

from __future__ import annotations

import sys

import pytest
import torch
from benchmarks.cases import gpu_attention, gpu_vectors
from benchmarks.cases.gpu_attention_problems import (
    ADASPLASH_2,
    BOTH,
    CUDNN,
    DENSE,
    FENCHEL,
    FORWARD,
    OTHER_ALPHAS,
    PROBLEMS,
    Problem,
)
from benchmarks.cases.gpu_vectors import Vectors
from benchmarks.timing import Timing

from benchmarks import _gpu, plot_gpu, processes
from fenchel import Entmax
from fenchel.attention import attention

SMALL = (1, 2, 32, 8)


def small(**options):
    return Problem(SMALL, **options)


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
@pytest.mark.parametrize("causal", [False, True])
def test_exact(monkeypatch, alpha, causal):
    monkeypatch.setattr(gpu_vectors, "MAX_SCORES", 100)  # three rows at a time
    torch.manual_seed(0)
    vectors = Vectors(*(torch.randn(32, 8, dtype=torch.float64) for _ in range(4)))
    inputs = [x.clone().requires_grad_() for x in vectors[:3]]
    output = attention(*inputs, Entmax(alpha), causal=causal)
    expected = output, *torch.autograd.grad(output, inputs, vectors.cotangent)
    found = gpu_vectors.exact(alpha, causal, vectors, torch.arange(32))
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs.detach(), atol=1e-9, rtol=1e-7)


def test_exact_at_some_places(monkeypatch):
    monkeypatch.setattr(gpu_vectors, "CHECKED", 5)
    torch.manual_seed(0)
    places = gpu_vectors.checked(32, "cpu")
    assert len(places) == 5
    assert places[0] == 0
    assert places[-1] == 31
    vectors = Vectors(*(torch.randn(32, 8, dtype=torch.float64) for _ in range(4)))
    some = gpu_vectors.at(vectors, places)
    inputs = [x.clone().requires_grad_() for x in some[:3]]
    output = attention(*inputs, Entmax(1.5), causal=True)
    query, key, value = torch.autograd.grad(output, inputs, some.cotangent)
    found = gpu_vectors.exact(1.5, True, vectors, places)
    for ours, theirs in zip(found, (output[places], query[places], key, value), strict=True):
        torch.testing.assert_close(ours, theirs.detach(), atol=1e-9, rtol=1e-7)


def test_local_queries_see_what_is_near_and_the_first_key():
    torch.manual_seed(0)
    vectors = gpu_vectors.local((1, 1, 400, 64), "cpu")
    _, weights = attention(*vectors[:3], Entmax(1.5), causal=True, weights=True)
    places = torch.arange(400)
    near = (places[:, None] - places).abs() < gpu_vectors.REACH
    far = weights[0, 0].masked_fill(near, 0)[:, 1:].sum(-1)
    assert far.mean() < 0.02
    assert weights[0, 0, 100:, 0].mean() > 0.05
    assert 3 < (weights > 0).sum(-1).double().mean() < 40


def race_on_cpu(seconds, peak=1.0):
    """In the place of the race: fenchel's answers are checked, and times are as given."""

    def race(contenders, fresh, rounds, wait_cycles):
        inputs = fresh(device="cpu")
        found = []
        for one in contenders:
            given = seconds.get((one.library, one.mapping))
            if given is None:
                found.append(_gpu.Result(note="not installed"))
            else:
                error = one.check(*inputs) if one.library == "fenchel" else None
                found.append(_gpu.Result(Timing(given, given, given), error, peak))
        return found

    return race


def key_of(entry):
    return entry.library, entry.mapping


@pytest.fixture
def rows_of(monkeypatch):
    """The rows of a problem by contender, for given seconds."""

    def rows(problem, seconds, pass_=BOTH, peak=1.0):
        torch.manual_seed(0)
        given = {key_of(entry): value for entry, value in seconds.items()}
        monkeypatch.setattr(_gpu, "race", race_on_cpu(given, peak))
        found = gpu_attention._race(problem, pass_, 1, torch.inf)
        return {(row["library"], row["mapping"]): row for row in found}

    return rows


@pytest.mark.parametrize("pass_", [FORWARD, BOTH])
@pytest.mark.parametrize("queries", ["normal", "normal × 0.1", "normal × 4", "local, first key"])
def test_a_row_states_its_target(rows_of, pass_, queries):
    problem = small(queries=queries, targets={BOTH: 2.0})
    found = rows_of(problem, {CUDNN: 1.0, FENCHEL: 1.9, DENSE: 3.0}, pass_)
    ours = found[key_of(FENCHEL)]
    assert ours["ratio"] == 1.9
    assert ours["target"] == (2.0 if pass_ == BOTH else None)
    assert ours["met"] is (True if pass_ == BOTH else None)
    assert 0 < ours["error"] < gpu_attention.TOLERANCE
    assert found[key_of(ADASPLASH_2)]["note"] == "not installed"
    assert found[key_of(CUDNN)]["met"] is None


def test_targets_that_are_missed(rows_of):
    both = {CUDNN: 1.0, FENCHEL: 1.0, ADASPLASH_2: 0.9}
    assert rows_of(small(targets={BOTH: 0.9}), both)[key_of(FENCHEL)]["met"] is False
    slower = rows_of(small(beats_adasplash=True), both)[key_of(FENCHEL)]
    assert slower["met"] is False
    assert slower["to adasplash 2"] == pytest.approx(1 / 0.9)
    alone = {CUDNN: 1.0, FENCHEL: 1.0}
    assert rows_of(small(beats_adasplash=True), alone)[key_of(FENCHEL)]["met"] is None
    heavy = rows_of(small(max_workspace_mib=1024.0), alone, peak=2000.0)
    assert heavy[key_of(FENCHEL)]["met"] is False
    failed = rows_of(small(targets={BOTH: 2.0}), {CUDNN: 1.0})[key_of(FENCHEL)]
    assert failed["met"] is False
    assert failed["note"]
    assert rows_of(small(targets={BOTH: 2.0}), {FENCHEL: 1.0})[key_of(FENCHEL)]["met"] is None


def test_other_alphas_are_compared_with_one_and_a_half(rows_of):
    problem = Problem((1, 16, 16, 8), others=OTHER_ALPHAS)
    times = {CUDNN: 1.0, FENCHEL: 2.0} | {
        entry: 2.5 for entry in OTHER_ALPHAS if entry.library == "fenchel"
    }
    found = rows_of(problem, times)
    assert found["fenchel", "entmax 2"]["to α = 1.5"] == 1.25
    assert found["fenchel", "entmax 1.25 to 2 by head"]["met"] is True
    assert found[key_of(FENCHEL)]["met"] is None


def test_every_problem_has_commands_to_compile_it(monkeypatch):
    given = []
    monkeypatch.setattr(processes, "run_all", lambda commands, seconds: given.extend(commands))
    gpu_attention._compile()
    assert len({tuple(command) for command in given}) == len(given) > len(PROBLEMS)


def test_a_process_reports_a_number_or_why_there_is_none():
    assert processes.measure([sys.executable, "-c", "print(1.5)"]) == 1.5
    cache = "import os; print(len(os.listdir(os.environ['TRITON_CACHE_DIR'])))"
    assert processes.measure([sys.executable, "-c", cache], empty_cache=True) == 0
    failed = processes.measure([sys.executable, "-c", "raise ValueError('no')"])
    assert failed == "fails: ValueError: no"


def test_the_picture_has_the_causal_rows(rows_of, monkeypatch):
    rows = []
    for pass_ in (FORWARD, BOTH):
        problem = Problem((1, 2, 32, plot_gpu.ATTENTION_SIZE))
        rows += rows_of(problem, {CUDNN: 1.0, FENCHEL: 2.0}, pass_).values()
    machine = {"gpu": "a GPU", "torch": "2", "case": "gpu_attention"}
    drawn = plot_gpu.attention([{**machine, **row} for row in rows])
    left, right = drawn.axes
    for axes in (left, right):
        lines = {line.get_label(): line for line in axes.lines}
        assert list(lines["fenchel entmax 1.5"].get_xdata()) == [32]
        assert list(lines["fenchel entmax 1.5"].get_ydata()) == [1000.0]
