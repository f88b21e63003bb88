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
    allowed = torch.ones_like(scores, dtype=torch.bool).unsqueeze(1)  # of each set, (B, sets, n, m)
    codes, values = _solve(structure, scores, lengths, allowed)
    found = torch.full((len(scores), k, codes.shape[2]), -1, device=scores.device)
    for rank in range(k):
        value, best = values.max(1)
        if not (value > -torch.inf).any():
            break
        code = codes[instance, best]
        found[:, rank] = torch.where(value.unsqueeze(1) > -torch.inf, code, -1)
        rest = _split(structure, allowed[instance, best], code)
        rest_codes, rest_values = _solve(structure, scores, lengths, rest)
        none = (code < 0) | (value == -torch.inf).unsqueeze(1)
        rest_values = torch.where(none, -torch.inf, rest_values)
        values = values.scatter(1, best.unsqueeze(1), -torch.inf)
        values = torch.cat([values, rest_values], 1)
        values, kept = values.topk(min(values.shape[1], k - 1 - rank))
        codes = torch.cat([codes, rest_codes], 1)[instance.unsqueeze(1), kept]
        allowed = torch.cat([allowed, rest], 1)[instance.unsqueeze(1), kept]
    return found


def _solve(
    structure: CodedStructure, scores: Tensor, lengths: Tensor | None, allowed: Tensor
) -> tuple[Tensor, Tensor]:
    """The best codes (B, sets, positions) and their scores (B, sets) of scores (B, n, m) among the
    allowed parts, (B, sets, n, m)."""
    batch, sets = allowed.shape[:2]
    masked = torch.where(allowed, scores.unsqueeze(1), -torch.inf).flatten(0, 1)
    repeated = None if lengths is None else lengths.repeat_interleave(sets, 0)
    codes, values = structure.map_operator()(masked, None, repeated, structure.option(None))
    return codes.long().reshape(batch, sets, -1), values.reshape(batch, sets)


def _split(structure: CodedStructure, allowed: Tensor, codes: Tensor) -> Tensor:
    """The parts (B, positions, n, m) that the members of each set may have: those of `allowed`,
    (B, n, m), with the parts of `codes`, (B, positions), before a position and without its own."""
    n, m = structure.shape
    parts = structure.part_indices(codes)[..., None, None]
    rows = torch.arange(n, device=codes.device).unsqueeze(1) == parts.div(m, rounding_mode="floor")
    columns = torch.arange(m, device=codes.device) == parts % m
    rows, columns = rows & (parts >= 0), columns & (parts >= 0)
    conflicts = rows ^ columns if isinstance(structure, Matching) else columns & ~rows
    before = conflicts.long().cumsum(1) - conflicts.long() > 0
    return allowed.unsqueeze(1) & ~before & ~(rows & columns)
