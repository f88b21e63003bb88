"""The k best of any structure, by its MAP oracle alone."""

from __future__ import annotations

import torch
from torch import Tensor

from .._coded import CodedStructure
from .._matching import Matching


def k_best(structure: CodedStructure, scores: Tensor, lengths: Tensor | None, k: int) -> Tensor:
    """Codes (B, k, positions), best first, −1 behind the last: the partition of Lawler and Murty.

    A set of structures is given by the parts that they may have. Let y be its best member, with the
    parts e₁ … e_r. The others make r sets: those without e₁; those with e₁ and without e₂; those
    with e₁ and e₂ and without e₃; and so on. To have a part means that all parts in conflict with
    it are forbidden. The next best structure is the best member of one of the sets.

    Args:
        structure: a tree or a matching.
        scores: (B, n, m). Every instance has a structure.
        lengths: as its operator takes them.
        k: how many.
    """
    instance = torch.arange(len(scores), device=scores.device)
    allowed = (scores > -torch.inf).unsqueeze(1)  # in each set, (B, sets, n, m)
    everything = torch.ones(allowed.shape[:2], dtype=torch.bool, device=scores.device)
    codes, values = _solve(structure, scores, lengths, allowed, everything)
    found = torch.full((len(scores), k, codes.shape[2]), -1, device=scores.device)
    for rank in range(k):
        value, best = values.max(1)
        if not (value > -torch.inf).any():
            break
        code = codes[instance, best]
        found[:, rank] = torch.where(value.unsqueeze(1) > -torch.inf, code, -1)
        rest, exists = _split(structure, allowed[instance, best], code)
        exists = exists & (value > -torch.inf).unsqueeze(1)
        rest_codes, rest_values = _solve(structure, scores, lengths, rest, exists)
        values = values.scatter(1, best.unsqueeze(1), -torch.inf)
        values = torch.cat([values, rest_values], 1)
        values, kept = values.topk(min(values.shape[1], k - 1 - rank))
        codes = torch.cat([codes, rest_codes], 1)[instance.unsqueeze(1), kept]
        allowed = torch.cat([allowed, rest], 1)[instance.unsqueeze(1), kept]
    return found


def _solve(
    structure: CodedStructure,
    scores: Tensor,
    lengths: Tensor | None,
    allowed: Tensor,
    exists: Tensor,
) -> tuple[Tensor, Tensor]:
    """The best code (B, sets, positions) and its score (B, sets) in each set that `exists`,
    (B, sets), for scores (B, n, m) and allowed parts (B, sets, n, m); −1 and −inf in the others."""
    instance, _ = exists.nonzero(as_tuple=True)
    masked = torch.where(allowed[exists], scores[instance], -torch.inf)
    sizes = None if lengths is None else lengths[instance]
    found, best = structure.map_operator()(masked, None, sizes, structure.option(None))
    codes = torch.full((*exists.shape, structure.positions), -1, device=scores.device)
    values = torch.full_like(exists, -torch.inf, dtype=torch.float64)
    codes[exists], values[exists] = found.long(), best
    return codes, values


def _split(structure: CodedStructure, allowed: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
    """The parts (B, positions, n, m) that the members of each set may have: those of `allowed`,
    (B, n, m), with the parts of `codes`, (B, positions), before a position and without its own; and
    whether there can be members, (B, positions): not if nothing is in conflict with that part."""
    n, m = structure.shape
    parts = structure.part_indices(codes)[..., None, None]
    rows = torch.arange(n, device=codes.device).unsqueeze(1) == parts.div(m, rounding_mode="floor")
    columns = torch.arange(m, device=codes.device) == parts % m
    rows, columns = rows & (parts >= 0), columns & (parts >= 0)
    conflicts = rows ^ columns if isinstance(structure, Matching) else columns & ~rows
    before = conflicts.cumsum(1) - conflicts.long() > 0
    rest = allowed.unsqueeze(1) & ~before & ~(rows & columns)
    return rest, (rest & conflicts).flatten(2).any(2)
