"""MAP inference, marginals and log-partitions of any structure."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ._base import AbstractStructure
from ._checks import check_structure
from ._problem import ExtraScores, Vertices


def map_inference(
    structure: AbstractStructure,
    scores: Tensor,
    extra_scores: ExtraScores | None = None,
    *,
    lengths: Any = None,
    mask: Tensor | None = None,
) -> Vertices:
    """The best structure of each instance: argmax over its members y of <scores, y>.

    Args:
        structure: such as `Sequence(5, 3)`.
        scores: (..., *structure.shape), floating point; −inf forbids a part.
        extra_scores: scores of other parts, for structures that have them: one tensor or a tuple,
            with any batch dimensions that broadcast. For a `Sequence` these are the transitions, or
            a tuple (transitions, start, end), some of them None.
        lengths: (...) integers, the size of each instance in a ragged batch; (..., 2) for a
            `Matching`.
        mask: (..., n) booleans instead, true on the first positions.
    Returns:
        Vertices: `indicator` like the scores; `extra`, the same for the extra scores; `codes`
        (..., positions): tags, heads, columns or bits, −1 for none; and `value` (...), the best
        score, whose gradient is the indicator. An instance without structures has the value −inf
        and zeros; one with NaN or +inf has NaN. For a structure without a closed form, CUDA scores
        are copied to the CPU, and results back without waiting. A `FactorGraph` has
        RelaxedVertices: the solution of its linear relaxation, and whether it is integral.
    Raises:
        TypeError, ValueError: for input of the wrong kind, shape or value.

    >>> from fenchel import DependencyTree
    >>> best = map_inference(DependencyTree(2), torch.tensor([[1.0, 3.0], [0.0, 2.0]]))
    >>> best.codes, best.value
    (tensor([0, 0]), tensor(4.))
    """
    check_structure(structure, AbstractStructure)
    problem = structure.problem(scores, extra_scores, lengths, mask)
    found = structure.best_vertices(problem)
    indicator, extra = problem.restore(found.indicator, found.extra)
    codes = None if found.codes is None else problem.restore_batch(found.codes)
    value = problem.restore_batch(found.value)
    return found._replace(indicator=indicator, extra=extra, codes=codes, value=value)


def log_partition(
    structure: AbstractStructure,
    scores: Tensor,
    extra_scores: ExtraScores | None = None,
    *,
    lengths: Any = None,
    mask: Tensor | None = None,
) -> Tensor:
    """log Σ exp(<scores, y>) over all structures y; its gradient is `marginals`.

    Args:
        structure, scores, extra_scores, lengths, mask: as for `map_inference`.
    Returns:
        (...): finite for any finite scores; −inf for an instance without structures.
    Raises:
        NotImplementedError: for a structure where this is intractable, as a `Matching`.

    >>> from fenchel import Choice
    >>> log_partition(Choice(2), torch.zeros(2))
    tensor(0.6931)
    """
    check_structure(structure, AbstractStructure)
    problem = structure.problem(scores, extra_scores, lengths, mask)
    arguments = structure.arguments(problem.scores, problem.extra_scores, problem.lengths)
    return problem.restore_batch(structure.log_partition(*arguments))


def marginals(
    structure: AbstractStructure,
    scores: Tensor,
    extra_scores: ExtraScores | None = None,
    *,
    lengths: Any = None,
    mask: Tensor | None = None,
) -> Any:
    """The probability of every part under p(y) ∝ exp(<scores, y>).

    Args:
        structure, scores, extra_scores, lengths, mask: as for `map_inference`.
    Returns:
        A tensor like `scores`. With extra scores, a pair of it and of the marginals of these, for
        each instance, in the form in which they were given: the expected number of uses of each.
        Differentiable twice.
    Raises:
        NotImplementedError: for a structure where this is intractable, as a `Matching`.

    >>> from fenchel import Sequence
    >>> tags, transitions = marginals(Sequence(2, 2), torch.zeros(2, 2), torch.eye(2))
    >>> transitions
    tensor([[0.3655, 0.1345],
            [0.1345, 0.3655]])
    """
    check_structure(structure, AbstractStructure)
    problem = structure.problem(scores, extra_scores, lengths, mask)
    arguments = structure.arguments(problem.scores, problem.extra_scores, problem.lengths)
    u, v = structure.marginals(*arguments)
    found, extra = problem.restore(u, v)
    return found if extra_scores is None else (found, extra)
