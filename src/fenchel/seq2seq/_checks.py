"""Checks of texts, sources and sizes, for models and their search."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._checks import check_size, type_name
from .._search_sizes import too_large


def check_search_size(name: str, value: Any) -> None:
    """Checks a size of a search: a positive int, and not too large."""
    check_size(name, value)
    if reason := too_large(name, value):
        raise ValueError(f"`{name}` {reason}")


def check_sources(source: Any, lengths: Any) -> None:
    """Checks the tokens of a batch, (B, S), and how many of each row are not padding, (B,)."""
    for name, value in (("source", source), ("lengths", lengths)):
        if not isinstance(value, Tensor):
            raise TypeError(f"`{name}` must be a torch.Tensor, got {type_name(value)}.")
        if value.dtype != torch.int64:
            raise TypeError(f"`{name}` must be int64, got {value.dtype}; convert it by `.long()`.")
    if source.ndim != 2 or lengths.shape != source.shape[:1]:
        raise ValueError(
            "`source` must have shape (B, S) and `lengths` (B,); "
            f"got {tuple(source.shape)} and {tuple(lengths.shape)}."
        )


def check_text(name: str, value: Any) -> None:
    """Checks that a value is a text."""
    if not isinstance(value, str):
        raise TypeError(f"`{name}` must be a str, got {type_name(value)}.")


def check_texts(values: Any) -> None:
    """Checks a list of texts, and that it is not one text."""
    if isinstance(values, str):
        raise TypeError("`texts` must be a list of str, got a str; put it into a list.")
    for value in values:
        check_text("texts", value)


def check_not_empty(name: str, text: str, ids: list[int]) -> None:
    """Checks that a text holds at least one token."""
    if not ids:
        raise ValueError(f"`{name}` must hold at least one token, got {text!r}.")
