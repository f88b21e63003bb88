"""The search itself: live hypotheses of one length for all inputs, expanded and cut together."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ._ensemble import CHUNK, Ensemble, cut_out, join, select
from ._hypotheses import Ends, Links, Result, Rows, trace
from ._state import State
from ._vocabulary import BOS, EOS

ROUNDING = 2.0**-20
"""How far a conditional probability may be off, relatively: eight roundings of float32."""


@dataclass(frozen=True)
class Plan:
    """How wide and how far a search goes.

    Args:
        width: how many live hypotheses an input keeps.
        keep: how many finished ones.
        greedy: whether the end of the sequence contends with the other tokens, so that only the
            best of all is followed; otherwise every hypothesis that can end does.
        max_length: the most tokens before the end.
        attention: whether hypotheses come with their attention.
    """

    width: int
    keep: int
    greedy: bool
    max_length: int
    attention: bool

    @property
    def margin(self) -> float:
        """By how much logarithms must differ to be surely in order, see docs/concepts/search.md."""
        return 2 * ROUNDING * (self.max_length + 1)


@dataclass(frozen=True)
class Candidates(Rows):
    """Extensions of live hypotheses by one token of nonzero probability, (N,) each."""

    item: Tensor
    log: Tensor
    row: Tensor
    token: Tensor
    probability: Tensor


def run(ensemble: Ensemble, source: Tensor, lengths: Tensor, plan: Plan) -> list[Result]:
    """Searches for every input at once.

    Cost: one step of the models for each length, on the live hypotheses alone. At most `width` of
    them are held for an input, with their states.
    """
    items, device = len(source), source.device
    item = torch.arange(items, device=device)
    log = torch.zeros(items, dtype=torch.float64, device=device)
    links = Links(item, torch.full_like(item, BOS), torch.ones_like(log))
    ends = Ends(item[:0], log[:0], item[:0], item[:0], log[:0])
    cut = torch.full_like(log, -math.inf)
    limited = torch.zeros_like(item, dtype=torch.bool)
    states = ensemble.start(source, lengths)
    history: list[Links] = []
    for length in range(plan.max_length + 1):
        found, attention, states = _expand(ensemble, states, item, log, links.token, plan)
        history.append(Links(links.parent, links.token, links.probability, attention))
        kept = _contest(found, plan)
        cut = _raise(cut, found.item[~kept], found.log[~kept])
        over = kept & (found.token == EOS)
        ends, lost, least = _finish(ends, found[over], length, plan.keep, items)
        cut = _raise(cut, lost.item, lost.log)
        live = found[kept & ~over]
        hopeless = live.log < least[live.item] - plan.margin
        cut = _raise(cut, live.item[hopeless], live.log[hopeless])
        live = live[~hopeless]
        if length == plan.max_length:
            cut = _raise(cut, live.item, live.log)
            limited[live.item] = True
            ends = ends + _broken(ends, item, log, limited, length, plan.keep)
        elif not len(live):
            break
        else:
            item, log = live.item, live.log
            links = Links(live.row, live.token, live.probability)
            states = select(states, live.row)
    return _results(history, ends, cut, limited, lengths, plan)


def _expand(
    ensemble: Ensemble, states: list[State], item: Tensor, log: Tensor, tokens: Tensor, plan: Plan
) -> tuple[Candidates, Tensor | None, list[State]]:
    """The candidates among which those kept and the best one cut must be.

    At most `width` extensions of a hypothesis are kept, so that its best `width` + 1, and its end,
    hold the best one that is cut. Row by row these stand in the order of their probability.
    """
    found = Candidates(item, log, item, tokens, log)
    weights, parts = [], []
    for begin in range(0, len(item), CHUNK):
        rows = slice(begin, begin + CHUNK)
        p, attention, part = ensemble.step(cut_out(states, rows), tokens[rows])
        values, classes = p.topk(min(plan.width + 2, p.shape[-1]))
        values = torch.cat([p[:, EOS, None], values.masked_fill(classes == EOS, 0)], 1)
        classes = torch.cat([torch.full_like(classes[:, :1], EOS), classes], 1)
        row, place = values.nonzero(as_tuple=True)
        probability = values[row, place].double()
        sums = log[rows][row] + probability.log()
        more = Candidates(item[rows][row], sums, row + begin, classes[row, place], probability)
        found = _shorten(found + more, plan.width) if begin else more
        weights.append(attention)
        parts.append(part)
    return found, torch.cat(weights) if plan.attention else None, join(parts)


def _shorten(found: Candidates, width: int) -> Candidates:
    """Without what neither is kept nor the best one cut, so that memory stays bounded."""
    over = found.token == EOS
    return found[over | (_ranks(2 * found.item + over, found.log) <= width)]


def _ranks(group: Tensor, log: Tensor) -> Tensor:
    """The place of each entry among those of its group, from the largest, 0, on; first come first.

    Both sorts are stable, so that equal entries keep their order on every device.
    """
    order = log.argsort(descending=True, stable=True)
    order = order[group[order].argsort(stable=True)]
    ordered = group[order]
    first = torch.searchsorted(ordered, ordered)
    ranks = torch.empty_like(order)
    ranks[order] = torch.arange(len(order), device=order.device) - first
    return ranks


def _contest(found: Candidates, plan: Plan) -> Tensor:
    """Which candidates are followed, or finish."""
    over = found.token == EOS
    if plan.greedy:
        return _ranks(found.item, found.log) < plan.width
    return over | (_ranks(2 * found.item + over, found.log) < plan.width)


def _finish(
    ends: Ends, found: Candidates, length: int, keep: int, items: int
) -> tuple[Ends, Ends, Tensor]:
    """The best finished hypotheses of every input, the others, and (items,) the last place's log.

    That is −inf while there are places left.
    """
    lengths = torch.full_like(found.row, length)
    ends = ends + Ends(found.item, found.log, lengths, found.row, found.probability)
    ranks = _ranks(ends.item, ends.log)
    last = ranks == keep - 1
    least = torch.full((items,), -math.inf, dtype=ends.log.dtype, device=ends.log.device)
    least[ends.item[last]] = ends.log[last]
    return ends[ranks < keep], ends[ranks >= keep], least


def _raise(cut: Tensor, item: Tensor, log: Tensor) -> Tensor:
    """The largest logarithm that was cut so far, (items,)."""
    return cut.scatter_reduce(0, item, log, "amax")


def _broken(ends: Ends, item: Tensor, log: Tensor, limited: Tensor, length: int, keep: int) -> Ends:
    """The live hypotheses of inputs of which none has finished when the length limit is met."""
    without = limited.clone()
    without[ends.item] = False
    row = (without[item] & (_ranks(item, log) < keep)).nonzero().squeeze(1)
    nothing = torch.full_like(log[row], math.nan)
    return Ends(item[row], log[row], torch.full_like(row, length), row, nothing)


def _results(
    history: list[Links], ends: Ends, cut: Tensor, limited: Tensor, lengths: Tensor, plan: Plan
) -> list[Result]:
    ends = ends[ends.log.argsort(descending=True, stable=True)]
    found = trace(history, ends, lengths.tolist())
    results = []
    for hypotheses, worst, broken in zip(found, cut.tolist(), limited.tolist(), strict=True):
        certain = bool(hypotheses) and not broken
        exact = certain and worst <= hypotheses[0].log_probability - plan.margin
        complete = certain and worst == -math.inf
        results.append(Result(hypotheses, exact, complete, math.exp(worst), broken))
    return results
