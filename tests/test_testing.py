"""Every registered mapping and structure keeps its contract, and every promise can be broken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import fenchel
from conftest import identify
from fenchel import mappings, structures, testing
from fenchel.structures._custom import EXAMPLE
from fenchel.testing import _mapping, _structure


def test_every_mapping_keeps_its_contract(mapping: mappings.AbstractMapping) -> None:
    testing.check_mapping(mapping, deletes=mapping.name != "general")


@pytest.mark.parametrize("structure", structures.examples(), ids=identify)
def test_every_structure_keeps_its_contract(structure: structures.AbstractStructure) -> None:
    if structure.name == "custom":
        testing.check_structure(structure, torch.tensor(EXAMPLE), forbids=False)
    else:
        testing.check_structure(structure)


@dataclass(frozen=True, eq=False)
class Plain(mappings.AbstractMapping):
    """Softmax, which the mappings below change in one way each."""

    def solve(self, scores: Tensor) -> Tensor:
        return fenchel.softmax(scores)

    def jvp(self, y: Tensor, v: Tensor) -> Tensor:
        return y * (v - (y * v).sum(-1, keepdim=True))

    def omega(self, y: Tensor) -> Tensor:
        return torch.xlogy(y, y).sum(-1)

    @classmethod
    def examples(cls) -> Iterator[mappings.AbstractMapping]:
        yield cls()


Plain.name = "plain"  # after its class is made, so that it is not registered


def _solve(change: Callable[[Tensor], Tensor]) -> dict[str, Any]:
    return {"solve": lambda self, scores: change(scores)}


def _overwrite(scores: Tensor) -> Tensor:
    y = fenchel.softmax(scores)
    scores.sub_(1.0)
    return y


def _sharper_with_masks(scores: Tensor) -> Tensor:
    masked = (scores == -torch.inf).any(-1, keepdim=True)
    return fenchel.softmax(torch.where(masked, 2 * scores, scores))


def _no_empty_batch(scores: Tensor) -> Tensor:
    if not scores.numel():
        raise IndexError("no rows")
    return fenchel.softmax(scores)


BROKEN_MAPPINGS: dict[Callable, dict[str, Any]] = {
    _mapping._inputs_stay: _solve(_overwrite),
    _mapping._repeats: _solve(lambda scores: fenchel.softmax(scores + torch.rand(()))),
    _mapping._keeps_type: {
        "__call__": lambda self, scores, dim=-1: fenchel.softmax(scores, dim).double()
    },
    _mapping._feasible: _solve(lambda scores: 1.1 * fenchel.softmax(scores)),
    _mapping._optimal: _solve(lambda scores: fenchel.softmax(2 * scores)),
    _mapping._value: {"max": lambda self, scores, dim=-1: 0.1 + scores.logsumexp(dim)},
    _mapping._loss: {"vertex_omega": lambda self, target, scores: 0.5},
    _mapping._first_derivatives: {"jvp": lambda self, y, v: 2 * Plain.jvp(self, y, v)},
    _mapping._second_derivatives: {"jvp": lambda self, y, v: Plain.jvp(self, y.detach(), v)},
    _mapping._forbids: _solve(lambda scores: fenchel.softmax(scores.clamp(min=-20))),
    _mapping._deletes: _solve(_sharper_with_masks),
    _mapping._empty_rows: _solve(lambda scores: scores.softmax(-1)),
    _mapping._nan_stays: _solve(
        lambda scores: fenchel.softmax(torch.where(scores.isnan(), 0.0, scores))
    ),
    _mapping._plus_infinity: _solve(
        lambda scores: torch.where(scores == torch.inf, 1.0, fenchel.softmax(scores))
    ),
    _mapping._any_layout: {"__call__": lambda self, scores, dim=-1: Plain.__call__(self, scores)},
    _mapping._empty_batch: _solve(_no_empty_batch),
}


def test_the_mapping_that_is_changed_is_right() -> None:
    testing.check_mapping(Plain())


def message(promise: Callable) -> str:
    return " ".join(str(promise.__doc__).split())


@pytest.mark.parametrize("promise", _mapping.PROMISES)
def test_each_promise_of_a_mapping_can_be_broken(promise: Callable) -> None:
    broken = type("Broken", (Plain,), BROKEN_MAPPINGS[promise])()
    with pytest.raises(AssertionError) as caught:
        testing.check_mapping(broken)
    assert f"breaks this promise: “{message(promise)}”" in str(caught.value)
    assert "scores [" in str(caught.value)


class Runs(structures.AbstractStructure):
    """One run of ones among four entries, which the structures below change in one way each."""

    shape = (4,)
    members = torch.tensor(
        [[float(i <= k <= j) for k in range(4)] for i in range(4) for j in range(i, 4)]
    ).double()

    def scores(self, scores: Tensor) -> Tensor:
        members = self.members.to(scores)
        return torch.where(members == 0, 0.0, scores.unsqueeze(1) * members).sum(-1)

    def argmax(self, scores: Tensor) -> Tensor:  # type: ignore[override]
        return self.members.to(scores)[self.scores(scores).argmax(1)]

    def log_partition(self, scores: Tensor) -> Tensor:  # type: ignore[override]
        return self.scores(scores).logsumexp(1)

    @classmethod
    def examples(cls) -> Iterator[structures.AbstractStructure]:
        yield cls()


Runs.name = "runs"  # after its class is made, so that it is not registered


def _argmax(change: Callable[[Runs, Tensor], Tensor]) -> dict[str, Any]:
    return {"argmax": change}


def _then_zero(self: Runs, scores: Tensor) -> Tensor:
    found = Runs.argmax(self, scores)
    scores.zero_()
    return found


def _first_if(condition: Callable[[Tensor], bool]) -> dict[str, Any]:
    """The first member for all, under a condition."""

    def argmax(self: Runs, scores: Tensor) -> Tensor:
        first = self.members[:1].to(scores).expand_as(scores)
        return first if condition(scores) else Runs.argmax(self, scores)

    return {"argmax": argmax}


def _higher(self: Runs, problem: Any) -> structures.Vertices:
    found = structures.AbstractStructure.best_vertices(self, problem)
    return found._replace(value=found.value + 1)


BROKEN_STRUCTURES: dict[Callable, tuple[type, dict[str, Any]]] = {
    _structure._inputs_stay: (Runs, _argmax(_then_zero)),
    _structure._best: (Runs, _argmax(lambda self, scores: Runs.argmax(self, -scores))),
    _structure._value: (Runs, {"best_vertices": _higher}),
    _structure._keeps_type: (Runs, _first_if(lambda scores: scores.dtype != torch.float64)),
    _structure._any_layout: (Runs, _first_if(lambda scores: len(scores) == 1)),
    _structure._empty_batch: (Runs, _argmax(lambda self, s: Runs.argmax(self, s) + 0 * s[0])),
    _structure._forbids: (Runs, _first_if(lambda scores: bool((scores == -torch.inf).any()))),
    _structure._nan_stays: (Runs, _first_if(lambda scores: bool(scores.isnan().any()))),
    _structure._lengths: (
        fenchel.Bits,
        {
            "map_operator": lambda self: (
                lambda scores, extra, lengths, option: fenchel.Bits(self.d).map_operator()(
                    scores, extra, None, option
                )
            )
        },
    ),
    _structure._log_partition: (
        Runs,
        {"log_partition": lambda self, scores: 0.1 + Runs.log_partition(self, scores)},
    ),
    _structure._marginals: (
        Runs,
        {"marginals": lambda self, scores: (scores.sigmoid(), None)},
    ),
    _structure._derivatives: (
        Runs,
        {"marginals": lambda self, scores: (Runs.marginals(self, scores)[0].detach(), None)},
    ),
    _structure._sparsemap: (
        fenchel.Bits,
        {"project": lambda self, scores, lengths=None: scores.clamp(0, 0.9)},
    ),
    _structure._project: (
        Runs,
        {"has_projection": True, "project": lambda self, scores, lengths=None: scores},
    ),
}


def test_the_structure_that_is_changed_is_right() -> None:
    testing.check_structure(Runs(), Runs.members)


@pytest.mark.parametrize("promise", _structure.PROMISES)
def test_each_promise_of_a_structure_can_be_broken(promise: Callable) -> None:
    base, changes = BROKEN_STRUCTURES[promise]
    broken = type("Broken", (base,), changes)
    given = (broken(), Runs.members) if base is Runs else (broken(4),)
    with pytest.raises(AssertionError) as caught:
        testing.check_structure(*given)
    assert f"breaks this promise: “{message(promise)}”" in str(caught.value)
    assert "scores [" in str(caught.value)


def test_a_structure_that_lies_about_its_members() -> None:
    with pytest.raises(AssertionError, match="The best structure is a member, and no member has"):
        testing.check_structure(Runs(), Runs.members[1:])


def test_members_are_needed_where_there_are_no_codes() -> None:
    with pytest.raises(TypeError, match="which have codes; for another give its `members`"):
        testing.check_structure(Runs())


def test_checks_repeat_and_leave_the_random_state_alone() -> None:
    before = torch.get_rng_state()
    messages = []
    for _ in range(2):
        with pytest.raises(AssertionError) as caught:
            testing.check_structure(Runs(), Runs.members[1:])
        messages.append(str(caught.value).split("promise", 1)[1])
    assert messages[0] == messages[1]
    assert torch.get_rng_state().equal(before)


def test_mappings_by_name() -> None:
    testing.check_mapping("sparsemax")
    with pytest.raises(TypeError, match="`mapping` must be a mapping"):
        testing.check_mapping(torch.softmax)  # type: ignore[arg-type]
