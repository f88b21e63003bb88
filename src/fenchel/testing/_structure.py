"""The contract of a structure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import gradcheck

from ..structures import AbstractStructure
from ..structures._coded import CodedStructure
from ..structures._inference import log_partition, map_inference, marginals
from ..structures._sparsemap import sparsemap
from ._enumeration import enumerate_codes, enumerate_members
from ._promises import check_promises, rows_agree


@dataclass(frozen=True)
class Listed:
    """A structure and the list of its members, (K, *shape)."""

    structure: AbstractStructure
    members: Tensor

    def __repr__(self) -> str:
        return repr(self.structure)

    def scores(self, scores: Tensor) -> Tensor:
        """The score of every member, (B, K)."""
        parts = scores.flatten(1).unsqueeze(1)
        members = self.members.flatten(1)
        return torch.where(members == 0, 0.0, parts * members).sum(-1)

    def contains(self, indicator: Tensor) -> Tensor:
        """Which indicators (B, *shape) are members, (B)."""
        same = indicator.flatten(1).double().unsqueeze(1) == self.members.flatten(1)
        return same.all(-1).any(1)


def check_structure(
    structure: AbstractStructure, members: Tensor | None = None, *, forbids: bool = True
) -> None:
    """Checks that a structure keeps its contract, against a list of all its members.

    MAP inference and SparseMAP are checked for every structure, the log-partition, marginals, a
    projection and lengths for those that have them.

    Args:
        structure: a small one; the members must fit in memory.
        members: the indicators (K, *structure.shape) of all of them; not needed for the library's
            own.
        forbids: whether −inf forbids a part. The oracle of a `Custom` may not know −inf.
    Raises:
        AssertionError: for the first promise that is broken; the message has the scores.
        TypeError: if `members` is needed and not given.

    It takes a second, and every run checks the same scores.

    >>> from fenchel import Custom, Sequence
    >>> check_structure(Sequence(3, 2))
    >>> halves = torch.tensor([[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0]])
    >>> def best_half(scores):
    ...     return halves.to(scores)[(scores @ halves.to(scores).T).argmax(-1)]
    >>> check_structure(Custom((4,), best_half, batched=True), halves, forbids=False)
    """
    members = enumerate_members(structure) if members is None else members.double()
    promises = PROMISES if forbids else [p for p in PROMISES if p is not _forbids]
    check_promises(Listed(structure, members), promises, structure.shape)


def _inputs_stay(listed: Listed, scores: Tensor) -> Tensor:
    """It does not change its input."""
    before = scores.clone()
    listed.structure.argmax(scores)
    map_inference(listed.structure, scores)
    return rows_agree(scores, before, 0.0, 0.0)


def _best(listed: Listed, scores: Tensor) -> Tensor:
    """The best structure is a member, and no member has a larger score."""
    kept = torch.ones(len(scores), dtype=torch.bool)
    for given in (scores, scores.round()):
        best = map_inference(listed.structure, given)
        top, own = listed.scores(given).amax(1), (given * best.indicator).flatten(1).sum(1)
        kept = kept & listed.contains(best.indicator) & rows_agree(own, top)
    return kept


def _value(listed: Listed, scores: Tensor) -> Tensor:
    """The value is the score of the best structure, and its gradient is the indicator."""
    x = scores.requires_grad_()
    best = map_inference(listed.structure, x)
    (gradient,) = torch.autograd.grad(best.value.sum(), x)
    own = (scores.detach() * best.indicator).flatten(1).sum(1)
    return rows_agree(gradient, best.indicator) & rows_agree(best.value.detach(), own)


def _keeps_type(listed: Listed, scores: Tensor) -> Tensor:
    """Results have the type of the scores, and that type's precision."""
    kept = torch.ones(len(scores), dtype=torch.bool)
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        best = map_inference(listed.structure, scores.to(dtype))
        exact = listed.scores(scores.to(dtype).double()).amax(1)
        eps = torch.finfo(dtype).eps
        kept = kept & rows_agree(best.value, exact, 4 * eps, 4 * eps)
        kept = kept & (best.indicator.dtype == best.value.dtype == dtype)
    return kept


def _any_layout(listed: Listed, scores: Tensor) -> Tensor:
    """Any strides and any batch dimensions give the same structures."""
    best = map_inference(listed.structure, scores)
    strided = scores.movedim(0, -1).contiguous().movedim(-1, 0)
    kept = rows_agree(map_inference(listed.structure, strided).indicator, best.indicator)
    halves = map_inference(listed.structure, scores.unflatten(0, (2, 2))).indicator
    kept = kept & rows_agree(halves.flatten(0, 1), best.indicator)
    alone = torch.stack([map_inference(listed.structure, one).indicator for one in scores])
    return kept & rows_agree(alone, best.indicator)


def _empty_batch(listed: Listed, scores: Tensor) -> bool:
    """An empty batch gives an empty result."""
    best = map_inference(listed.structure, scores[:0])
    found = sparsemap(listed.structure, scores[:0])
    return best.indicator.shape == found.marginals.shape == scores[:0].shape


