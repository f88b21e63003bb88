"""The search itself: live hypotheses of one length for all inputs, expanded and cut together."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..data._vocabulary import BOS, EOS, PAD, Vocabulary
from ..models._ensemble import CHUNK, Ensemble, cut_out, join, select
from ..models._state import State
from ._certificates import certify_sequences, certify_texts
from ._cuts import Cuts, ranks
from ._hypotheses import Ends, Hypothesis, Links, Result, Sequences, trace
from ._texts import Finished, by_input

NEGLIGIBLE = 2.0**-20
"""A share of the last text wanted that is not worth following for a certificate."""

FEW = 64
"""How many tokens of a row are sorted at least, if the search is so wide."""
ROUGHLY = 1e-9
"""More than a logarithm and its exponential are off."""


@dataclass(frozen=True)
class Plan:
    """How wide and how far a search goes.

    Args:
        width: how many live hypotheses an input keeps.
        keep: how many finished texts.
        greedy: whether the end of the sequence contends with the other tokens, so that only the
            best of all is followed; otherwise every hypothesis that can end does.
        max_length: the most tokens before the end.
        attention: whether hypotheses come with their attention.
        vocabulary: what spells texts, or None where every sequence is a text of its own.
    """

    width: int
    keep: int
    greedy: bool
    max_length: int
    attention: bool
    vocabulary: Vocabulary | None


def run(ensemble: Ensemble, source: Tensor, lengths: Tensor, plan: Plan) -> list[Result]:
    """Searches for every input at once.

    Cost: one step of the models for each length, on the live hypotheses alone. At most `width` of
    them are held for an input, with their states.
    """
    item = torch.arange(len(source), device=source.device)
    zero = torch.zeros(len(source), dtype=torch.float64, device=source.device)
    live = Sequences(item, zero, zero, zero, item, torch.full_like(item, BOS), zero + 1)
    cuts = Cuts(len(source), plan.vocabulary is not None, source.device)
    finished = Finished(Ends.at(0, live[item[:0]]), len(source), plan.keep, plan.vocabulary)
    limited = torch.zeros_like(item, dtype=torch.bool)
    states = ensemble.start(source, lengths)
    history: list[Links] = []
    for length in range(plan.max_length + 1):
        found, attention, states = _expand(ensemble, states, live, plan, cuts, length)
        history.append(Links(live.row, live.token, live.probability, attention))
        kept = _contest(found, plan)
        cuts.add(found[~kept], length)
        over = kept & (found.token == EOS)
        finished.add(Ends.at(length, found[over]), history, cuts)
        before, live = live, found[kept & ~over]
        last = length == plan.max_length
        hopeless = live.high < _wanted(finished, live, cuts, plan, last)[live.item]
        cuts.add(live[hopeless], length)
        live = live[~hopeless]
        if last:
            cuts.add(live, length)
            limited[live.item] = True
            finished.add_broken(_broken(finished, before, limited, length), history)
        elif not len(live):
            break
        else:
            states = select(states, live.row)
    return _results(history, finished, cuts, limited, lengths, plan, ensemble.rounding)


def _expand(
    ensemble: Ensemble, states: list[State], live: Sequences, plan: Plan, cuts: Cuts, length: int
) -> tuple[Sequences, Tensor | None, list[State]]:
    """The candidates among which those kept and the best one cut must be: ends, and the best
    `width` + 1 others of each input. The mass of all others is cut at once.
    """
    found, weights, parts = live[:0], [], []
    for begin in range(0, len(live), CHUNK):
        rows = slice(begin, begin + CHUNK)
        p, attention, part = ensemble.step(cut_out(states, rows), live.token[rows])
        before = live[rows]
        # Divided by their sum, which is one but for rounding, they leave exact shares to the rest.
        total = p.sum(-1, keepdim=True, dtype=torch.float64)
        floor = torch.full_like(cuts.worst, -math.inf)
        best = p.topk(min(p.shape[-1], _sorted_tokens(before, plan.width)))
        item, log = _last_place(best, total, before, found, plan.width)
        floor[item] = log
        chosen = p >= (floor[before.item] - before.log).exp().unsqueeze(1) * total * (1 - ROUGHLY)
        chosen[:, EOS] = True
        if plan.vocabulary is not None:  # more of what is cut has then a text of its own
            chosen.scatter_(1, best.indices, True)
        row, token = (chosen & (p > 0)).nonzero(as_tuple=True)
        q = p[row, token] / total[row, 0]
        more = Sequences(
            before.item[row],
            before.log[row] + q.log(),
            before.low[row] + (q - ensemble.rounding).clamp(min=0).log(),
            before.high[row] + (q + ensemble.rounding).clamp(max=1).log(),
            row + begin,
            token,
            q,
        )
        rest = (1 - torch.zeros_like(before.log).scatter_add(0, row, q)).clamp(min=0)
        mass = before.high.exp() * (rest + ensemble.rounding)
        places = torch.arange(begin, begin + len(p), device=p.device)
        cuts.add_mass(before.item, mass, length, places, torch.full_like(places, PAD))
        found = _shorten(found + more, plan.width, cuts, length)
        weights.append(attention)
        parts.append(part)
    return found, torch.cat(weights) if plan.attention else None, join(parts)


def _sorted_tokens(live: Sequences, width: int) -> int:
    """How many tokens of every row are sorted: so many that there are twice as many as are kept,
    but not all of a large vocabulary, however wide the search."""
    share = -(-2 * (width + 2) * len(live.item.unique()) // len(live))
    return max(share, min(width + 2, FEW))


def _last_place(
    best: Any, total: Tensor, live: Sequences, found: Sequences, width: int
) -> tuple[Tensor, Tensor]:
    """Inputs, and logarithms that at least `width` + 1 candidates of each reach.

    Args:
        best: the most probable tokens of every row, values and indices.
        total: the sums (R, 1) of the rows.
        live: the rows.
        found: the candidates so far.
        width: how many are followed.
    """
    log = live.log.unsqueeze(1) + (best.values.masked_fill(best.indices == EOS, 0) / total).log()
    others = found[found.token != EOS]
    item = torch.cat([others.item, live.item.repeat_interleave(log.shape[1])])
    log = torch.cat([others.log, log.flatten()])
    last = ranks(item, log) == width
    return item[last], log[last]


def _shorten(found: Sequences, width: int, cuts: Cuts, length: int) -> Sequences:
    """Without what neither is kept nor the best one cut, so that memory stays bounded."""
    over = found.token == EOS
    kept = over | (ranks(2 * found.item + over, found.log) <= width)
    cuts.add(found[~kept], length)
    return found[kept]


def _contest(found: Sequences, plan: Plan) -> Tensor:
    """Which candidates are followed, or finish."""
    over = found.token == EOS
    if plan.greedy:
        return ranks(found.item, found.log) < plan.width
    return over | (ranks(2 * found.item + over, found.log) < plan.width)


def _wanted(finished: Finished, live: Sequences, cuts: Cuts, plan: Plan, last: bool) -> Tensor:
    """The logarithm (items,) that a live hypothesis must reach to be followed.

    It is that of the last text wanted. Where several sequences spell a text, less probable ones
    are followed as long as they can decide whether the first text is certified.
    """
    first, second, least = finished.places(1, 2, plan.keep)
    if plan.vocabulary is None or last:
        return least
    mass = torch.zeros_like(cuts.mass).scatter_add(0, live.item, live.high.exp())
    open_question = first.exp() + mass >= second.exp() + cuts.mass
    return torch.where(open_question, least + math.log(NEGLIGIBLE), least)


def _broken(finished: Finished, live: Sequences, limited: Tensor, length: int) -> Ends:
    """The live hypotheses of inputs of which none has finished when the length limit is met."""
    without = limited.clone()
    without[finished.ends.item] = False
    row = (without[live.item] & (ranks(live.item, live.log) < finished.room)).nonzero().squeeze(1)
    broken = live[row]
    nothing = torch.full_like(broken.log, math.nan)
    return Ends.at(
        length,
        Sequences(broken.item, broken.log, broken.low, broken.high, row, broken.token, nothing),
    )


def _results(
    history: list[Links],
    finished: Finished,
    cuts: Cuts,
    limited: Tensor,
    lengths: Tensor,
    plan: Plan,
    rounding: float,
) -> list[Result]:
    ends = finished.ends[finished.ends.log.argsort(descending=True, stable=True)]
    texts = by_input(ends, len(lengths), finished.names)
    unfinished = torch.zeros_like(limited)
    unfinished[ends.item[ends.probability.isnan()]] = True
    if plan.vocabulary is None:
        claims = certify_sequences(texts, cuts, unfinished, rounding)
    else:
        claims = certify_texts(texts, plan.keep, cuts, unfinished, history, plan.vocabulary)
    shown = [[text.places for text in found[: plan.keep]] for found in texts]
    places = [place for found in shown for each in found for place in each]
    first = {each[0] for found in shown for each in found}
    chosen = ends[ends.row.new_tensor(places)]
    sequences = iter(trace(history, chosen, [at in first for at in places], lengths.tolist()))
    results = []
    for found, broken, claim in zip(shown, limited.tolist(), claims, strict=True):
        hypotheses = [Hypothesis.of([next(sequences) for _ in each]) for each in found]
        results.append(Result(hypotheses, claim.exact, claim.complete, claim.bound, broken))
    return results
