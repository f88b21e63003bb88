"""Small factors for graphs: logic constraints, a knapsack, and a pair of bits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from .. import _checks
from ..ops.entmax import entmax
from ._base import AbstractStructure
from ._checks import check_extra_dims
from ._projection import with_derivative


class Factor(AbstractStructure):
    """A small structure for graphs, whose projection has a closed form.

    The registry does not hold it, since a graph may give it its size.
    """

    def __init_subclass__(cls) -> None:
        cls.name = cls.__name__


@dataclass(frozen=True)
class LogicFactor(Factor):
    """A constraint on d bits, with scores (d,); its structures are the bits that satisfy it.

    Args:
        d: the number of bits; in `FactorGraph.add` it is that of the index.
    """

    has_projection: ClassVar[bool] = True
    min_size: ClassVar[int] = 1

    d: int | None = None

    def __post_init__(self) -> None:
        if self.d is not None:
            _checks.check_size("d", self.d, minimum=self.min_size)

    @property
    def shape(self) -> tuple[int, ...]:
        if self.d is None:
            raise ValueError(
                f"`d` must be the number of bits, such as {self.name}(3); only "
                "`FactorGraph.add` finds it by itself."
            )
        return (self.d,)

    def resize(self, d: int) -> LogicFactor:
        """The same constraint on d bits."""
        return replace(self, d=d)

    def negated(self, d: int) -> Tensor | None:
        """Which of d bits count as their negation, (d,); None for none."""
        return None

    def best(self, scores: Tensor) -> Tensor:
        """The best structure (B, d) as booleans, where no bit is negated."""
        raise NotImplementedError

    def closest(self, scores: Tensor) -> Tensor:
        """The projection (B, d), where no bit is negated."""
        raise NotImplementedError

    def argmax(
        self, scores: Tensor, extra_scores: Tensor | None = None, lengths: Tensor | None = None
    ) -> Tensor:
        negated = self.negated(scores.shape[-1])
        finite = bounded(scores)
        found = self.best(finite if negated is None else torch.where(negated, -finite, finite))
        return (found if negated is None else found ^ negated).to(scores.dtype)

    def project(self, scores: Tensor, lengths: Tensor | None = None) -> Tensor:
        negated = self.negated(scores.shape[-1])
        y = self.closest(negate(scores, negated))
        return y if negated is None else torch.where(negated, 1 - y, y)

    @classmethod
    def examples(cls) -> Iterator[AbstractStructure]:
        yield cls(cls.min_size)
        yield cls(4)


def bounded(scores: Tensor) -> Tensor:
    """Scores (B, d) with −inf replaced by a number that outweighs all others of the row."""
    finite = torch.where(scores == -torch.inf, 0.0, scores)
    bound = 1e3 * scores.shape[-1] * (1 + finite.detach().abs().amax(-1, keepdim=True))
    return torch.where(scores == -torch.inf, -bound, scores)


def negate(scores: Tensor, negated: Tensor | None) -> Tensor:
    """The point 1 − s instead of s, where bits are negated; −inf there forces a bit."""
    return scores if negated is None else torch.where(negated, 1 - bounded(scores), scores)


def _first(scores: Tensor) -> Tensor:
    """The largest entry of each row, as booleans."""
    return one_hot(scores.argmax(-1), scores.shape[-1]).bool()


def _last(d: int) -> Tensor:
    return torch.arange(d) == d - 1


def _simplex(scores: Tensor) -> Tensor:
    return with_derivative(entmax(scores.detach(), 2.0), scores, fixed_sum=True)


@final
class Xor(LogicFactor):
    """Exactly one of the bits is on.

    >>> from fenchel import map_inference
    >>> map_inference(Xor(3), torch.tensor([-1.0, -2.0, -3.0])).indicator
    tensor([1., 0., 0.])
    """

    def best(self, scores: Tensor) -> Tensor:
        return _first(scores)

    def closest(self, scores: Tensor) -> Tensor:
        return _simplex(scores)


@final
class AtMostOne(LogicFactor):
    """No bit is on, or one.

    >>> from fenchel import map_inference
    >>> map_inference(AtMostOne(2), torch.tensor([-1.0, -2.0])).indicator
    tensor([0., 0.])
    """

    def best(self, scores: Tensor) -> Tensor:
        return _first(scores) & (scores > 0)

    def closest(self, scores: Tensor) -> Tensor:
        free = scores.clamp(0, 1)
        return torch.where(free.sum(-1, keepdim=True) > 1, _simplex(scores), free)


@final
class Or(LogicFactor):
    """One bit or more is on.

    >>> from fenchel import map_inference
    >>> map_inference(Or(2), torch.tensor([-1.0, -2.0])).indicator
    tensor([1., 0.])
    """

    def best(self, scores: Tensor) -> Tensor:
        return _first(scores) | (scores > 0)

    def closest(self, scores: Tensor) -> Tensor:
        free = scores.clamp(0, 1)
        return torch.where(free.sum(-1, keepdim=True) < 1, _simplex(scores), free)


@final
class Imply(LogicFactor):
    """If all bits before the last are on, so is the last.

    >>> from fenchel import sparsemap
    >>> sparsemap(Imply(2), torch.tensor([0.75, 0.25])).marginals
    tensor([0.5000, 0.5000])
    """

    min_size: ClassVar[int] = 2

    def negated(self, d: int) -> Tensor:
        return ~_last(d)

    best, closest = Or.best, Or.closest


@final
class XorOut(LogicFactor):
    """At most one of the bits before the last is on, and the last says whether one is.

    >>> from fenchel import map_inference
    >>> map_inference(XorOut(3), torch.tensor([2.0, 1.0, -1.0])).indicator
    tensor([1., 0., 1.])
    """

    min_size: ClassVar[int] = 2

    def negated(self, d: int) -> Tensor:
        return _last(d)

    best, closest = Xor.best, Xor.closest


@final
class OrOut(LogicFactor):
    """The last bit says whether any bit before it is on.

    >>> from fenchel import map_inference
    >>> map_inference(OrOut(3), torch.tensor([2.0, 1.0, -1.0])).indicator
    tensor([1., 1., 1.])
    """

    min_size: ClassVar[int] = 2

    def best(self, scores: Tensor) -> Tensor:
        inputs = scores[:, :-1]
        chosen = _first(inputs) | (inputs > 0)
        value = torch.where(chosen, inputs, 0.0).sum(-1, keepdim=True) + scores[:, -1:]
        return torch.cat([chosen, torch.ones_like(chosen[:, :1])], -1) & (value > 0)

    def closest(self, scores: Tensor) -> Tensor:
        bounds = _bound_by_last(scores).clamp(0, 1)
        short = bounds[:, :-1].sum(-1, keepdim=True) < bounds[:, -1:]
        return torch.where(short, XorOut().project(scores), bounds)


def _bound_by_last(scores: Tensor) -> Tensor:
    """The closest points to rows (B, d) with no entry above the last.

    The last becomes the mean t of itself and of all entries above t.
    """
    inputs, last = scores[:, :-1], scores[:, -1:]
    ordered = inputs.detach().sort(-1, descending=True).values
    sums = torch.cat([last.detach(), last.detach() + ordered.cumsum(-1)], -1)
    means = sums / torch.arange(1, scores.shape[-1] + 1, device=scores.device)
    above = inputs > means.amax(-1, keepdim=True)
    total = torch.where(above, inputs, 0.0).sum(-1, keepdim=True) + last
    top = total / (1 + above.sum(-1, keepdim=True))
    return torch.cat([torch.where(above, top, inputs), top], -1)


@final
class AndOut(LogicFactor):
    """The last bit says whether all bits before it are on.

    >>> from fenchel import map_inference
    >>> map_inference(AndOut(3), torch.tensor([2.0, -1.0, 1.5])).indicator
    tensor([1., 1., 1.])
    """

    min_size: ClassVar[int] = 2

    def negated(self, d: int) -> Tensor:
        return torch.ones(d, dtype=torch.bool)

    best, closest = OrOut.best, OrOut.closest


@final
@dataclass(frozen=True)
class Knapsack(Factor):
    """Numbers u between 0 and 1 with a total cost Σ cᵢuᵢ of at most a budget.

    This is the relaxation of a knapsack: at most one entry of a vertex is not 0 or 1.

    Args:
        costs: c, a tuple of nonnegative numbers.
        budget: a nonnegative number.

    >>> from fenchel import map_inference
    >>> map_inference(Knapsack((2.0, 1.0, 2.0), 4.0), torch.tensor([1.0, 3.0, 4.0])).indicator
    tensor([0.5000, 1.0000, 1.0000])
    """

    has_projection: ClassVar[bool] = True

    costs: tuple[float, ...]
    budget: float

    def __post_init__(self) -> None:
        if not isinstance(self.costs, tuple):
            raise TypeError(
                f"`costs` must be a tuple of numbers, got {_checks.type_name(self.costs)}."
            )
        if not self.costs:
            raise ValueError("`costs` must have at least one number, got ().")
        for cost in self.costs:
            _checks.check_number("costs", cost, minimum=0)
        _checks.check_number("budget", self.budget, minimum=0)

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.costs),)

    def argmax(
        self, scores: Tensor, extra_scores: Tensor | None = None, lengths: Tensor | None = None
    ) -> Tensor:
        costs = scores.new_tensor(self.costs).expand_as(scores)
        order = (scores / costs).argsort(-1, descending=True)  # x / 0 is infinite: first or last
        sorted_costs = torch.where(scores > 0, costs, 0.0).gather(-1, order)
        left = (self.budget - (sorted_costs.cumsum(-1) - sorted_costs)).clamp(min=0)
        share = torch.where(sorted_costs > 0, left / sorted_costs, 1.0).clamp(max=1)
        return torch.where(scores > 0, torch.zeros_like(scores).scatter(-1, order, share), 0.0)

    def project(self, scores: Tensor, lengths: Tensor | None = None) -> Tensor:
        costs = scores.new_tensor(self.costs)
        free = scores.clamp(0, 1)
        over = (free * costs).sum(-1, keepdim=True) > self.budget
        tau = self._threshold(scores.detach(), costs)
        moved = scores - tau * costs
        inside = (moved > 0) & (moved < 1) & (costs > 0)
        spent = torch.where(inside, scores, (moved >= 1).to(scores)) * costs
        excess = torch.where(costs > 0, spent, free * costs).sum(-1, keepdim=True) - self.budget
        square = torch.where(inside, costs**2, 0.0).sum(-1, keepdim=True)
        tau = torch.where(square > 0, excess / torch.where(square > 0, square, 1.0), tau)
        moved = torch.where(inside | (costs == 0), scores - tau * costs, moved.detach())
        return torch.where(over, moved.clamp(0, 1), free)

    def _threshold(self, scores: Tensor, costs: Tensor) -> Tensor:
        """A τ (B, 1) with entries clamp(s − τc, 0, 1) that cost the budget."""
        priced = torch.where(costs > 0, costs, torch.inf)
        finite = bounded(scores)
        breaks = (
            torch.cat([finite / priced, (finite - 1) / priced], -1).clamp(min=0).sort(-1).values
        )
        at_breaks = (finite.unsqueeze(1) - breaks.unsqueeze(-1) * costs).clamp(0, 1) @ costs
        high = (at_breaks > self.budget).sum(-1, keepdim=True).clamp(max=breaks.shape[-1] - 1)
        low = (high - 1).clamp(min=0)
        ends, values = (
            [x.gather(-1, places) for places in (low, high)] for x in (breaks, at_breaks)
        )
        drop = values[0] - values[1]
        share = (values[0] - self.budget) / torch.where(drop > 0, drop, 1.0)
        return ends[0] + share.clamp(0, 1) * (ends[1] - ends[0])

    @classmethod
    def examples(cls) -> Iterator[AbstractStructure]:
        yield cls((1.0,), 0.5)
        yield cls((1.0, 2.0, 0.0, 3.0), 3.5)


@final
@dataclass(frozen=True)
class Pair(Factor):
    """Two bits, with an extra score where both are on.

    The scores are (2,); the extra score is one number, the coupling. Its marginal is the
    probability that both are on.

    >>> from fenchel import map_inference
    >>> map_inference(Pair(), torch.tensor([-1.0, 0.5]), torch.tensor(2.0)).indicator
    tensor([1., 1.])
    """

    extra_names: ClassVar[tuple[str, ...]] = ("coupling",)

    @property
    def shape(self) -> tuple[int, ...]:
        return (2,)

    def argmax(
        self, scores: Tensor, extra_scores: Tensor | None = None, lengths: Tensor | None = None
    ) -> Any:
        vertices = scores.new_tensor([[0, 0], [0, 1], [1, 0], [1, 1]])
        values = torch.where(vertices == 0, 0.0, scores.unsqueeze(1) * vertices).sum(-1)
        if extra_scores is None:
            return vertices[values.argmax(-1)]
        values = values + torch.nn.functional.pad(extra_scores, (3, 0))
        indicator = vertices[values.argmax(-1)]
        return indicator, indicator.prod(-1, keepdim=True)

    def project_with_extra(self, scores: Tensor, coupling: Tensor) -> tuple[Tensor, Tensor]:
        """The marginals (B, 2) closest to the scores, for couplings (B, 1), and theirs, (B, 1)."""
        attract = coupling >= 0
        a, b = scores[:, :1], scores[:, 1:]
        finite = torch.where(scores == -torch.inf, 0.0, scores).detach()
        coupling = torch.maximum(coupling, -1 - finite.abs().sum(-1, keepdim=True))  # the same
        # φuv = φu − φu(1 − v): a pair that repels is one that attracts, with a bit negated
        a = torch.where(attract, a, a + coupling)
        b = torch.where(attract, b, 1 - bounded(b))
        both = coupling.abs()
        u = torch.where(a > b + both, a, torch.where(b > a + both, a + both, (a + b + both) / 2))
        v = torch.where(b > a + both, b, torch.where(a > b + both, b + both, (a + b + both) / 2))
        u, v = u.clamp(0, 1), v.clamp(0, 1)
        v = torch.where(attract, v, 1 - v)
        joint = torch.where(attract, torch.minimum(u, v), (u + v - 1).clamp(min=0))
        return torch.cat([u, v], -1), joint

    def merge_extra(self, scores: Tensor, extra_scores: tuple[Tensor | None, ...]) -> Tensor | None:
        return None if extra_scores[0] is None else extra_scores[0].unsqueeze(-1)

    def num_extra_dims(self, position: int, shape: torch.Size, batch: torch.Size) -> int:
        return check_extra_dims("coupling", shape, [()], batch)

    @classmethod
    def examples(cls) -> Iterator[AbstractStructure]:
        yield cls()
