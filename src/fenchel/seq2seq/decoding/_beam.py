"""The search loop: the live hypotheses of one length, of all inputs, are extended together."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..data._vocabulary import BOS, EOS, PAD, Vocabulary
from ..models._ensemble import CHUNK, Ensemble, cut_out, join, select
from ..models._state import State
from ._certificates import certify_sequences, certify_texts
from ._hypotheses import BackPointers, Ends, Hypothesis, Result, Sequences, backtrace
from ._normalization import Normalization
from ._pruned import Pruned, ranks
from ._restriction import Restriction
from ._texts import Finished, by_input

NEGLIGIBLE = 2.0**-20
"""A hypothesis below this share of the last text wanted is not extended for a certificate."""
MIN_SORTED = 64
"""At least this many tokens of a row are sorted, if the search is that wide."""
LOG_TOLERANCE = 1e-9
"""More than the relative rounding error of a logarithm and its exponential."""


@dataclass(frozen=True)
class Plan:
    """The bounds of a search.

    Args:
        width: how many live hypotheses an input keeps.
        keep: how many finished texts an input keeps.
        greedy: whether the end of the sequence competes with the other tokens, so that only the
            best of all is kept; otherwise every hypothesis that can end does.
        max_length: the largest number of tokens before the end.
        attention: whether hypotheses come with their attention.
        vocabulary: spells the texts; None if every sequence is a text of its own.
        normalization: ranks the finished sequences.
        before_step: called before each step of the models.
    """

    width: int
    keep: int
    greedy: bool
    max_length: int
    attention: bool
    vocabulary: Vocabulary | None
    normalization: Normalization
    before_step: Callable[[], None] | None


def run(
    ensemble: Ensemble,
    source: Tensor,
    lengths: Tensor,
    plan: Plan,
    restriction: Restriction | None = None,
) -> list[Result]:
    """Searches for all inputs at once, among the outputs that a restriction allows.

    Cost: one step of the models for each length, on the live hypotheses alone. At most `width` of
    them are held for an input, with their states.
    """
    item = torch.arange(len(source), device=source.device)
    zero = torch.zeros(len(source), dtype=torch.float64, device=source.device)
    live = Sequences(item, zero, zero, zero, item, torch.full_like(item, BOS), zero + 1)
    pruned = Pruned(len(source), plan.vocabulary is not None, source.device, plan.normalization)
    none = Ends.at(0, live[item[:0]])
    finished = Finished(none, len(source), plan.keep, plan.vocabulary, plan.normalization)
    limited = torch.zeros_like(item, dtype=torch.bool)
    states = ensemble.start(source, lengths)
    history: list[BackPointers] = []
    for length in range(plan.max_length + 1):
        if restriction is not None:
            restriction.advance(live, history, length)
        candidates, attention, states = _extend(
            ensemble, states, live, plan, pruned, length, restriction
        )
        history.append(BackPointers(live.parent, live.token, live.probability, attention))
        is_kept = _is_kept(candidates, plan)
        pruned.add(candidates[~is_kept], length)
        ends = is_kept & (candidates.token == EOS)
        finished.add(Ends.at(length, candidates[ends]), history, pruned)
        before, live = live, candidates[is_kept & ~ends]
        is_last = length == plan.max_length
        if not (is_last and plan.normalization.power):  # what is longer has no bound
            min_score = _min_score(finished, live, pruned, plan, is_last)[live.item]
            hopeless = plan.normalization.best(live.upper) < min_score
            pruned.add(live[hopeless], length)
            live = live[~hopeless]
        if is_last:
            pruned.add(live, length)
            limited[live.item] = True
            is_allowed = limited[before.item]
            if restriction is not None:
                is_allowed = is_allowed & restriction.has_prefix
            finished.add_unfinished(_unfinished(finished, before, is_allowed, length), history)
        elif not len(live):
            break
        else:
            states = select(states, live.parent)
    return _results(history, finished, pruned, limited, lengths, plan)


def _extend(
    ensemble: Ensemble,
    states: list[State],
    live: Sequences,
    plan: Plan,
    pruned: Pruned,
    length: int,
    restriction: Restriction | None,
) -> tuple[Sequences, Tensor | None, list[State]]:
    """Extends the live hypotheses by one token that a restriction allows.

    Returns:
        The candidates: all ends, and the best `width` + 1 other extensions of each input, so that
        the best one that is pruned is among them. All others are pruned here. Also the attention
        and the states of the live hypotheses.
    """
    candidates, weights, parts = live[:0], [], []
    for begin in range(0, len(live), CHUNK):
        rows = slice(begin, begin + CHUNK)
        if plan.before_step is not None:
            plan.before_step()
        p, attention, part = ensemble.step(cut_out(states, rows), live.token[rows])
        before = live[rows]
        # Rows sum to one up to rounding. Divided by their sum, they leave exact shares to the rest.
        total = p.sum(-1, keepdim=True, dtype=torch.float64)
        share: Tensor | float = 1.0
        mask = None if restriction is None else restriction.mask(before, begin, p.shape[-1])
        if mask is not None:
            p = p.masked_fill(~mask, 0)
            share = (p.sum(-1, dtype=torch.float64) / total[:, 0]).clamp(max=1)
        threshold = torch.full_like(pruned.max_log_p, -math.inf)
        best = p.topk(min(p.shape[-1], _num_sorted(before, plan.width)))
        item, log_p = _thresholds(best, total, before, candidates, plan.width)
        threshold[item] = log_p
        min_p = (threshold[before.item] - before.log_p).exp().unsqueeze(1) * total
        chosen = p >= min_p * (1 - LOG_TOLERANCE)
        chosen[:, EOS] = True
        if plan.vocabulary is not None:  # so that more of what is pruned is known by its text
            chosen.scatter_(1, best.indices, True)
        row, column = (chosen & (p > 0)).nonzero(as_tuple=True)
        q = p[row, column] / total[row, 0]
        more = Sequences(
            before.item[row],
            before.log_p[row] + q.log(),
            before.lower[row] + (q - ensemble.rounding).clamp(min=0).log(),
            before.upper[row] + (q + ensemble.rounding).clamp(max=1).log(),
            row + begin,
            ensemble.tokens(part, row, column),
            q,
        )
        rest = (share - torch.zeros_like(before.log_p).scatter_add(0, row, q)).clamp(min=0)
        mass = before.upper.exp() * (rest + ensemble.rounding)
        # In another batch, a token of probability zero may have as much as rounding gives it.
        zero = before.upper + math.log(ensemble.rounding)
        if mask is not None:
            mask[row, column] = False  # what remains is allowed, but was not chosen
            mass = mass.where(mask.any(-1), 0)
            zero = zero.where((mask & (p == 0)).any(-1), -math.inf)
        pruned.add_upper(before.item, zero)
        parents = torch.arange(begin, begin + len(p), device=p.device)
        pruned.add_mass(before.item, mass, length, parents, torch.full_like(parents, PAD))
        candidates = _prune(candidates + more, plan.width, pruned, length)
        weights.append(attention)
        parts.append(part)
    return candidates, torch.cat(weights) if plan.attention else None, join(parts)


def _num_sorted(live: Sequences, width: int) -> int:
    """How many tokens of every row are sorted.

    Together they are twice as many as are kept, but never all of a large vocabulary.
    """
    share = -(-2 * (width + 2) * len(live.item.unique()) // len(live))
    return max(share, min(width + 2, MIN_SORTED))


def _thresholds(
    best: Any, total: Tensor, live: Sequences, candidates: Sequences, width: int
) -> tuple[Tensor, Tensor]:
    """Inputs, and the log-probability that at least `width` + 1 candidates of each reach.

    Args:
        best: the most probable tokens of every row, values and indices.
        total: the sums (R, 1) of the rows.
        live: the rows.
        candidates: those of earlier rows.
        width: how many are kept.
    """
    shares = best.values.masked_fill(best.indices == EOS, 0) / total
    log_p = live.log_p.unsqueeze(1) + shares.log()
    others = candidates[candidates.token != EOS]
    item = torch.cat([others.item, live.item.repeat_interleave(log_p.shape[1])])
    log_p = torch.cat([others.log_p, log_p.flatten()])
    is_last = ranks(item, log_p) == width
    return item[is_last], log_p[is_last]


def _prune(candidates: Sequences, width: int, pruned: Pruned, length: int) -> Sequences:
    """Prunes all but the ends and the best `width` + 1 others, so that memory stays bounded."""
    ends = candidates.token == EOS
    is_kept = ends | (ranks(2 * candidates.item + ends, candidates.log_p) <= width)
    pruned.add(candidates[~is_kept], length)
    return candidates[is_kept]


def _is_kept(candidates: Sequences, plan: Plan) -> Tensor:
    """Which candidates stay live or finish, (N,)."""
    ends = candidates.token == EOS
    if plan.greedy:
        return ranks(candidates.item, candidates.log_p) < plan.width
    return ends | (ranks(2 * candidates.item + ends, candidates.log_p) < plan.width)


def _min_score(
    finished: Finished, live: Sequences, pruned: Pruned, plan: Plan, is_last: bool
) -> Tensor:
    """The score (items,) that a live hypothesis must be able to reach to be extended.

    It is that of the last text wanted. If several sequences may spell a text, less probable ones
    are extended too, as long as they can decide whether the first text is certified.
    """
    first, second, last_wanted = finished.nth_scores(1, 2, plan.keep)
    if plan.vocabulary is None or is_last or plan.normalization.power:
        return last_wanted
    mass = torch.zeros_like(pruned.mass).scatter_add(0, live.item, live.upper.exp())
    is_undecided = first.exp() + mass >= second.exp() + pruned.mass
    return torch.where(is_undecided, last_wanted + math.log(NEGLIGIBLE), last_wanted)


def _unfinished(finished: Finished, live: Sequences, is_allowed: Tensor, length: int) -> Ends:
    """The allowed live hypotheses, at the length limit, of inputs without a finished one."""
    is_over = torch.isin(live.item, finished.ends.item)
    is_kept = is_allowed & ~is_over & (ranks(live.item, live.log_p) < finished.max_sequences)
    row = is_kept.nonzero().squeeze(1)
    kept = live[row]
    no_end = torch.full_like(kept.log_p, math.nan)
    return Ends.at(
        length, Sequences(kept.item, kept.log_p, kept.lower, kept.upper, row, kept.token, no_end)
    )


def _results(
    history: list[BackPointers],
    finished: Finished,
    pruned: Pruned,
    limited: Tensor,
    lengths: Tensor,
    plan: Plan,
) -> list[Result]:
    ends = finished.ends[finished.ends.log_p.argsort(descending=True, stable=True)]
    texts = by_input(ends, len(lengths), finished.names, plan.normalization)
    unfinished = torch.zeros_like(limited)
    unfinished[ends.item[ends.probability.isnan()]] = True
    if plan.vocabulary is None:
        certificates = certify_sequences(texts, pruned, unfinished, plan.normalization)
    else:
        certificates = certify_texts(
            texts, plan.keep, pruned, unfinished, history, plan.vocabulary, plan.normalization
        )
    kept = [[text.sequences for text in found[: plan.keep]] for found in texts]
    indices = [index for found in kept for sequences in found for index in sequences]
    best = {sequences[0] for found in kept for sequences in found}
    chosen = ends[ends.parent.new_tensor(indices)]
    has_attention = [index in best for index in indices]
    hypotheses = iter(backtrace(history, chosen, has_attention, lengths.tolist()))
    results = []
    for found, is_limited, certificate in zip(kept, limited.tolist(), certificates, strict=True):
        outputs = [Hypothesis.of([next(hypotheses) for _ in sequences]) for sequences in found]
        results.append(Result(outputs, *certificate, is_limited))
    return results
