"""Models and search."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ._values import dense_floats, kind, size

FEWER = "with fewer, a certificate says whether anything was missed"
LARGEST = {
    "beam": (8192, FEWER),
    "nbest": (8192, FEWER),
    "limit": (8192, FEWER),
    "max_length": (10_000, "an output that is longer is broken off, and said to be"),
    "batch_size": (65_536, "inputs are decoded in as many batches as they need"),
}
"""The largest sizes of a search, which bound its memory and its time, and what to do with them."""


def sequences(name: str, value: Tensor, dim: int) -> None:
    """Vectors of a batch of sequences, (batch, T, dim)."""
    dense_floats(name, value)
    if value.ndim != 3 or value.shape[-1] != dim:
        raise ValueError(f"`{name}` must have shape (batch, T, {dim}), got {tuple(value.shape)}.")


def decoders(models: Any, protocol: type) -> list[Any]:
    """One model or several, each with what a search needs, as a list."""
    found = list(models) if isinstance(models, list | tuple) else [models]
    for model in found:
        if not isinstance(model, protocol):
            raise TypeError(
                "`models` must be a model, or a list of models, with `start`, `step` and "
                f"`probabilities`; got {kind(model)}."
            )
    if not found:
        raise ValueError("`models` must hold at least one model, got none.")
    return found


def same_vocabularies(models: list[Any]) -> None:
    """Models of an ensemble, which read and write the same tokens; tables have no vocabularies."""
    for side in ("source", "target"):
        known = [m for m in (getattr(model, side, None) for model in models) if m is not None]
        if any(other.to_json() != known[0].to_json() for other in known[1:]):
            raise ValueError(
                f"the models of an ensemble must share their {side} vocabulary; train them on the "
                "same data."
            )


def same_classes(sizes: list[int]) -> None:
    """Models with target vocabularies of one size."""
    if len(set(sizes)) > 1:
        raise ValueError(
            f"the models of an ensemble must share their target vocabulary, got sizes {sizes}."
        )


def sources(source: Tensor, lengths: Tensor) -> None:
    """Tokens of a batch, and how many of each row are not padding."""
    for name, value in (("source", source), ("lengths", lengths)):
        if not isinstance(value, Tensor):
            raise TypeError(f"`{name}` must be a torch.Tensor, got {kind(value)}.")
        if value.dtype != torch.int64:
            raise TypeError(f"`{name}` must be int64, got {value.dtype}; convert it by `.long()`.")
    if source.ndim != 2 or lengths.shape != source.shape[:1]:
        raise ValueError(
            "`source` must have shape (B, S) and `lengths` (B,); "
            f"got {tuple(source.shape)} and {tuple(lengths.shape)}."
        )


def distributions(p: Tensor) -> None:
    """Rows of a model's output that are probabilities; NaN fails every comparison."""
    off = ~((p >= 0).all(-1) & ((p.sum(-1) - 1).abs() <= 1e-3))
    if off.any():
        row = p[off][0]
        what = (
            "NaN" if row.isnan().any() else f"entries from {row.min():g} that sum to {row.sum():g}"
        )
        raise ValueError(
            "a model's `probabilities` must be nonnegative and sum to one in every row; "
            f"got {what}."
        )


def too_large(name: str, value: int) -> str:
    """Why a size of a search cannot be so large, or nothing."""
    most, remedy = LARGEST[name]
    return f"must be at most {most}, got {value}; {remedy}." if value > most else ""


def search_size(name: str, value: Any) -> None:
    """A size of a search that its memory and its time allow."""
    size(name, value)
    if reason := too_large(name, value):
        raise ValueError(f"`{name}` {reason}")


def not_empty(name: str, text: str, ids: list[int]) -> None:
    """A text that holds at least one token."""
    if not ids:
        raise ValueError(f"`{name}` must hold at least one token, got {text!r}.")


def text(name: str, value: Any) -> None:
    """A text."""
    if not isinstance(value, str):
        raise TypeError(f"`{name}` must be a str, got {kind(value)}.")


def texts(values: Any) -> None:
    """A list of texts, which one text is not."""
    if isinstance(values, str):
        raise TypeError("`texts` must be a list of str, got a str; put it into a list.")
    for value in values:
        text("texts", value)
