"""Which pages of its cache a trained language model with a long context reads."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy, rms_norm, scaled_dot_product_attention

from fenchel import Entmax
from fenchel.attention import KeysValues, attend, attention

from . import attentions
from .language import Text
from .results import CACHE, Results, Row
from .settings import CacheSettings
from .train import MAX_NORM, Clock, Step, autocast

PAGE = 64
POSITIONS = ("rotation", "slopes")
"""RoPE in all heads, or ALiBi in half of them and nothing in the others."""
KINDS = ("entmax", "softmax")
"""Of `settings.ATTENTIONS`: what a model is trained with."""
ALPHA = 1.5
ROTATION_BASE = 500_000.0
REPEATS = {"cuda": 15, "cpu": 5}
"""Calls of which a time is the median."""


class Cached(nn.Module):
    """A Transformer that predicts the next character, at any length.

    Args:
        size: how many characters there are.
        kind: of attention.
        positions: one of POSITIONS.
        settings: its shape.
    """

    def __init__(self, size: int, kind: str, positions: str, settings: CacheSettings) -> None:
        super().__init__()
        width, layers = settings.width, settings.layers
        self.kind, self.positions, self.heads = kind, positions, settings.heads
        self.embedding = nn.Embedding(size, width)
        nn.init.normal_(self.embedding.weight, std=width**-0.5)
        self.inputs = nn.ModuleList(nn.Linear(width, 3 * width, bias=False) for _ in range(layers))
        self.outputs = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers))
        self.networks = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(layers)
        )

    def forward(self, tokens: Tensor, num_last: int | None = None) -> Tensor:
        """The scores of what follows the last tokens, all by default, (B, T, characters)."""
        return self._run(tokens, num_last, [])

    def vectors(self, tokens: Tensor) -> tuple[Tensor, ...]:
        """The queries, keys and values of one sequence (1, T), as attention takes them, (layers,
        heads, T, d) each."""
        found: list[tuple[Tensor, ...]] = []
        self._run(tokens, 1, found)
        return tuple(torch.cat(each) for each in zip(*found, strict=True))

    def loss(self, rows: Tensor, num_last: int | None = None) -> Tensor:
        """−log p of a character, on average over the last of the rows (B, T + 1)."""
        scores = self(rows[:, :-1], num_last).flatten(0, 1).float()
        return cross_entropy(scores, rows[:, 1:][:, -(num_last or 0) :].flatten())

    def _run(self, tokens: Tensor, num_last: int | None, kept: list[tuple[Tensor, ...]]) -> Tensor:
        x = self.embedding(tokens)
        for inputs, outputs, network in zip(self.inputs, self.outputs, self.networks, strict=True):
            vectors = [
                part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
                for part in inputs(_normal(x)).chunk(3, -1)
            ]
            if self.positions == "rotation":
                vectors[:2] = map(rotated, vectors[:2])
            kept.append(tuple(x.detach() for x in vectors))
            x = x + outputs(self._attend(*vectors).transpose(1, 2).flatten(2))
            x = x + network(_normal(x))
        return _normal(x)[:, -(num_last or 0) :] @ self.embedding.weight.T

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if self.positions == "slopes":
            found = attentions.attend(self.kind, query[None], key[None], value[None], {})
            return found.squeeze(0)
        mapping = "softmax" if self.kind == "softmax" else Entmax(ALPHA)
        return attention(query, key, value, mapping, causal=True)  # type: ignore[return-value]


def _normal(x: Tensor) -> Tensor:
    return rms_norm(x, x.shape[-1:])


def rotated(x: Tensor) -> Tensor:
    """Pairs of entries, (..., T, d), turned by the place of the token."""
    half = x.shape[-1] // 2
    speed = ROTATION_BASE ** -(torch.arange(half, device=x.device) / half)
    angle = torch.arange(x.shape[-2], device=x.device)[:, None] * speed
    cosine, sine = angle.cos(), angle.sin()
    first, second = x.float().split(half, -1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1).to(
        x.dtype
    )


def train(text: Text, kind: str, positions: str, settings: CacheSettings, device: str) -> Cached:
    """A trained model."""
    torch.manual_seed(1)
    model = Cached(len(text.characters), kind, positions, settings).to(device)
    parameters = list(model.parameters())

    def clip() -> None:
        nn.utils.clip_grad_norm_(parameters, MAX_NORM)

    step = Step(
        lambda: model.loss(text.sample(settings.batch, settings.context)),
        parameters,
        lr=settings.lr,
        warmup=settings.warmup,
        steps=settings.steps,
        device=device,
        clip=clip,
    )
    for first in range(0, settings.steps, settings.chunk):
        count, start = min(settings.chunk, settings.steps - first), time.perf_counter()
        total = torch.zeros((), device=device)
        for _ in range(count):
            total += step()
        shown = f"step {first + count}: {float(total) / count:.3f}"
        taken = f"{(time.perf_counter() - start) / count * 1e3:.1f} ms a step"
        print(f"{positions}, {kind}, {shown}, {taken}", file=sys.stderr, flush=True)
    return model


def _attend(query: Tensor, cache: KeysValues, slopes: Tensor | None, pages: bool = False) -> Tensor:
    """Entmax attention of the last position; how many pages it read, if asked for."""
    found = attend(query, cache, Entmax(ALPHA), causal="lower_right", alibi=slopes, pages=pages)
    return found[1] if pages else found  # type: ignore[return-value]


def share_read(vectors: tuple[Tensor, ...], places: list[int], slopes: Tensor | None) -> Tensor:
    """The share of the pages up to each of these places that its query reads, on average over them,
    (layers, heads). On a CPU heads that are read together read as many, so they are taken apart."""
    query, key, value = vectors
    shares = []
    for place in places:
        keys = KeysValues(key[:, :, : place + 1], value[:, :, : place + 1])
        at = query[:, :, place : place + 1]
        if key.is_cpu:
            read = torch.cat([_attend(*one, pages=True) for one in _heads(at, keys, slopes)])
            read = read.view(key.shape[:2])
        else:
            read = _attend(at, keys, slopes, pages=True)
        shares.append(read.double().cpu() / -(-(place + 1) // PAGE))
    return torch.stack(shares).mean(0)


def _heads(
    query: Tensor, cache: KeysValues, slopes: Tensor | None
) -> list[tuple[Tensor, KeysValues, Tensor | None]]:
    """The arguments of `_attend` for each layer and head alone."""
    layers, heads = cache.key.shape[:2]
    pairs = [(slice(i, i + 1), slice(j, j + 1)) for i in range(layers) for j in range(heads)]
    return [
        (
            query[pair],
            KeysValues(cache.key[pair], cache.value[pair]),
            None if slopes is None else slopes[pair[1]],
        )
        for pair in pairs
    ]


def milliseconds(run: Callable[[], object], device: torch.device) -> float:
    """The median time of a call; on a GPU of a CUDA graph, without the host's time."""
    if device.type == "cpu":
        run()
        times = []
        for _ in range(REPEATS["cpu"]):
            start = time.perf_counter()
            run()
            times.append(1e3 * (time.perf_counter() - start))
        return statistics.median(times)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    pairs = []
    for _ in range(REPEATS["cuda"]):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        pairs.append((start, end))
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in pairs)


