"""What goes to the fused operator, and in which form."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from attention_problems import adaptive, feature, vectors
from fenchel import Entmax, Fusedmax, Softmax, Sparsemax
from fenchel.attention import _attention, _fused, attention
from fenchel.attention._pattern import pattern
from fenchel.attention._problem import Inputs, Setting
from fenchel.ops import attention as ops


class OnGpu(Tensor):
    """A tensor that says that it is on a GPU."""

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True


def problem(mapping: Any, dtype: torch.dtype = torch.float32, width: int = 3) -> Any:
    query = torch.randn(1, 1, 1, 2, width).to(dtype).as_subclass(OnGpu)
    key, value = (torch.randn(1, 1, 1, 4, width).to(dtype) for _ in range(2))
    setting = Setting(mapping, pattern(2, 4, torch.device("cpu")))
    return Inputs(query, key, value), setting


def test_what_the_operator_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "HAS_KERNEL", True)
    for mapping in (Sparsemax(), Entmax(1.5), Entmax(3.0), Entmax(torch.tensor(1.5))):
        assert _fused.is_fused(*problem(mapping))
    for mapping in (Softmax(), Fusedmax(), Entmax(1.0), Entmax(0.5)):
        assert not _fused.is_fused(*problem(mapping))
    assert _fused.is_fused(*problem(Sparsemax(), torch.bfloat16))
    assert not _fused.is_fused(*problem(Sparsemax(), torch.float64))
    assert _fused.is_fused(*problem(Sparsemax(), width=256))
    assert not _fused.is_fused(*problem(Sparsemax(), width=257))
    inputs, setting = problem(Sparsemax())
    assert not _fused.is_fused(inputs._replace(value=inputs.value.half()), setting)
    bias = torch.zeros(1, 1, 1, 2, 4)
    assert _fused.is_fused(inputs._replace(mask=bias), setting)
    learned = inputs._replace(mask=bias.requires_grad_())
    assert not _fused.is_fused(learned, setting)
    with torch.no_grad():
        assert _fused.is_fused(learned, setting)
    assert not _fused.is_fused(inputs, setting._replace(dropout=1.0))
    monkeypatch.setattr(ops, "HAS_KERNEL", False)
    assert not _fused.is_fused(inputs, setting)


def called_with(monkeypatch: pytest.MonkeyPatch, *arguments: Any, **options: Any) -> list[Any]:
    """The arguments that the operator is called with."""
    found: list[Any] = []

    def spy(*given: Any) -> Any:
        found.extend(given)
        return operator(*given)

    operator = ops.attention
    monkeypatch.setattr(_attention, "is_fused", lambda *_: True)
    monkeypatch.setattr(ops, "attention", spy)
    attention(*arguments, **options)
    return found


def test_arguments_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    query, key, value = (x.detach().float() for x in vectors())
    mask = torch.ones(2, 1, 1, 7, dtype=torch.bool)
    given = called_with(monkeypatch, query, key, value, Entmax(1.5), mask, sinks=0.5, causal=True)
    for new, old in zip(given[:3], (query, key, value), strict=True):
        assert (new.data_ptr(), new.stride()) == (old.data_ptr(), old.stride())
    starts, stops, diagonal = given[3:6]
    assert starts.tolist() == [[0] * 5]
    assert stops.tolist() == [[1, 2, 3, 4, 5]]
    assert diagonal.tolist() == [list(range(5))]
    assert all(x.dtype == torch.int32 and x.is_contiguous() for x in given[3:6])
    alpha, gamma, scale, slopes, sinks, wide = given[6:12]
    assert (alpha, gamma, scale) == (1.5, 1.0, 3**-0.5)
    assert (sinks.shape, sinks.stride(), sinks.dtype) == ((2, 4, 5), (0, 0, 0), torch.float32)
    assert (sinks == 0.5).all()
    assert slopes is None
    assert (wide.shape, wide.stride()) == ((2, 4, 5, 7), (7, 0, 0, 1))
    assert given[12:] == [None, 0.0, 0.0, False]


def test_parameters_per_head_are_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    mapping, _, (alpha, gamma) = adaptive()
    given = called_with(monkeypatch, *vectors(), mapping, **feature("alibi"))
    assert torch.equal(given[6], alpha.view(1, 4, 1).expand(2, 4, 5))
    assert torch.equal(given[7], gamma.view(2, 1, 5).expand(2, 4, 5))
    assert given[6].stride() == (0, 1, 0)
    assert torch.equal(given[8], torch.full((2, 4, 5), 3**-0.5, dtype=torch.float64))


def test_tensors_of_alpha_up_to_one_give_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_attention, "is_fused", lambda *_: True)
    alpha = torch.tensor([1.5, 1.0, 0.5, 2.0]).view(4, 1, 1)
    query, key, value = (x.detach().float() for x in vectors())
    output = attention(query, key, value, Entmax(alpha))
    assert output.isnan().flatten(2).all(-1).tolist() == [[False, True, True, False]] * 2
    assert not output[:, [0, 3]].isnan().any()
