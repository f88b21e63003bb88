"""Problems of attention with every feature, and their solutions by definition."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from attention_truth import attention_truth
from fenchel import Entmax, mappings

B, H, G, T, S, D, E = 2, 4, 2, 5, 7, 3, 2
DROPOUT = 0.3


WAYS = ("dense", "blocks", "fused")


def take(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes `attention` compute in one of the ways, whatever it would choose."""
    if way == "blocks":
        monkeypatch.setattr("fenchel.attention._blocks.MAX_SCORES", 20)
    monkeypatch.setattr("fenchel.attention._attention.is_fused", lambda *_: way == "fused")


def vectors(
    heads: int = H, groups: int = G, queries: int = T, keys: int = S, dtype: Any = torch.float64
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values that need gradients."""
    shapes = ((heads, queries, D), (groups, keys, D), (groups, keys, E))
    query, key, value = (torch.randn(B, *shape, dtype=dtype) for shape in shapes)
    return query.requires_grad_(), key.requires_grad_(), value.requires_grad_()


def _random(*shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
    return (low + (high - low) * torch.rand(*shape, dtype=torch.float64)).requires_grad_()


def feature(name: str) -> dict[str, Any]:
    """The arguments of one feature."""
    added = torch.randn(T, S, dtype=torch.float64).masked_fill(torch.rand(T, S) > 0.8, -torch.inf)
    return {
        "none": dict,
        "causal": lambda: {"causal": True},
        "lower_right": lambda: {"causal": "lower_right"},
        "window": lambda: {"window": 1},
        "window_pair": lambda: {"window": (2, None)},
        "causal_window": lambda: {"causal": True, "window": 2},
        "lower_right_window": lambda: {"causal": "lower_right", "window": (2, 5)},
        "key_lengths": lambda: {"key_lengths": torch.tensor([4, 0])},
        "lengths": lambda: {
            "key_lengths": torch.tensor([4, 7], dtype=torch.int32),
            "query_lengths": torch.tensor([5, 3]),
        },
        "packed": lambda: {
            "cu_seqlens_q": torch.tensor([0, 2, 2, 4]),
            "cu_seqlens_k": torch.tensor([0, 3, 4, 6], dtype=torch.int32),
        },
        "bool": lambda: {"mask": torch.rand(H, T, S) > 0.4},
        "float": lambda: {"mask": added.requires_grad_()},
        "key_mask": lambda: {"mask": torch.rand(B, 1, 1, S) > 0.4},
        "alibi": lambda: {"alibi": _random(H)},
        "softcap": lambda: {"softcap": 0.7},
        "sinks": lambda: {"sinks": _random(H, low=-1.0)},
        "scale": lambda: {"scale": 0.3},
        "scale_tensor": lambda: {"scale": _random(H, 1, 1, low=0.2)},
        "scale_per_query": lambda: {"scale": _random(B, 1, T, 1, low=0.2)},
        "dropout": lambda: {"dropout": DROPOUT},
    }[name]()


FEATURES = (
    "none",
    "causal",
    "lower_right",
    "window",
    "window_pair",
    "causal_window",
    "lower_right_window",
    "key_lengths",
    "lengths",
    "packed",
    "bool",
    "float",
    "key_mask",
    "alibi",
    "softcap",
    "sinks",
    "scale",
    "scale_tensor",
    "scale_per_query",
    "dropout",
)


def _places(options: dict[str, Any], queries: int, keys: int) -> Any:
    """For sequence b and query t: its place, and the first and last + 1 of its sequence's keys;
    None for a query that is in no sequence."""
    last = options.get("causal") == "lower_right"

    def at(b: int, t: int) -> tuple[int, int, int] | None:
        if "cu_seqlens_q" in options:
            q = options["cu_seqlens_q"].tolist()
            k = options.get("cu_seqlens_k", options["cu_seqlens_q"]).tolist()
            for i in range(len(q) - 1):
                if q[i] <= t < q[i + 1]:
                    place = k[i + 1] - q[i + 1] + t if last else k[i] + t - q[i]
                    return place, k[i], k[i + 1]
            return None
        count = int(options["query_lengths"][b]) if "query_lengths" in options else queries
        stop = int(options["key_lengths"][b]) if "key_lengths" in options else keys
        return None if t >= count else (t + stop - count if last else t, 0, stop)

    return at


def sees(options: dict[str, Any], queries: int, keys: int) -> Any:
    """Whether query t of sequence b sees key j, from the documentation of the arguments."""
    at, causal, window = (
        _places(options, queries, keys),
        options.get("causal"),
        options.get("window"),
    )

    def look(b: int, t: int, j: int) -> bool:
        found = at(b, t)
        if found is None:
            return False
        place, first, stop = found
        if not first <= j < stop or (causal and j > place):
            return False
        if window is None:
            return True
        if isinstance(window, tuple):
            left, right = window
            return (left is None or place - j <= left) and (right is None or j - place <= right)
        return place - j < window if causal else abs(place - j) <= window

    return look


def solution(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mapping: Any,
    options: dict[str, Any],
    keep: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Outputs and weights by definition. `mapping`: one, or a function of (b, h, t). `keep`: what
    dropout multiplies the weights by."""
    queries, keys = query.shape[2], key.shape[2]
    at = _places(options, queries, keys)
    scale: Any = options.get("scale", D**-0.5)
    scale = scale.squeeze(-1) if isinstance(scale, Tensor) else scale

    def per_head(name: str) -> Any:
        return options[name][:, None] if name in options else None

    return attention_truth(
        query,
        key,
        value,
        mapping if not isinstance(mapping, mappings.AbstractMapping) else lambda b, h, t: mapping,
        sees(options, queries, keys),
        lambda b, t: (at(b, t) or (0,))[0],
        scale=scale,
        slopes=per_head("alibi"),
        sinks=per_head("sinks"),
        mask=options.get("mask"),
        keep=keep,
        softcap=options.get("softcap", 0.0),
    )


def learned(options: dict[str, Any]) -> dict[str, Tensor]:
    """The arguments that need gradients."""
    return {name: x for name, x in options.items() if isinstance(x, Tensor) and x.requires_grad}


def adaptive() -> tuple[Entmax, Any, tuple[Tensor, Tensor]]:
    """Entmax with an α per head and a γ per query, its instance at (b, h, t), and both tensors."""
    alpha, gamma = _random(H, 1, 1, low=1.2, high=2.5), _random(B, 1, T, 1, low=0.5, high=2.0)

    def at(b: int, h: int, t: int) -> Entmax:
        return Entmax(alpha[h, 0, 0], gamma=gamma[b, 0, t, 0])

    return Entmax(alpha, gamma=gamma), at, (alpha, gamma)
