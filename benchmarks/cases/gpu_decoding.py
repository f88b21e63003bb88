"""Attention of one new query to a long cache on a GPU, beside softmax attention to all keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from fenchel import Entmax
from fenchel.attention import KeysValues, attend

from .. import _gpu, ground_truth
from ..correctness import relative_error
from ..results import Row
from .options import Options

CASES = ((32, 8192), (32, 32768), (8, 131072))
"""Sequences and keys."""
HEADS, KEY_HEADS, SIZE = 32, 8, 128
PAGE = 64
CLUSTER = 512
"""Keys of a cluster, which follow each other."""
NOISE = 0.1
ROUNDS = 11
MAX_RATIO = 1.1
"""To cuDNN, where all pages must be read."""
TOLERANCE = 0.01


def _normal(sequences: int, keys: int, device: str) -> tuple[Tensor, KeysValues]:
    query, key, value = (
        torch.randn(sequences, heads, n, SIZE, device=device, dtype=torch.bfloat16)
        for heads, n in ((HEADS, 1), (KEY_HEADS, keys), (KEY_HEADS, keys))
    )
    return query, KeysValues(key, value)


def _flat(sequences: int, keys: int, device: str) -> tuple[Tensor, KeysValues]:
    query, cache = _normal(sequences, keys, device)
    return query / 100, cache


def _clusters(sequences: int, keys: int, device: str) -> tuple[Tensor, KeysValues]:
    """Keys in clusters, and queries that are none of them."""
    query, cache = _normal(sequences, keys, device)
    key = cache.key
    key *= NOISE
    centres = torch.randn_like(key[:, :, : max(1, keys // CLUSTER)])
    key += centres.repeat_interleave(-(-keys // centres.shape[2]), 2)[:, :, :keys]
    return query, KeysValues(key, cache.value)


def _near(sequences: int, keys: int, device: str) -> tuple[Tensor, KeysValues]:
    """Keys in clusters, and each query near one of them."""
    query, cache = _clusters(sequences, keys, device)
    shared = cache.key.repeat_interleave(HEADS // KEY_HEADS, 1)
    place = torch.randint(keys, (sequences, HEADS, 1, 1), device=device).expand_as(query)
    return shared.gather(2, place) + 3 * NOISE * query, cache


PATTERNS: dict[str, Callable[[int, int, str], tuple[Tensor, KeysValues]]] = {
    "normal": _normal,
    "flat": _flat,
    "clusters": _clusters,
    "clusters, queries near one": _near,
}


@dataclass(frozen=True)
class Entry:
    """Attention of a library to a cache; α = 1 is softmax."""

    library: str
    mapping: str
    run: Callable[[Tensor, KeysValues], Tensor]
    alpha: float


def _softmax(name: str, backend: SDPBackend) -> Entry:
    def run(query: Tensor, cache: KeysValues) -> Tensor:
        with sdpa_kernel(backend):
            return functional.scaled_dot_product_attention(
                query, cache.key, cache.value, enable_gqa=True
            )

    return Entry("torch", f"softmax, {name}", run, 1.0)


def _entmax(alpha: float) -> Entry:
    mapping = Entmax(alpha)

    def run(query: Tensor, cache: KeysValues) -> Tensor:
        return attend(query, cache, mapping)  # type: ignore[return-value]

    return Entry("fenchel", f"entmax {alpha:g}", run, alpha)


ENTRIES = (
    _softmax("cuDNN", SDPBackend.CUDNN_ATTENTION),
    _softmax("FlashAttention-2", SDPBackend.FLASH_ATTENTION),
    _entmax(1.5),
    _entmax(2.0),
)


def exact(alpha: float, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The outputs (H, e) of one sequence in float64, from (H, d), (G, S, d) and (G, S, e)."""
    query = query.double().unflatten(0, (key.shape[0], -1))
    scores = query @ key.double().mT * query.shape[-1] ** -0.5
    weights = ground_truth.entmax(alpha)(scores.flatten(0, 1)).view_as(scores)
    return (weights @ value.double()).flatten(0, 1)


def _contender(entry: Entry) -> _gpu.Contender:
    tolerance = TOLERANCE if entry.library == "fenchel" else _gpu.BASELINES_TOLERANCE

    def check(query: Tensor, cache: KeysValues) -> float:
        """The largest error of the first and the last sequence."""
        found, errors = entry.run(query, cache), []
        for place in (0, -1):
            truth = exact(entry.alpha, query[place, :, 0], cache.key[place], cache.value[place])
            errors.append(relative_error("output", found[place, :, 0], truth, tolerance))
        return max(errors)

    return _gpu.Contender(entry.library, entry.mapping, entry.run, check)


@torch.no_grad()
def _race(sequences: int, keys: int, pattern: str, rounds: int) -> list[Row]:
    def fresh() -> tuple[Tensor, KeysValues]:
        query, cache = PATTERNS[pattern](sequences, keys, "cuda")
        cache.pages()
        return query, cache

    contenders = [_contender(entry) for entry in ENTRIES]
    query, cache = fresh()
    all_pages, read = -(-keys // PAGE), {}
    for entry in ENTRIES:
        if entry.library == "fenchel":
            _, pages = attend(query, cache, Entmax(entry.alpha), pages=True)
            read[entry.mapping] = float(pages.double().mean())
    clocks = {
        "host": _gpu.host_race(contenders, (query, cache)),
        "gpu": _gpu.race(contenders, fresh, rounds),
    }
    found = []
    for clock, results in clocks.items():
        for entry, contender, result in zip(ENTRIES, contenders, results, strict=True):
            columns = _gpu.columns(contender, result, results[0].seconds)
            pages = read.get(entry.mapping)
            target = MAX_RATIO if pages is not None and pages == all_pages else None
            ratio = columns["ratio"]
            found.append({
                "clock": clock,
                "sequences": sequences,
                "keys": keys,
                "pattern": pattern,
                **columns,
                "pages": pages and f"{pages:.0f} of {all_pages}",
                "target": target,
                "met": None if target is None else ratio is not None and ratio <= target,
                "error": result.error,
                "note": result.note,
            })  # fmt: skip
    return found


def rows(options: Options) -> Iterator[Row]:
    """One row per contender, cache, pattern of keys and clock."""
    rounds = 3 if options.quick else ROUNDS
    for sequences, keys in CASES[:1] if options.quick else CASES:
        for pattern in PATTERNS:
            yield from _race(sequences, keys, pattern, rounds)
