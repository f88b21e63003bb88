"""Every operator as PyTorch's tools see it: schemas, fake kernels, sharding, numbers and types."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode

import fenchel
from fenchel import mappings
from fenchel.ops import _native, _operator, entmax, fusedmax, ksubset, oscarmax, pnormmax

OVERLOADS = {
    "entmax": 1.5,
    "entmax_max": 1.5,
    "entmax_state": 1.5,
    "entmax_jvp": 1.5,
    "entmax_gradient": 1.5,
    "entmax_parameter_vjp": 1.5,
    "normmax": 2.0,
    "normmax_jvp": 2.0,
    "pnormmax": 1.5,
    "pnormmax_jvp": 1.5,
    "fusedmax": 0.1,
    "fusedmax_jvp": None,
    "oscarmax": 0.1,
    "oscarmax_jvp": None,
    "ksubset": 2.0,
    "ksubset_jvp": 1.5,
}


def arguments(operator: Any, rows: torch.Tensor) -> tuple:
    """Arguments for an operator on these rows, by the names in its schema."""
    batch = rows.shape[:-1]
    wide = torch.promote_types(rows.dtype, torch.float32)
    value = OVERLOADS[operator._opname]
    named: dict[str, Any] = {
        "scores": rows,
        "y": torch.softmax(rows, -1),
        "v": torch.randn_like(rows),
        "target": torch.zeros(*batch, 1, dtype=torch.int64),
        "weights": torch.ones(*batch, 1, dtype=wide),
    }
    if operator._opname == "entmax_gradient":
        named["state"] = entmax.entmax_state(rows, value)[1]

    def of(argument: Any) -> Any:
        if argument.name in named:
            return named[argument.name]
        if str(argument.type) == "Tensor":
            return torch.full((*batch, 1), value, dtype=wide)
        return 1.5 if (operator._opname, argument.name) == ("ksubset", "alpha") else value

    return tuple(of(argument) for argument in operator._schema.arguments)


def kinds_of_rows() -> dict[str, torch.Tensor]:
    return {
        "float32": torch.randn(3, 5),
        "float64": torch.randn(2, 3, 5, dtype=torch.float64),
        "bfloat16": torch.randn(3, 5).bfloat16(),
        "strided": torch.randn(5, 6).T[::2],
        "no rows": torch.randn(0, 5),
        "one row": torch.randn(5),
    }


def name_of(operator: Any) -> str:
    return str(operator).removeprefix("fenchel.")


def test_every_operator_on_rows_is_checked() -> None:
    assert {operator._opname for operator in _operator.ROWWISE} == set(OVERLOADS)


@pytest.mark.parametrize("kind", kinds_of_rows())
@pytest.mark.parametrize("operator", _operator.ROWWISE, ids=name_of)
def test_schemas_and_fake_kernels(operator: Any, kind: str) -> None:
    given = arguments(operator, kinds_of_rows()[kind])
    torch.library.opcheck(operator, given, test_utils=("test_schema", "test_faketensor"))
    real = operator(*given)
    with FakeTensorMode() as mode:
        fake = operator(*(mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in given))
    for r, f in zip(*((x if isinstance(x, tuple) else (x,)) for x in (real, fake)), strict=True):
        assert (r.shape, r.dtype, r.stride()) == (f.shape, f.dtype, f.stride())


@pytest.mark.parametrize("operator", _operator.ROWWISE, ids=name_of)
def test_batches_of_vmap_are_one_call(operator: Any) -> None:
    given = arguments(operator, torch.randn(4, 3, 5))
    dims = tuple(0 if isinstance(a, torch.Tensor) else None for a in given)
    with torch.profiler.profile(acc_events=True) as profile:
        got = torch.vmap(operator, dims)(*given)
    calls = [e for e in profile.events() if e.name == f"fenchel::{operator._opname}"]
    assert len(calls) <= 2  # the mapped one, and the one below
    torch.testing.assert_close(got, operator(*given))
    only = torch.vmap(lambda rows: operator(rows, *(a[0] if d == 0 else a for a, d in rest)))
    rest = list(zip(given[1:], dims[1:], strict=True))
    first = only(given[0])
    torch.testing.assert_close(
        first[0][0] if isinstance(first, tuple) else first[0],
        got[0][0] if isinstance(got, tuple) else got[0],
    )


def test_numbers_do_not_pile_up() -> None:
    scores = torch.randn(2, 4)
    for step in range(1000):
        fenchel.entmax(scores, alpha=1 + step / 1000)
    assert _native._number.cache_info().currsize <= 64


def test_half_precision_is_solved_in_float32_without_float64(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_operator, "widest", lambda device: torch.float32)
    scores = torch.randn(20, 30).half()
    for reference, parameter in (
        (entmax.reference.entmax, 1.3),
        (pnormmax.reference.pnormmax, 1.5),
        (fusedmax.reference.fusedmax, 0.1),
        (oscarmax.reference.oscarmax, 0.1),
        (lambda x, k: ksubset.reference.ksubset(x, k, 1.5), 2.0),
    ):
        y = _operator._in_widest(reference, _operator.like)(scores, parameter)
        assert y.dtype == torch.float16
        truth = reference(scores.double(), parameter)
        assert (y.double() - truth).abs().max() <= torch.finfo(torch.float16).eps


def test_references_order_their_results_as_fake_kernels_say() -> None:
    scores = torch.randn(5, 6).T[::2]
    for reference in (entmax.reference.entmax, pnormmax.reference.normmax):
        assert _operator._in_widest(reference, _operator.like)(scores, 1.5).is_contiguous()


def test_the_widest_type_of_a_device() -> None:
    assert _operator.widest(torch.device("mps")) == torch.float32
    assert _operator.widest(torch.device("cpu")) == torch.float64


def test_fake_tensors_go_through_losses_and_tensor_parameters() -> None:
    with FakeTensorMode():
        scores = torch.randn(3, 5, requires_grad=True)
        alpha = 1 + torch.rand(3, 1)
        target = torch.randint(5, (3,))
        assert fenchel.entmax(scores, alpha=alpha).shape == (3, 5)
        for mapping in (fenchel.Entmax(1.3), fenchel.Entmax(alpha), fenchel.Normmax()):
            mapping.loss(scores, target).backward()
            assert scores.grad is not None
            assert scores.grad.shape == (3, 5)


@pytest.fixture
def mesh():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield init_device_mesh("cpu", (2,))
    dist.destroy_process_group()


NO_SORT = pytest.mark.xfail(
    torch.__version__.startswith("2.8."),
    reason="DTensor of PyTorch 2.8 does not sort",
    raises=NotImplementedError,
    strict=True,
)
SORTED = ("fusedmax", "ksubset", "oscarmax")
"""Mappings whose values need sorted rows."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=NO_SORT) if name in SORTED else name
        for name in mappings.names()
        if name != "general"
    ],
)
def test_batches_are_sharded_as_they_come(name: str, mesh: Any) -> None:
    from torch.distributed.tensor import DTensor, Replicate, Shard

    mapping = mappings.get(name)
    for placement in (Shard(0), Shard(1), Replicate()):
        local = torch.randn(2, 3, 5)
        scores = DTensor.from_local(local, mesh, [placement], run_check=False).requires_grad_()
        y = mapping(scores)
        assert y.placements == (placement,)
        torch.testing.assert_close(y.to_local(), mapping(local))
        value = mapping.max(scores)
        assert value.placements == (placement,)
        torch.testing.assert_close(value.to_local(), mapping.max(local))
        (y.sum() + value.sum()).backward()
        assert scores.grad is not None
        if mapping.total == 1.0:
            target = torch.randint(5, (2, 3))
            classes = DTensor.from_local(target, mesh, [placement], run_check=False)
            losses = mapping.loss(scores, classes, reduction="none")
            torch.testing.assert_close(
                losses.to_local(), mapping.loss(local, target, reduction="none")
            )
    whole = DTensor.from_local(torch.randn(4, 3), mesh, [Shard(1)], run_check=False)
    assert mapping(whole).placements == (Replicate(),)
