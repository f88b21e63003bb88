"""The benchmark of decoding compares with the exact answer, and judges its targets."""

from __future__ import annotations

import pytest
import torch
from benchmarks.cases import gpu_decoding
from benchmarks.timing import Timing

from benchmarks import _gpu
from fenchel import Entmax
from fenchel.attention import attention


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(gpu_decoding, "HEADS", 4)
    monkeypatch.setattr(gpu_decoding, "KEY_HEADS", 2)
    monkeypatch.setattr(gpu_decoding, "SIZE", 16)
    monkeypatch.setattr(gpu_decoding, "CLUSTER", 64)
    torch.manual_seed(0)


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
@pytest.mark.parametrize("pattern", gpu_decoding.PATTERNS)
@pytest.mark.usefixtures("small")
def test_exact(pattern, alpha):
    query, cache = gpu_decoding.PATTERNS[pattern](2, 300, "cpu")
    assert query.shape == (2, 4, 1, 16)
    assert cache.key.shape == cache.value.shape == (2, 2, 300, 16)
    given = (query.double(), cache.key.double(), cache.value.double())
    expected = attention(*given, Entmax(alpha))
    for i in range(2):
        found = gpu_decoding.exact(alpha, query[i, :, 0], cache.key[i], cache.value[i])
        torch.testing.assert_close(found, expected[i, :, 0], rtol=1e-7, atol=1e-9)


@pytest.mark.usefixtures("small")
def test_rows_state_pages_and_targets(monkeypatch):
    def race(contenders, fresh, rounds):
        inputs = fresh()
        errors = [one.check(*inputs) for one in contenders if one.library == "fenchel"]
        times = [Timing(x, x, x) for x in (1.0, 1.5, 1.05, 1.2)]
        return [_gpu.Result(time, errors[0]) for time in times]

    made = {name: lambda b, s, _, f=f: f(b, s, "cpu") for name, f in gpu_decoding.PATTERNS.items()}
    monkeypatch.setattr(gpu_decoding, "PATTERNS", made)
    monkeypatch.setattr(_gpu, "race", race)
    nothing = _gpu.Result(note="none")
    monkeypatch.setattr(_gpu, "host_race", lambda contenders, inputs: [nothing] * len(contenders))
    found = gpu_decoding._race(1, 256, "normal", 1)
    ours = {row["mapping"]: row for row in found if row["clock"] == "gpu"}
    assert ours["entmax 1.5"]["pages"] == "4 of 4"
    assert ours["entmax 1.5"]["met"] is True
    assert ours["entmax 2"]["met"] is False
    assert ours["softmax, cuDNN"]["met"] is None
    assert 0 < ours["entmax 1.5"]["error"] < gpu_decoding.TOLERANCE
    late = {row["mapping"]: row for row in found if row["clock"] == "host"}
    assert late["entmax 1.5"]["met"] is False
