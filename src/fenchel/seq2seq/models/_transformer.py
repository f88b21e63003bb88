"""The Transformer: layers of attention and feedforward, normalized before each."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from ...attention import KeysValues, MultiHeadAttention
from ..config._schema import ModelConfig
from ._state import State, places


def positions(first: int, count: int, size: int, like: Tensor) -> Tensor:
    """Sines and cosines, (count, size), of the places from the first on."""
    wide = torch.promote_types(like.dtype, torch.float32)
    place = torch.arange(first, first + count, device=like.device, dtype=wide)
    rate = torch.arange(0, size, 2, device=like.device, dtype=wide)
    angle = place[:, None] * torch.exp(rate * (-math.log(10_000.0) / size))
    both = torch.stack([angle.sin(), angle.cos()], -1).flatten(1)
    return both[:, :size].to(like.dtype)


class Embedding(nn.Module):
    """Token vectors, scaled, plus positions."""

    def __init__(self, count: int, config: ModelConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(count, config.hidden)
        self.dropout = nn.Dropout(config.dropout)
        nn.init.normal_(self.tokens.weight, std=config.hidden**-0.5)

    def forward(self, tokens: Tensor, first: int = 0) -> Tensor:
        x = self.tokens(tokens)
        size = x.shape[-1]
        return self.dropout(x * math.sqrt(size) + positions(first, tokens.shape[1], size, x))


class _Layer(nn.Module):
    """Self-attention and a feedforward layer, and a normalization before each part."""

    def __init__(self, config: ModelConfig, parts: int) -> None:
        super().__init__()
        size = config.hidden
        self.own = self._attention(config)
        self.feedforward = nn.Sequential(
            nn.Linear(size, config.feedforward),
            nn.ReLU(),
            nn.Dropout(config.dropout),
            nn.Linear(config.feedforward, size),
        )
        self.norms = nn.ModuleList(nn.LayerNorm(size) for _ in range(parts))
        self.dropout = nn.Dropout(config.dropout)

    @staticmethod
    def _attention(config: ModelConfig) -> MultiHeadAttention:
        mapping, learns = config.attention.build(), config.attention.learned_alpha
        return MultiHeadAttention(config.hidden, config.heads, mapping, learns)


class EncoderLayer(_Layer):
    """A layer whose places look at one another."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config, parts=2)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(B, S, H), each place looking at those that the mask, (B, 1, 1, S), keeps."""
        x = x + self.dropout(self.own(self.norms[0](x), mask=mask))
        return x + self.dropout(self.feedforward(self.norms[1](x)))


class DecoderLayer(_Layer):
    """A layer whose places look at those before them, and at the memory."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config, parts=3)
        self.cross = self._attention(config)

    def forward(
        self, x: Tensor, cache: KeysValues, memory: KeysValues, mask: Tensor, weights: bool
    ) -> tuple[Tensor, Tensor | None, KeysValues]:
        """The outputs of one place (B, 1, H) after those in the cache, or of several (B, T, H) if
        it is empty; the weights of the memory, (B, heads, T, S), if asked for; and the cache with
        these places."""
        normal = self.norms[0](x)
        cache = cache.append(self.own.project(normal))
        x = x + self.dropout(self.own.attend(normal, cache, causal=x.shape[1] > 1))
        found = self.cross.attend(self.norms[1](x), memory, mask, weights=weights)
        output, weight = found if isinstance(found, tuple) else (found, None)
        x = x + self.dropout(output)
        return x + self.dropout(self.feedforward(self.norms[2](x))), weight, cache


class Transformer(nn.Module):
    """An encoder and a decoder of layers that are normalized before each part.

    Args:
        config: of the model.
        source, target: the sizes of the vocabularies.

    References: vaswani2017attention, correia2019adaptively.
    """

    def __init__(self, config: ModelConfig, source: int, target: int) -> None:
        super().__init__()
        self.heads, self.size = config.heads, config.hidden
        self.source, self.target = Embedding(source, config), Embedding(target, config)
        count = range(config.layers)
        self.encoder = nn.ModuleList(EncoderLayer(config) for _ in count)
        self.decoder: Any = nn.ModuleList(DecoderLayer(config) for _ in count)
        self.encoded, self.decoded = nn.LayerNorm(config.hidden), nn.LayerNorm(config.hidden)

    @property
    def target_weight(self) -> Tensor:
        """The target tokens' vectors, (V, size)."""
        return self.target.tokens.weight

    def start(self, source: Tensor, lengths: Tensor) -> State:
        kept = places(source, lengths)
        x = self.source(source)
        for layer in self.encoder:
            x = layer(x, kept[:, None, None])
        x = self.encoded(x)
        state = {"mask": kept}
        for place, layer in enumerate(self.decoder):
            memory = torch.stack(layer.cross.project(x), 1)
            state[f"memory{place}"] = memory
            state[f"cache{place}"] = memory[..., :0, :]
        return state

    def step(self, state: State, tokens: Tensor) -> tuple[Tensor, Tensor, State]:
        """The last layer's outputs (B, H), its weights (B, heads, S) and the next state."""
        x, weights, state = self._decode(state, tokens.unsqueeze(1), True)
        return x.squeeze(1), weights.squeeze(2), state

    def forward(
        self, source: Tensor, lengths: Tensor, tokens: Tensor, weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """The last layer's outputs (B, T, H) and, if asked for, its weights (B, T, heads, S)."""
        x, found, _ = self._decode(self.start(source, lengths), tokens, weights)
        return x, None if found is None else found.transpose(1, 2)

    def _decode(self, state: State, tokens: Tensor, weights: bool) -> tuple[Tensor, Any, State]:
        x = self.target(tokens, state["cache0"].shape[-2])
        mask, found, last = state["mask"][:, None, None], None, len(self.decoder) - 1
        after = dict(state)
        for place, layer in enumerate(self.decoder):
            cache = KeysValues(*state[f"cache{place}"].unbind(1))
            memory = KeysValues(*state[f"memory{place}"].unbind(1))
            x, found, cache = layer(x, cache, memory, mask, weights and place == last)
            after[f"cache{place}"] = torch.stack(cache, 1)
        return self.decoded(x), found, after