def times(vectors: tuple[Tensor, ...], slopes: Tensor | None) -> dict[str, float]:
    """Milliseconds of a query in all layers and heads: by pages, and to all keys. That is softmax
    by cuDNN on a GPU, without slopes, and entmax on a CPU, a layer at a time."""
    query, key, value = vectors
    query, cache = query[:, :, -1:].contiguous(), KeysValues(key, value)
    if key.is_cpu:
        layers = [slice(i, i + 1) for i in range(len(key))]
        caches = [KeysValues(key[layer], value[layer]) for layer in layers]
        pairs = [(query[layer], cache) for layer, cache in zip(layers, caches, strict=True)]
        options = {"causal": "lower_right", "alibi": slopes}

        def by_pages() -> None:
            for at, each in pairs:
                _attend(at, each, slopes)

        def to_all() -> None:
            for at, each in pairs:
                attention(at, each.key, each.value, Entmax(ALPHA), **options)
    else:

        def by_pages() -> None:
            _attend(query, cache, slopes)

        def to_all() -> None:
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                scaled_dot_product_attention(query, key, value)

    return {
        "pages": milliseconds(by_pages, key.device),
        "all": milliseconds(to_all, key.device),
    }


@torch.no_grad()
def measure(model: Cached, tokens: Tensor, settings: CacheSettings) -> Row:
    """What the queries near the end of a text (T + 1,) read."""
    length, device = len(tokens) - 1, str(tokens.device)
    spread = min(settings.spread, length)
    step = spread // settings.queries
    places = [length - 1 - i * step for i in range(settings.queries)]
    with autocast(device):
        loss = model.loss(tokens[None], spread)
        vectors = model.vectors(tokens[None, :-1])
    vectors = tuple(x.contiguous() for x in vectors)
    slopes = None
    if model.positions == "slopes":
        slopes = attentions.slopes(model.heads, tokens.device)
    row: Row = {
        "attention": model.kind,
        "positions": model.positions,
        "length": length,
        "loss": float(loss),
        "read": share_read(vectors, places, slopes).tolist(),
    }
    for name in dict.fromkeys([tokens.device.type, "cpu"]):
        there = tuple(x.to(name, torch.float32 if name == "cpu" else x.dtype) for x in vectors)
        row[name] = times(there, None if slopes is None else slopes.to(name))
    return row


def run(
    folder: Path,
    data: Path,
    kinds: list[str],
    positions: list[str],
    settings: CacheSettings,
    device: str,
    clock: Clock,
) -> Results:
    """Trains each model that is not done, and measures what it reads.

    Raises:
        OutOfTimeError: if the time is over; the next call goes on.
        ValueError: if the text is too short for the longest length.
    """
    results = Results(folder / CACHE, settings, device)
    text = Text(data, device, max(settings.lengths) + 1)
    for where in positions:
        for kind in kinds:
            if results.has(attention=kind, positions=where):
                continue
            clock.check()
            model = train(text, kind, where, settings, device)
            rows = [measure(model, text.held_out[: n + 1], settings) for n in settings.lengths]
            results.add(rows)
            for row in rows:
                shares = torch.tensor(row["read"]).flatten().tolist()
                shown = f"{100 * statistics.median(shares):.1f}% of the pages, {row}"
                print(f"{where}, {kind}, {row['length']}: {shown}", file=sys.stderr, flush=True)
    return results