def _forbids(listed: Listed, scores: Tensor) -> Tensor:
    """The best structure has no part of score −inf; if every structure has one, the value is
    −inf."""
    kept = torch.ones(len(scores), dtype=torch.bool)
    for share in (0.3, 2.0):
        given = scores.masked_fill(torch.rand(scores.shape) < share, -torch.inf)
        best, top = map_inference(listed.structure, given), listed.scores(given).amax(1)
        kept = kept & rows_agree(best.value, top)
        kept = kept & (listed.contains(best.indicator) | (top == -torch.inf))
    return kept


def _nan_stays(listed: Listed, scores: Tensor) -> Tensor:
    """NaN in one instance leaves the others alone."""
    expected = map_inference(listed.structure, scores).indicator
    scores[1].view(-1)[0] = torch.nan
    kept = rows_agree(map_inference(listed.structure, scores).indicator, expected)
    kept[1] = True
    return kept


def _log_partition(listed: Listed, scores: Tensor) -> Tensor | bool:
    """The log-partition is log Σ exp over the scores of all members."""
    if not _is_tractable(listed, scores):
        return True
    found = log_partition(listed.structure, scores)
    return rows_agree(found, listed.scores(scores).logsumexp(1))


def _marginals(listed: Listed, scores: Tensor) -> Tensor | bool:
    """The marginals are the means of the members, weighted by softmax of their scores."""
    if not _is_tractable(listed, scores):
        return True
    weights = listed.scores(scores).softmax(1)
    expected = (weights @ listed.members.flatten(1)).reshape(scores.shape)
    return rows_agree(marginals(listed.structure, scores), expected)


def _derivatives(listed: Listed, scores: Tensor) -> bool:
    """The derivatives of the log-partition and of the marginals are right."""
    if not _is_tractable(listed, scores):
        return True
    x = scores.requires_grad_()
    return all(
        gradcheck(lambda x, f=function: f(listed.structure, x), (x,), fast_mode=True)
        for function in (log_partition, marginals)
    )


def _is_tractable(listed: Listed, scores: Tensor) -> bool:
    try:
        listed.structure.log_partition(scores[:1])
    except NotImplementedError:
        return False
    return True


def _gap(listed: Listed, scores: Tensor, u: Tensor) -> Tensor:
    """The duality gap of marginals (B, *shape): zero at the solution of SparseMAP."""
    slope = scores - u
    return listed.scores(slope).amax(1) - (slope * u).flatten(1).sum(1)


def _sparsemap(listed: Listed, scores: Tensor) -> Tensor:
    """SparseMAP gives weights of members that sum to one, their marginals, and no duality gap."""
    structure = listed.structure
    found = sparsemap(structure, scores, tol=1e-10)
    vertices: Any = found.codes
    if isinstance(structure, CodedStructure):
        vertices = structure.indicator(vertices)
    used = found.weights > 0
    inside = listed.contains(vertices.flatten(0, 1)).reshape(used.shape)
    kept = (inside | ~used).all(1) & torch.isclose(found.weights.sum(1), torch.ones(()).double())
    vertices = torch.where(used.unsqueeze(-1), vertices.flatten(2).double(), 0.0)
    mean = (found.weights.unsqueeze(-1) * vertices).sum(1).reshape(scores.shape)
    kept = kept & rows_agree(found.marginals, mean)
    return kept & (_gap(listed, scores, found.marginals).abs() <= 1e-8)


def _project(listed: Listed, scores: Tensor) -> Tensor | bool:
    """The projection is the point that SparseMAP finds with the MAP oracle."""
    structure = listed.structure
    if not structure.has_projection:
        return True
    solved = sparsemap(structure, scores, method="active_set", tol=1e-12).marginals
    return rows_agree(structure.project(scores), solved, 0.0, 1e-6)


def _lengths(listed: Listed, scores: Tensor) -> Tensor | bool:
    """A shorter instance has the structures of its length, and nothing behind its end counts."""
    structure, sizes = listed.structure, listed.structure.max_lengths
    if not sizes:
        return True
    shorter = torch.tensor([[max(1, size - k % 2) for size in sizes] for k in range(len(scores))])
    given = shorter if len(sizes) > 1 else shorter[:, 0]
    inside = structure.length_mask(shorter)
    best = map_inference(structure, scores, lengths=given)
    kept = (best.indicator * ~inside == 0).flatten(1).all(1)
    garbage = map_inference(structure, scores.masked_fill(~inside, torch.nan), lengths=given)
    kept = kept & rows_agree(garbage.indicator, best.indicator)
    if isinstance(structure, CodedStructure):
        for k, length in enumerate(shorter):
            members = structure.indicator(enumerate_codes(structure, length))
            values = Listed(structure, members).scores(scores[k : k + 1])
            top = values.amax() if values.numel() else values.new_tensor(-torch.inf)
            kept[k] &= torch.isclose(best.value[k], top)
    if len(sizes) == 1:
        mask = torch.arange(sizes[0]) < shorter
        masked = map_inference(structure, scores, mask=mask)
        kept = kept & rows_agree(masked.indicator, best.indicator)
    return kept


PROMISES = (
    _inputs_stay,
    _best,
    _value,
    _keeps_type,
    _any_layout,
    _empty_batch,
    _forbids,
    _nan_stays,
    _lengths,
    _log_partition,
    _marginals,
    _derivatives,
    _sparsemap,
    _project,
)
