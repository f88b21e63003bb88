"""The Transformer: layers of attention and feedforward, with a layer norm before each part."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from ...attention import KeysValues, MultiHeadAttention
from ..config._schema import ModelConfig
from ._state import State, token_mask


def position_encoding(first: int, count: int, size: int, like: Tensor) -> Tensor:
    """Sines and cosines, (count, size), of `count` positions that start at `first`."""
    wide = torch.promote_types(like.dtype, torch.float32)
    position = torch.arange(first, first + count, device=like.device, dtype=wide)
    exponent = torch.arange(0, size, 2, device=like.device, dtype=wide)
    angle = position[:, None] * torch.exp(exponent * (-math.log(10_000.0) / size))
    interleaved = torch.stack([angle.sin(), angle.cos()], -1).flatten(1)
    return interleaved[:, :size].to(like.dtype)


class Embedding(nn.Module):
    """Token vectors, scaled, plus the encoding of their positions."""

    def __init__(self, count: int, config: ModelConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(count, config.hidden)
        self.dropout = nn.Dropout(config.dropout)
        nn.init.normal_(self.tokens.weight, std=config.hidden**-0.5)

    def forward(self, tokens: Tensor, first: int = 0) -> Tensor:
        x = self.tokens(tokens)
        length, size = x.shape[-2:]
        return self.dropout(x * math.sqrt(size) + position_encoding(first, length, size, x))


class _Layer(nn.Module):
    """Self-attention and a feedforward layer, and a layer norm before each part."""

    def __init__(self, config: ModelConfig, num_parts: int) -> None:
        super().__init__()
        size = config.hidden
        self.self_attention = self._attention(config)
        self.feedforward = nn.Sequential(
            nn.Linear(size, config.feedforward),
            nn.ReLU(),
            nn.Dropout(config.dropout),
            nn.Linear(config.feedforward, size),
        )
        self.norms = nn.ModuleList(nn.LayerNorm(size) for _ in range(num_parts))
        self.dropout = nn.Dropout(config.dropout)

    @staticmethod
    def _attention(config: ModelConfig) -> MultiHeadAttention:
        attention = config.attention
        return MultiHeadAttention(
            config.hidden, config.heads, attention.build(), attention.learned_alpha
        )


class EncoderLayer(_Layer):
    """A layer in which every position attends to all."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config, num_parts=2)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """The outputs (B, S, H). The mask, (B, 1, 1, S), is false at padding."""
        x = x + self.dropout(self.self_attention(self.norms[0](x), mask=mask))
        return x + self.dropout(self.feedforward(self.norms[1](x)))


class DecoderLayer(_Layer):
    """A layer in which a position attends to itself, to those before it, and to the memory."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config, num_parts=3)
        self.cross_attention = self._attention(config)

    def forward(
        self, x: Tensor, cache: KeysValues, memory: KeysValues, mask: Tensor, need_weights: bool
    ) -> tuple[Tensor, Tensor | None, KeysValues]:
        """The outputs (B, T, H), the weights of the memory (B, heads, T, S) if needed, and the
        longer cache. T is 1 unless the cache is empty."""
        normal = self.norms[0](x)
        cache = cache.append(self.self_attention.project(normal))
        x = x + self.dropout(self.self_attention.attend(normal, cache, causal=x.shape[1] > 1))
        attended = self.cross_attention.attend(self.norms[1](x), memory, mask, weights=need_weights)
        output, weights = attended if isinstance(attended, tuple) else (attended, None)
        x = x + self.dropout(output)
        return x + self.dropout(self.feedforward(self.norms[2](x))), weights, cache


class Transformer(nn.Module):
    """An encoder and a decoder.

    Args:
        config: of the model.
        source, target: the sizes of the vocabularies.

    References: vaswani2017attention, correia2019adaptively.
    """

    def __init__(self, config: ModelConfig, source: int, target: int) -> None:
        super().__init__()
        self.heads, self.size = config.heads, config.hidden
        self.source_embedding = Embedding(source, config)
        self.target_embedding = Embedding(target, config)
        layers = range(config.layers)
        self.encoder = nn.ModuleList(EncoderLayer(config) for _ in layers)
        self.decoder: Any = nn.ModuleList(DecoderLayer(config) for _ in layers)
        self.encoder_norm = nn.LayerNorm(config.hidden)
        self.decoder_norm = nn.LayerNorm(config.hidden)

    @property
    def target_weight(self) -> Tensor:
        """The target tokens' vectors, (V, size)."""
        return self.target_embedding.tokens.weight

    def start(self, source: Tensor, lengths: Tensor) -> tuple[State, Tensor]:
        """The state before the first token, of source (B, S) and lengths (B,); and the memory, the
        encoder's outputs (B, S, H)."""
        mask = token_mask(source, lengths)
        x = self.source_embedding(source)
        for layer in self.encoder:
            x = layer(x, mask[:, None, None])
        x = self.encoder_norm(x)
        state: State = {"mask": mask}
        for number, layer in enumerate(self.decoder):
            state[f"memory{number}"] = layer.cross_attention.project(x)
            state[f"cache{number}"] = layer.self_attention.project(x[:, :0])
        return state, x

    def step(self, state: State, tokens: Tensor) -> tuple[Tensor, Tensor, State]:
        """The last layer's outputs (B, H), its weights (B, heads, S) and the next state."""
        x, weights, state = self._decode(state, tokens.unsqueeze(1), need_weights=True)
        return x.squeeze(1), weights.squeeze(2), state

    def forward(
        self, source: Tensor, lengths: Tensor, tokens: Tensor, need_weights: bool
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """The last layer's outputs (B, T, H), its weights (B, T, heads, S) if needed, and the
        memory."""
        state, memory = self.start(source, lengths)
        x, weights, _ = self._decode(state, tokens, need_weights)
        return x, None if weights is None else weights.transpose(1, 2), memory

    def _decode(
        self, state: State, tokens: Tensor, need_weights: bool
    ) -> tuple[Tensor, Any, State]:
        """Outputs (B, T, H), the last layer's weights (B, heads, T, S) if needed, the new state."""
        x = self.target_embedding(tokens, state["cache0"].length)
        mask, weights, last = state["mask"][:, None, None], None, len(self.decoder) - 1
        new_state = dict(state)
        for number, layer in enumerate(self.decoder):
            cache, memory = (state[f"{name}{number}"] for name in ("cache", "memory"))
            x, weights, new_state[f"cache{number}"] = layer(
                x, cache, memory, mask, need_weights and number == last
            )
        return self.decoder_norm(x), weights, new_state
