"""Attention as a layer: several heads, any mapping, alpha learnt per head, cached keys."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .. import _checks
from ..mappings import AbstractMapping
from ..nn import Mapping, as_module
from ._alpha import WithoutAlpha, initial_alpha, learned, reset_alpha
from ._attend import attend
from ._attention import attention
from ._cache import KeysValues
from ._checks import check_heads, check_sequences


class MultiHeadAttention(nn.Module):
    """Attention in several heads, each with its own part of the linear maps of its inputs.

    Args:
        dim: the size of queries, memory and output.
        heads: how many; they divide `dim`.
        mapping: of the scores to the weights, a mapping, the name of a registered one, or a
            `fenchel.nn.Mapping`. A tensor among its parameters broadcasts against
            (batch, heads, T, 1), and becomes a parameter of the layer or a buffer.
        learned_alpha: whether each head learns its α = 1 + sigmoid(parameter), between softmax and
            sparsemax, from the mapping's own on; for entmax with 1 < α < 2.
        bias: whether the linear maps have one.
        dropout: the probability of setting a weight to zero in training.
        key_heads: how many heads keys and values have, each for heads/key_heads of the query; as
            many as these by default.
        alibi: whether scores fall with the distance of query and key, in head h of n = `heads` by
            2^(−8h/n) for each place, h = 1 to n.
        sinks: whether each head learns a score for attending to nothing.
        scale: the factor of the scores, 1/√(dim/heads) by default; a number, or a tensor that
            broadcasts against (batch, heads, T, 1), and becomes a parameter or a buffer.
        softcap: above 0, scores are softcap · tanh(score / softcap).
    Raises:
        TypeError, ValueError: for arguments of the wrong kind or value.

    >>> layer = MultiHeadAttention(8, heads=2, mapping="sparsemax")
    >>> output, weights = layer(torch.ones(1, 3, 8), weights=True)
    >>> output.shape, weights.shape
    (torch.Size([1, 3, 8]), torch.Size([1, 2, 3, 3]))

    References: correia2019adaptively.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        mapping: AbstractMapping | Mapping | str = "softmax",
        learned_alpha: bool = False,
        bias: bool = True,
        dropout: float = 0.0,
        *,
        key_heads: int | None = None,
        alibi: bool = False,
        sinks: bool = False,
        scale: float | Tensor | None = None,
        softcap: float = 0.0,
    ) -> None:
        super().__init__()
        key_heads = heads if key_heads is None else key_heads
        check_heads(dim, heads, key_heads)
        _checks.check_number("dropout", dropout, minimum=0, maximum=1)
        _checks.check_number("softcap", softcap, minimum=0)
        if scale is not None:
            _checks.check_real("scale", scale)
        self.dim, self.heads, self.key_heads, self.dropout = dim, heads, key_heads, dropout
        self.softcap, self.has_alibi = softcap, alibi
        self.scale: float | Tensor | None
        if isinstance(scale, Tensor) and not isinstance(scale, nn.Parameter):
            self.register_buffer("scale", scale)
        else:
            self.scale = scale
        self.given = as_module(mapping)
        self.alpha_logit: nn.Parameter | None = None
        if learned_alpha:
            self.initial_alpha = initial_alpha(self.given.mapping, heads)
            self.given = WithoutAlpha(self.given.mapping)
            self.alpha_logit = nn.Parameter(torch.empty(heads))
        self.sinks = nn.Parameter(torch.empty(heads)) if sinks else None
        self.query = nn.Linear(dim, dim, bias)
        self.key_value = nn.Linear(dim, 2 * key_heads * (dim // heads), bias)
        self.output = nn.Linear(dim, dim, bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new linear maps, and sets alpha and sinks to what they were at first. The mapping's
        own tensors and the scale stay."""
        for linear in (self.query, self.key_value, self.output):
            nn.init.xavier_uniform_(linear.weight)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)
        if self.sinks is not None:
            nn.init.zeros_(self.sinks)
        if self.alpha_logit is not None:
            reset_alpha(self.alpha_logit, self.initial_alpha)

    @property
    def alibi(self) -> Tensor | None:
        """The slopes of the heads, (heads,), in at least float32."""
        if not self.has_alibi:
            return None
        weight = self.query.weight
        dtype = torch.promote_types(weight.dtype, torch.float32)
        head = torch.arange(1, self.heads + 1, dtype=dtype, device=weight.device)
        return 2.0 ** (-8 * head / self.heads)

    @property
    def mapping(self) -> AbstractMapping:
        """The mapping of the scores, with the alpha that is learnt."""
        if self.alpha_logit is None:
            return self.given.mapping
        return learned(self.given.mapping, self.alpha_logit[:, None, None])

    def project(self, memory: Tensor) -> KeysValues:
        """The keys and values of a memory (batch, S, dim), for many calls of `attend`."""
        check_sequences("memory", memory, self.dim)
        return KeysValues(*self._split(self.key_value(memory), 2 * self.key_heads).chunk(2, 1))

    def attend(
        self,
        query: Tensor,
        memory: KeysValues,
        mask: Tensor | None = None,
        causal: bool | str = False,
        weights: bool = False,
        *,
        window: int | tuple[int | None, int | None] | None = None,
        key_lengths: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        query_lengths: Tensor | None = None,
        pages: bool = False,
    ) -> Tensor | tuple[Tensor, ...]:
        """The same as the layer itself, for a memory that is already projected.

        Args:
            query: (batch, T, dim).
            memory: the keys and values from `project`, perhaps with `append`.
            mask, causal, weights, window, key_lengths, cu_seqlens, query_lengths: as for the layer.
            pages: whether to return how many pages of 64 keys were read for each sequence and head
                of the keys, (batch, key_heads), too. These are few if `fenchel.attention.attend`
                can skip some: without gradients, mask, weights and packed sequences.

        >>> layer = MultiHeadAttention(4, heads=1)
        >>> x = torch.randn(1, 5, 4)
        >>> cache = layer.project(x[:, :3]).append(layer.project(x[:, 3:]))
        >>> last = layer.attend(x[:, 3:], cache, causal="lower_right")
        >>> torch.allclose(last, layer(x, causal=True)[:, 3:], atol=1e-6)
        True
        """
        check_sequences("query", query, self.dim)
        rows = self._split(self.query(query), self.heads)
        dropout = self.dropout if self.training else 0.0
        options = {
            "causal": causal,
            "window": window,
            "key_lengths": key_lengths,
            "alibi": self.alibi,
            "softcap": self.softcap,
            "sinks": self.sinks,
        }
        found: Any
        limits = (mask, cu_seqlens, query_lengths)
        if all(x is None for x in limits) and not weights and not dropout:
            found = attend(rows, memory, self.mapping, self.scale, pages=pages, **options)
        else:
            found = attention(
                rows,
                *memory.for_reading(),
                self.mapping,
                mask,
                self.scale,
                query_lengths=query_lengths,
                cu_seqlens_q=cu_seqlens,
                dropout=dropout,
                weights=weights,
                **options,
            )
            if pages:
                found = (*(found if weights else (found,)), memory.all_pages(query.shape[1]))
        output, *others = found if isinstance(found, tuple) else (found,)
        output = self.output(output.transpose(1, 2).flatten(2))
        return (output, *others) if others else output

    def forward(
        self,
        query: Tensor,
        memory: Tensor | None = None,
        mask: Tensor | None = None,
        causal: bool | str = False,
        weights: bool = False,
        *,
        window: int | tuple[int | None, int | None] | None = None,
        key_lengths: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        query_lengths: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, ...]:
        """Attends with each query to the memory.

        Args:
            query: (batch, T, dim).
            memory: (batch, S, dim), by default the queries themselves.
            mask: broadcasts to (batch, heads, T, S); true, or 0, where a query may attend; false,
                or −inf, where it must not.
            causal: whether a query attends only to positions up to its own, with the first query
                at the first key (True, "upper_left") or the last at the last ("lower_right").
            weights: whether to return the weights, too; they are those before dropout.
            window: how far a query sees, as for `attention`.
            key_lengths: (batch,), how many positions each sequence of the memory has.
            cu_seqlens: (n + 1,), where each of n sequences that are packed one behind the other
                starts, and where the last ends; for self-attention.
            query_lengths: (batch,), how many queries each sequence has; those behind attend to
                nothing.
        Returns:
            (batch, T, dim), and if asked for the weights, (batch, heads, T, S).
        """
        check_sequences("query", query, self.dim)
        memory = query if memory is None else memory
        return self.attend(
            query,
            self.project(memory),
            mask,
            causal,
            weights,
            window=window,
            key_lengths=key_lengths,
            cu_seqlens=cu_seqlens,
            query_lengths=query_lengths,
        )

    def extra_repr(self) -> str:
        scale = tuple(self.scale.shape) if isinstance(self.scale, Tensor) else self.scale
        options = {
            "key_heads": self.key_heads if self.key_heads != self.heads else None,
            "learned_alpha": self.alpha_logit is not None,
            "dropout": self.dropout,
            "alibi": self.has_alibi,
            "sinks": self.sinks is not None,
            "scale": scale,
            "softcap": self.softcap,
        }
        shown = {"dim": self.dim, "heads": self.heads} | {k: x for k, x in options.items() if x}
        return ", ".join(f"{name}={value}" for name, value in shown.items())

    @staticmethod
    def _split(x: Tensor, heads: int) -> Tensor:
        """(batch, T, heads · d) as (batch, heads, T, d)."""
        return x.unflatten(-1, (heads, -1)).transpose(1, 2)
