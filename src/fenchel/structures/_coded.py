"""Structures of the library: a code says for each position which option it takes."""

from __future__ import annotations

import abc
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

    @abc.abstractmethod
    def parts(self, codes: Tensor) -> Tensor:
        """The place of each code (..., positions) among the scores of one instance, −1 for none."""

    @abc.abstractmethod
    def codes(self) -> Tensor:
        """All codes, (K, positions), for tests of small structures."""

    def extras(self, codes: Tensor, extra_scores: Tensor) -> Tensor | None:
        """The places (..., k) of a code's extra scores among those of one instance, shaped as
        extra_scores (…), −1 for none."""
        return None

    def ended(self, codes: Tensor, lengths: Tensor | None) -> Tensor:
        """Codes (B, positions) with −1 behind the end of each instance."""
        if lengths is None or self.positions != self.sides[0]:
            return codes
        places = torch.arange(self.positions, device=codes.device)
        return torch.where(places < lengths[:, :1], codes, -1)

    def holds(self, codes: Tensor, lengths: Tensor | None) -> Tensor:
        """Whether codes (B, positions) that have ended are structures of these sizes, (B).

        Each part must be within the sizes, and each position must have one if it has options.
        """
        parts = self.parts(codes)
        inside = torch.ones_like(parts[:, 0], dtype=torch.bool)
        if lengths is not None:
            region = self.within(lengths).flatten(1)
            inside = (region.gather(1, parts.clamp(min=0)) | (parts < 0)).all(1)
        if self.options_dim is None:
            return inside
        full = self.ended(torch.zeros_like(codes), lengths)
        return inside & ((codes >= 0) == (full >= 0)).all(1)

    def codes_of(self, indicator: Tensor) -> Tensor:
        """The codes (..., positions) of indicators (..., *shape)."""
        if self.options_dim is None:
            return indicator.long()
        taken = indicator.sum(self.options_dim) > 0
        codes = torch.where(taken, indicator.argmax(self.options_dim), -1)
        return codes.reshape(*indicator.shape[: -len(self.shape)], self.positions)

    def members(self) -> Tensor:
        return self.indicator(self.codes())

    def indicator(self, codes: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
        """The parts (..., *shape) of codes (..., positions)."""
        flat = codes.flatten(0, -2)
        size = torch.Size(self.shape)
        return _scattered(self.parts(flat), size.numel(), dtype).reshape(*codes.shape[:-1], *size)

    def extra_indicator(self, codes: Tensor, extra_scores: Tensor) -> Tensor | None:
        """The extra parts (..., *extra_scores.shape[1:]) of codes (..., positions)."""
        places = self.extras(codes.flatten(0, -2), extra_scores)
        if places is None:
            return None
        own = extra_scores.shape[1:]
        return _scattered(places, own.numel(), extra_scores.dtype).reshape(*codes.shape[:-1], *own)

    def argmax(
        self, scores: Tensor, extra_scores: Tensor | None = None, lengths: Tensor | None = None
    ) -> Any:
        codes, _ = self.map_operator()(scores, extra_scores, lengths, self.option(extra_scores))
        indicator = self.indicator(codes.long(), scores.dtype)
        if extra_scores is None:
            return indicator
        return indicator, self.extra_indicator(codes.long(), extra_scores)

    def vertices(self, problem: Problem) -> Vertices:
        scores, extra_scores = problem.scores, problem.extra_scores
        with torch.no_grad():
            codes, found = self.map_operator()(
                scores, extra_scores, problem.lengths, self.option(extra_scores)
            )
            codes = codes.long()
            indicator = self.indicator(codes, scores.dtype)
            extra = None if extra_scores is None else self.extra_indicator(codes, extra_scores)
            failed = found.isnan().reshape(-1, *[1] * len(self.shape))
            indicator = torch.where(failed, torch.nan, indicator)
        value = self.score(scores, extra_scores, codes)
        value = torch.where(found.isfinite(), value, found.to(value))
        return Vertices(indicator, extra, codes, value)

    def score(self, scores: Tensor, extra_scores: Tensor | None, codes: Tensor) -> Tensor:
        """The scores (B) of codes (B, positions), differentiable."""
        value = _gathered(scores.flatten(1), self.parts(codes))
        if extra_scores is None:
            return value
        places = self.extras(codes, extra_scores)
        if places is None:
            return value
        extra_scores = extra_scores.expand(len(scores), *extra_scores.shape[1:])
        return value + _gathered(extra_scores.flatten(1), places)

    def log_partition(
        self, scores: Tensor, extra_scores: Tensor | None = None, lengths: Tensor | None = None
    ) -> Tensor:
        operators = self.inference_operators()
        if operators is None:
            raise NotImplementedError(self.intractable)
        return _autograd.log_partition(
            scores, extra_scores, lengths, self.option(extra_scores), operators
        )

    def marginals(
        self, scores: Tensor, extra_scores: Tensor | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        operators = self.inference_operators()
        if operators is None:
            raise NotImplementedError(self.intractable)
        return _autograd.marginals(
            scores, extra_scores, lengths, self.option(extra_scores), operators
        )


def _scattered(places: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """Counts (B, size) of the places (B, k), where −1 is none."""
    out = torch.zeros(len(places), size + 1, dtype=dtype, device=places.device)
    ones = torch.ones_like(places, dtype=dtype)
    return out.scatter_add(1, torch.where(places < 0, size, places), ones)[:, :size]


def _gathered(values: Tensor, places: Tensor) -> Tensor:
    """The sum (B) of values (B, size) at the places (B, k), where −1 is none."""
    found = values.gather(1, places.clamp(min=0))
    return torch.where(places < 0, 0.0, found).sum(1)


def inside(scores: Tensor, lengths: Tensor | None) -> Tensor:
    """Which entries of rows (B, d) belong to each instance."""
    d = scores.shape[1]
    places = torch.arange(d, device=scores.device).expand(scores.shape[:2])
    return places < (d if lengths is None else lengths)


def entries(scores: Tensor, lengths: Tensor | None, fill: float) -> Tensor:
    """Rows (B, d) filled behind the end of each; all NaN if an entry is NaN or +inf."""
    kept = inside(scores, lengths)
    spoiled = (kept & ~(scores < torch.inf)).any(1, keepdim=True)
    return torch.where(spoiled, torch.nan, torch.where(kept, scores, fill))
