"""Attention as the models of transformers call it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ...attention import attention
from ...attention._alpha import learned
from ...attention._dense import widened
from ...mappings import AbstractMapping
from ...mappings._entmax import Entmax
from ...mappings._softmax import Softmax
from ._light import has_order, has_window, is_lengths

_NOT_GIVEN: Any = object()


def attention_with(mapping: AbstractMapping) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """Attention with this mapping, as `AttentionInterface` registers it."""
    fixed = mapping
    if isinstance(mapping, Entmax) and not isinstance(mapping.alpha, Tensor) and mapping.alpha == 1:
        fixed = Softmax(gamma=mapping.gamma)  # the same, and torch has kernels for it

    def forward(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        is_causal: bool | None = None,
        sliding_window: int | None = _NOT_GIVEN,
        softcap: float | None = None,
        s_aux: Tensor | None = None,
        position_bias: Tensor | None = None,
        cache: Any = None,
        output_attentions: bool | None = None,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """The outputs (B, T, H, E), and the weights (B, H, T, S) if they are asked for.

        Args:
            module: the layer of attention.
            query: (B, H, T, D).
            key, value: (B, G, S, D) and (B, G, S, E).
            attention_mask: from `light_mask`, or one of four dimensions that a user gave.
            dropout, scaling, softcap: as for `attention`.
            is_causal: if not given, the module knows.
            sliding_window: how many keys a query sees, with its own; a light mask knows better.
            s_aux: (H,), sinks.
            position_bias: broadcasts to (B, H, T, S), added to the scores.
            cache: that of continuous batching, which keeps keys and values.
            output_attentions: whether the weights are wanted; if not given, the module knows.
            options: what else a model passes on. Packed sequences are in `cu_seq_lens_q` and
                `cu_seq_lens_k`.
        """
        rows, mask, causal = query.shape[0], attention_mask, "lower_right"
        pattern: dict[str, Any] = {}
        if options.get("indices") is not None:
            raise ValueError(
                f"{type(module).__name__} chooses keys for each query, which only "
                '`attn_implementation="eager"`, "sdpa" and kernels for this model take.'
            )
        if cache is not None:
            key, value = cache.update(key, value, module.layer_idx, options)
            mask = None
        is_light = has_order(mask)
        in_order = is_light or _knows_order(module, is_causal, mask, query.shape[2])
        window = _window(module, sliding_window, mask, cache is not None) if in_order else None
        if mask is not None and is_lengths(mask):
            if mask.shape[2] in (1, query.shape[2]):
                pattern["key_lengths"], causal = mask[:, 0, 0, 0].int(), "upper_left"
            elif options.get("cu_seq_lens_q") is None:
                pattern["cu_seqlens_q"] = mask.flatten().int()
                query, key, value = (_in_one_row(x) for x in (query, key, value))
            mask = None
        if options.get("cu_seq_lens_q") is not None:
            pattern["cu_seqlens_q"] = options["cu_seq_lens_q"]
            pattern["cu_seqlens_k"] = options["cu_seq_lens_k"]
        if mask is not None:
            width, mask = mask.shape[-1], _in_one_piece(mask)
            if is_light or mask is not None:
                key, value = key[:, :, :width], value[:, :, :width]
        if in_order:
            pattern.update(causal=causal, window=window)
        if output_attentions is None:
            output_attentions = getattr(_config(module), "output_attentions", False)
        found = attention(
            query,
            key,
            value,
            _with_learned_alpha(module, mapping, query.shape[1]) or fixed,
            _with_bias(mask, position_bias, key.shape[2]),
            scaling,
            softcap=softcap or 0.0,
            sinks=s_aux,
            dropout=dropout,
            weights=bool(output_attentions),
            **pattern,
        )
        output, weights = found if isinstance(found, tuple) else (found, None)
        if output.shape[0] != rows:
            output = output[0].unflatten(1, (rows, -1)).transpose(0, 1)
            weights = None if weights is None else _inside_rows(weights, rows)
        return output.transpose(1, 2).contiguous(), weights

    return forward


def _with_learned_alpha(
    module: nn.Module, mapping: AbstractMapping, num_heads: int
) -> Entmax | None:
    """The mapping with the α that the module learns; None if it learns none."""
    logit: Tensor | None = getattr(module, "alpha_logit", None)
    if logit is None:
        return None
    if not isinstance(mapping, Entmax):
        raise ValueError(
            f"`learn_alpha` is for entmax, and this model's attention is {mapping.name}; choose "
            '`attn_implementation="fenchel_entmax"`.'
        )
    if len(logit) != num_heads:
        raise ValueError(
            f"{type(module).__name__} has {num_heads} heads, but `alpha_logit` is for "
            f"{len(logit)}; replace it by a parameter of shape ({num_heads},)."
        )
    return learned(mapping, widened(logit)[:, None, None])


def _config(module: nn.Module) -> Any:
    return getattr(module, "config", None)


def _knows_order(
    module: nn.Module, is_causal: bool | None, mask: Tensor | None, num_queries: int
) -> bool:
    """Whether queries see no later keys although no light mask says so.

    As in transformers' own implementations, a module that does not say what it is has order, unless
    it brings a mask of its own.
    """
    if mask is not None and mask.shape[2] == num_queries:
        return False
    if is_causal is not None:
        return is_causal
    if not getattr(_config(module), "is_causal", True):
        return False
    if hasattr(module, "is_causal"):
        return bool(module.is_causal)
    brings_its_own = mask is not None and mask.is_floating_point()
    across = getattr(_config(module), "cross_attention_layers", None) or ()
    return not brings_its_own and getattr(module, "layer_idx", None) not in across


def _in_one_piece(mask: Tensor) -> Tensor | None:
    """The mask (B, 1, T, S) as one row if memory has but one, and as None if it hides nothing."""
    if mask.shape[2] > 1 and mask.stride(2) != 0:
        return mask
    is_one = len(mask) == 1 and mask.shape[3] > 1 and mask.stride(3) == 0
    is_light = mask.dtype in (torch.int8, torch.int16)
    if is_one and (is_light or mask.dtype == torch.bool):
        return None
    return mask[:, :, :1].bool() if is_light else mask[:, :, :1]


def _window(
    module: nn.Module, sliding_window: int | None, mask: Tensor | None, is_paged: bool
) -> int | None:
    """The window of a layer with order: what its mask was asked for.

    Without such a mask it is what the layer passes on. A few do not; then it is the configuration's
    for a layer of that type. If there are no types, only continuous batching takes the
    configuration to mean all layers, whose models may ignore it.
    """
    config = _config(module)
    if mask is not None and has_order(mask):
        return config.sliding_window if has_window(mask) else None
    if sliding_window is not _NOT_GIVEN:
        return sliding_window
    layers = getattr(config, "layer_types", None)
    applies = is_paged if layers is None else layers[module.layer_idx] == "sliding_attention"
    return getattr(config, "sliding_window", None) if applies else None


def _with_bias(mask: Tensor | None, bias: Tensor | None, width: int) -> Tensor | None:
    """One mask from what hides keys and what is added to scores."""
    if bias is None:
        return mask
    bias = bias[..., :width]
    if mask is None:
        return bias
    return bias.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else bias + mask


def _in_one_row(x: Tensor) -> Tensor:
    """(B, H, T, D) as (1, H, B·T, D)."""
    return x.transpose(0, 1).flatten(1, 2)[None]


def _inside_rows(weights: Tensor, rows: int) -> Tensor:
    """Of the weights (1, H, B·T, B·T) those inside each row, (B, H, T, T)."""
    blocks = weights[0].unflatten(-1, (rows, -1)).unflatten(1, (rows, -1))  # (H, B, T, B, T)
    return blocks.diagonal(dim1=1, dim2=3).permute(3, 0, 1, 2)
