"""What all tests share: every mapping, rows of every kind, and memory that shows if it is unset."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import interpreter

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before any kernel is imported

from fenchel import mappings, structures
from fenchel.ops import _triton

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as a shell starts what is in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)  # or commands under test ignore it too

if "PYTEST_XDIST_WORKER" in os.environ:  # the workers share the cores
    torch.set_num_threads(1)

if not torch.cuda.is_available():  # where some sums of PyTorch's have no deterministic kernel
    torch.use_deterministic_algorithms(True)  # fills torch.empty with NaN


def identify(example: mappings.AbstractMapping | structures.AbstractStructure) -> str:
    """A short name for an example in the list of tests."""
    options = {
        field: value
        for field, value in vars(example).items()
        if isinstance(value, float | int)
        and not field.startswith("_")
        and (field, value) != ("gamma", 1.0)
    }
    return "-".join([example.name, *(f"{key}{value:g}" for key, value in options.items())])


def seeds(quick: int, total: int) -> list[Any]:
    """Seeds of a random test: a few for every run, and more for `make test-all`."""
    more = [pytest.param(seed, marks=pytest.mark.slow) for seed in range(quick, total)]
    return [*range(quick), *more]


EXAMPLES = {identify(mapping): mapping for mapping in mappings.examples()}


def _marks(mapping: mappings.AbstractMapping) -> list[pytest.MarkDecorator]:
    """`General` iterates, so the second of its examples is left to `make test-all`."""
    return [pytest.mark.slow] if mapping.name == "general" and mapping.gamma != 1 else []


@pytest.fixture(params=[pytest.param(x, id=name, marks=_marks(x)) for name, x in EXAMPLES.items()])
def mapping(request: pytest.FixtureRequest) -> mappings.AbstractMapping:
    return request.param


@pytest.fixture(autouse=True)
def _fast_interpreter(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if os.environ.get("TRITON_INTERPRET") == "1" and _triton.AVAILABLE:
        interpreter.speed_up(monkeypatch)
    with np.errstate(all="ignore"):  # a GPU does not warn of infinities either
        yield


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def total(mapping: mappings.AbstractMapping) -> float:
    """What a solution of the mapping sums to."""
    return mapping.total if mapping.total is not None else float(mapping.k)  # type: ignore[attr-defined]


def tolerance(mapping: mappings.AbstractMapping, dtype: torch.dtype) -> float:
    """How far a solution may be from the truth: the solver's own tolerance, or a few roundings."""
    solver = 1e-9 if mapping.name == "general" else 0.0
    return solver + 4 * torch.finfo(dtype).eps


def assert_compiles(mapping: mappings.AbstractMapping, device: str) -> None:
    """The mapping and its value compile without a graph break, to the same gradients."""
    torch._dynamo.reset()
    scores, weights = torch.randn(2, 4, 9, device=device)

    def step(x: torch.Tensor) -> torch.Tensor:
        return (mapping(x) * weights).sum() + mapping.max(x).sum()

    eager, compiled = scores.clone().requires_grad_(), scores.clone().requires_grad_()
    step(eager).backward()
    torch.compile(step, fullgraph=True, backend="aot_eager")(compiled).backward()
    torch.testing.assert_close(compiled.grad, eager.grad)
