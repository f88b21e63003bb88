"""The structures of the library, as codes: the option that each position takes."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..ops._structure import Operators
from . import _autograd
from ._base import AbstractStructure
from ._problem import Problem, Vertices


class CodedStructure(AbstractStructure):
    """A structure with an oracle in the library."""

    @property
    @abc.abstractmethod
    def oracle(self) -> str:
        """The oracle's name in the library."""

    @abc.abstractmethod
    def option(self, extra_scores: Tensor | None) -> int:
        """The option of its operators, for extra scores (B or 1, …)."""

    @property
    def positions(self) -> int:
        """The length of a code."""
        return self.shape[0]

    @abc.abstractmethod
    def map_operator(self) -> Callable[..., Any]:
        """Its MAP operator; see `ops._structure.declare_map`."""

    def inference_operators(self) -> Operators | None:
        """Its inference operators, if it has a log-partition."""
        return None

    def decompose(self, marginals: Tensor) -> tuple[Tensor, Tensor]:
        """Codes (B, K, positions) and weights (B, K), differentiable, of structures with these
        marginals (B, *shape), if it `has_projection`; weights are zero behind the last."""
        raise NotImplementedError

    def part_indices(self, codes: Tensor) -> Tensor:
        """The indices (..., positions) of the parts of codes among the flat scores of one
        instance, −1 for none."""
        positions = torch.arange(codes.shape[-1], device=codes.device)
        if self.options_dim is None:
            return torch.where(codes == 1, positions, -1)
        if self.options_dim == -1:
            indices = positions * self.shape[-1] + codes
        else:
            indices = codes * self.shape[-1] + positions
        return torch.where(codes < 0, -1, indices)

    def extra_indices(self, codes: Tensor, extra_scores: Tensor) -> Tensor | None:
        """The indices (..., k) of the extra scores that codes use, among the flat extra scores of
        one instance, −1 for none."""
        return None

    def mask_padding(self, codes: Tensor, lengths: Tensor | None) -> Tensor:
        """Codes (B, positions) with −1 behind the end of each instance."""
        if lengths is None or self.positions != self.max_lengths[0]:
            return codes
        positions = torch.arange(self.positions, device=codes.device)
        return torch.where(positions < lengths[:, :1], codes, -1)

    def is_valid(self, codes: Tensor, lengths: Tensor | None) -> Tensor:
        """Whether codes (B, positions), −1 behind the end, are structures of these lengths, (B).

        Each part must be inside the lengths, and each position with options must take one.
        """
        parts = self.part_indices(codes)
        inside = torch.ones_like(parts[:, 0], dtype=torch.bool)
        if lengths is not None:
            region = self.length_mask(lengths).flatten(1)
            inside = (region.gather(1, parts.clamp(min=0)) | (parts < 0)).all(1)
        if self.options_dim is None:
            return inside
        full = self.mask_padding(torch.zeros_like(codes), lengths)
        return inside & ((codes >= 0) == (full >= 0)).all(1)

    def codes_of(self, indicator: Tensor) -> Tensor:
        """The codes (..., positions) of indicators (..., *shape)."""
        if self.options_dim is None:
            return indicator.long()
        taken = indicator.sum(self.options_dim) > 0
        codes = torch.where(taken, indicator.argmax(self.options_dim), -1)
        return codes.reshape(*indicator.shape[: -len(self.shape)], self.positions)

    def indicator(self, codes: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
        """The parts (..., *shape) of codes (..., positions)."""
        if self.options_dim is None:
            return (codes == 1).to(dtype).reshape(*codes.shape[:-1], *self.shape)
        indices = self.part_indices(codes.flatten(0, -2))
        flat = _count(indices, math.prod(self.shape), dtype)
        return flat.reshape(*codes.shape[:-1], *self.shape)

    def extra_indicator(self, codes: Tensor, extra_scores: Tensor) -> Tensor | None:
        """The extra parts (..., *extra_scores.shape[1:]) of codes (..., positions)."""
        indices = self.extra_indices(codes.flatten(0, -2), extra_scores)
        if indices is None:
            return None
        own = extra_scores.shape[1:]
        return _count(indices, own.numel(), extra_scores.dtype).reshape(*codes.shape[:-1], *own)

    def argmax(
        self, scores: Tensor, extra_scores: Tensor | None = None, lengths: Tensor | None = None
    ) -> Any:
        codes, _ = self.map_operator()(*self._operator_arguments(scores, extra_scores, lengths))
        indicator = self.indicator(codes.long(), scores.dtype)
        if extra_scores is None:
            return indicator
        return indicator, self.extra_indicator(codes.long(), extra_scores)

    def best_vertices(self, problem: Problem) -> Vertices:
        scores, extra_scores = problem.scores, problem.extra_scores
        with torch.no_grad():
            extra = None if extra_scores is None else extra_scores.detach()
            arguments = self._operator_arguments(scores.detach(), extra, problem.lengths)
            codes, best = self.map_operator()(*arguments)
            codes = codes.long()
            indicator = self.indicator(codes, scores.dtype)
            extra = None if extra_scores is None else self.extra_indicator(codes, extra_scores)
            failed = best.isnan().reshape(-1, *[1] * len(self.shape))
            indicator = torch.where(failed, torch.nan, indicator)
        value = self.score(scores, extra_scores, codes)
        value = torch.where(best.isfinite(), value, best.to(value))
        return Vertices(indicator, extra, codes, value)

    def score(self, scores: Tensor, extra_scores: Tensor | None, codes: Tensor) -> Tensor:
        """The scores (B) of codes (B, positions), differentiable."""
        value = _sum_at(scores.flatten(1), self.part_indices(codes))
        if extra_scores is None:
            return value
        indices = self.extra_indices(codes, extra_scores)
        if indices is None:
            return value
        extra_scores = extra_scores.expand(len(scores), *extra_scores.shape[1:])
        return value + _sum_at(extra_scores.flatten(1), indices)

    def log_partition(
        self, scores: Tensor, extra_scores: Tensor | None = None, lengths: Tensor | None = None
    ) -> Tensor:
        operators = self.inference_operators()
        if operators is None:
            raise NotImplementedError(self.intractable_message)
        arguments = self._operator_arguments(scores, extra_scores, lengths)
        return _autograd.log_partition(*arguments, operators)

    def marginals(
        self, scores: Tensor, extra_scores: Tensor | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        operators = self.inference_operators()
        if operators is None:
            raise NotImplementedError(self.intractable_message)
        arguments = self._operator_arguments(scores, extra_scores, lengths)
        u, v = _autograd.marginals(*arguments, operators)
        return u, None if extra_scores is None else v

    def _operator_arguments(
        self, scores: Tensor, extra_scores: Tensor | None, lengths: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Tensor | None, int]:
        """The arguments of its operators; extra scores that are not given are zero."""
        if extra_scores is None:
            extra_scores = self.merge_extra(scores, (None,) * len(self.extra_names))
        return scores, extra_scores, lengths, self.option(extra_scores)


def _count(indices: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """How often each index below `size` occurs, (B, size), among indices (B, k); −1 is none."""
    counts = torch.zeros(len(indices), size + 1, dtype=dtype, device=indices.device)
    ones = torch.ones_like(indices, dtype=dtype)
    return counts.scatter_add(1, torch.where(indices < 0, size, indices), ones)[:, :size]


def _sum_at(values: Tensor, indices: Tensor) -> Tensor:
    """The sum (B) of values (B, size) at the indices (B, k); −1 is none."""
    found = values.gather(1, indices.clamp(min=0))
    return torch.where(indices < 0, 0.0, found).sum(1)
