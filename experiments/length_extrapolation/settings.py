"""What is trained and tested: all settings of the experiment, in full and for a quick look."""

from __future__ import annotations

from dataclasses import dataclass

ATTENTIONS = {
    "softmax": "softmax",
    "entmax": "entmax 1.5",
    "alpha": "entmax, learned α",
    "scaled": "entmax 1.5, scaled by length",
}
"""From the word of the command line to the name in tables."""
SCALE = {"delta": 1.0, "raw_beta": -1.5077, "gamma": 1.0}
"""Where δ + β (log n)^γ starts, in heads without positions. β = softplus(raw_beta), 0.2 here, is
never negative: else the scale could change its sign at lengths that training does not have."""
STEEPEST_SLOPE = 1.0
"""Of ALiBi. Half of the heads have no positions; in the others slopes fall by halves."""


@dataclass(frozen=True)
class Settings:
    """Of the synthetic tasks.

    Args:
        layers, width, heads: of each Transformer.
        seeds: how many are trained side by side.
        length: the longest training sequence, in tokens.
        batch: sequences in a step, for each seed.
        steps: of Adam.
        lr, warmup: the learning rate rises to `lr` in so many steps, and then falls to 0.
        chunk: steps between two states on disk.
        lengths: of the tests, in tokens.
        tokens: of a test, for each seed, between `min_sequences` and `max_sequences`.
        part: tokens that a test computes at a time, for each seed; one sequence at least.
    """

    layers: int = 2
    width: int = 128
    heads: int = 8
    seeds: int = 3
    length: int = 64
    batch: int = 128
    steps: int = 5000
    lr: float = 2e-3
    warmup: int = 200
    chunk: int = 1000
    lengths: tuple[int, ...] = (64, 128, 256, 1024, 4096, 16384, 65536)
    tokens: int = 131072
    min_sequences: int = 4
    max_sequences: int = 256
    part: int = 131072

    def num_sequences(self, length: int) -> int:
        """How many a test of that length has."""
        return min(max(self.tokens // length, self.min_sequences), self.max_sequences)


QUICK = Settings(
    width=32,
    heads=4,
    seeds=2,
    length=24,
    batch=8,
    steps=20,
    warmup=5,
    chunk=10,
    lengths=(24, 48),
    tokens=192,
    max_sequences=8,
    part=192,
)


@dataclass(frozen=True)
class LanguageSettings:
    """Of the language model.

    Args:
        layers, width, heads: of the Transformer.
        context: characters that it sees at once.
        batch: sequences in a step.
        steps: of Adam.
        lr, warmup: as for the tasks.
        chunk: steps between two losses on the held-out text.
        sequences: of the held-out text; its nonzeros are counted in the first `counted`.
    """

    layers: int = 4
    width: int = 256
    heads: int = 8
    context: int = 512
    batch: int = 32
    steps: int = 1500
    lr: float = 1e-3
    warmup: int = 100
    chunk: int = 250
    sequences: int = 128
    counted: int = 16


QUICK_LANGUAGE = LanguageSettings(
    layers=2, width=32, heads=4, context=32, batch=4, steps=8, chunk=4, sequences=4, counted=2
)


@dataclass(frozen=True)
class CacheSettings:
    """Of the language model whose cache is read.

    Args:
        layers, width, heads, batch, steps, lr, warmup: as for the language model.
        context: characters that it sees at once in training.
        chunk: steps between two losses that are printed.
        lengths: of the cache, in characters of the held-out text.
        queries: how many are measured at each length, among the last `spread` characters.
    """

    layers: int = 4
    width: int = 256
    heads: int = 4
    context: int = 8192
    batch: int = 2
    steps: int = 1500
    lr: float = 1e-3
    warmup: int = 100
    chunk: int = 500
    lengths: tuple[int, ...] = (8192, 32768, 131072)
    queries: int = 16
    spread: int = 1024


QUICK_CACHE = CacheSettings(
    layers=2,
    width=32,
    context=64,
    steps=4,
    chunk=2,
    lengths=(100, 300),
    queries=2,
    spread=64,
)
