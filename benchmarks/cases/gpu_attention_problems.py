"""What the case gpu_attention measures: attention of several libraries, on several problems."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

import fenchel
from fenchel.attention import attention

from .. import baselines
from . import gpu_vectors
from .gpu_vectors import Shape, Vectors

FORWARD, BOTH = "forward", "forward+backward"
QUERIES: dict[str, Callable[[Shape, str], Vectors]] = {
    "normal": gpu_vectors.normal,
    "normal × 0.1": partial(gpu_vectors.normal, factor=0.1),
    "normal × 4": partial(gpu_vectors.normal, factor=4.0),
    "local, first key": gpu_vectors.local,
}

Function = Callable[[Tensor, Tensor, Tensor, bool], Tensor]


@dataclass(frozen=True)
class Entry:
    """Attention of a library: of queries, keys, values and whether it is causal.

    `alpha` is a number, or one for each head; 1 is softmax.
    """

    library: str
    mapping: str
    function: Function
    alpha: float | tuple[float, ...] = 1.5
    slow: bool = False
    compiles: bool = False

    @property
    def is_optional(self) -> bool:
        """Whether it is skipped when time runs out."""
        return self.slow or self.library == "adasplash"

    def alpha_of(self, head: int) -> float:
        return self.alpha[head] if isinstance(self.alpha, tuple) else self.alpha


def _softmax(backend: SDPBackend) -> Function:
    def run(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> Tensor:
        with sdpa_kernel(backend):
            return functional.scaled_dot_product_attention(query, key, value, is_causal=causal)

    return run


@cache
def _by_head(alpha: tuple[float, ...], device: torch.device) -> Tensor:
    """Kept, since a copy to the GPU would wait for it."""
    return torch.tensor(alpha, device=device)[:, None, None]


def _entmax(alpha: float | tuple[float, ...], weights: bool = False) -> Function:
    def run(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> Tensor:
        given = _by_head(alpha, query.device) if isinstance(alpha, tuple) else alpha
        found = attention(query, key, value, fenchel.Entmax(given), causal=causal, weights=weights)
        return found[0] if isinstance(found, tuple) else found

    return run


def _adasplash_1(alpha: float) -> Function:
    call = baselines.load("adasplash", "adasplash_v1")
    return lambda query, key, value, causal: call(query, key, value, alpha, causal)


def _adasplash_2(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> Tensor:
    return baselines.adasplash_attention(query, key, value)


CUDNN = Entry("torch", "softmax, cuDNN", _softmax(SDPBackend.CUDNN_ATTENTION), 1.0)
FLASH = Entry("torch", "softmax, FlashAttention-2", _softmax(SDPBackend.FLASH_ATTENTION), 1.0)
FENCHEL = Entry("fenchel", "entmax 1.5", _entmax(1.5), compiles=True)
DENSE = Entry("fenchel", "entmax 1.5, weights stored", _entmax(1.5, weights=True), slow=True)
ADASPLASH_1 = Entry(
    "adasplash", "entmax 1.5, version 1", _adasplash_1(1.5), slow=True, compiles=True
)
ADASPLASH_2 = Entry("adasplash", "entmax 1.5, version 2", _adasplash_2, compiles=True)
ALPHAS = (1.25, 1.75, 2.0)
PER_HEAD = tuple(1.25 + 0.05 * head for head in range(16))
OTHER_ALPHAS = (
    *(Entry("fenchel", f"entmax {a:g}", _entmax(a), a, compiles=True) for a in ALPHAS),
    Entry("fenchel", "entmax 1.25 to 2 by head", _entmax(PER_HEAD), PER_HEAD, compiles=True),
    *(
        Entry("adasplash", f"entmax {a:g}, version 1", _adasplash_1(a), a, True, True)
        for a in ALPHAS
    ),
)


@dataclass(frozen=True)
class Problem:
    """What to attend to, and the targets that fenchel has on it.

    `targets` are on the ratio to cuDNN, by pass. `beats_adasplash`: whether AdaSplash-2 must not be
    faster. `others` take the place of the other packages; by default there is only AdaSplash-2
    where attention is causal.
    """

    shape: Shape
    causal: bool = True
    queries: str = "normal"
    targets: dict[str, float] = field(default_factory=dict)
    beats_adasplash: bool = False
    max_workspace_mib: float | None = None
    others: tuple[Entry, ...] | None = None

    def entries(self) -> tuple[Entry, ...]:
        """The contenders: cuDNN and fenchel first."""
        others = self.others
        if others is None:
            others = (FLASH, ADASPLASH_2) if self.causal else (FLASH,)
        return (CUDNN, FENCHEL, *others)

    @property
    def length(self) -> int:
        return self.shape[2]

    @property
    def keys(self) -> str:
        """Which keys a query sees, for a row of results."""
        return "causal" if self.causal else "all"

    def fresh(self, pass_: str, device: str = "cuda") -> Vectors:
        """New inputs in bfloat16, that need gradients for backward."""
        vectors = Vectors(*(x.bfloat16() for x in QUERIES[self.queries](self.shape, device)))
        for x in vectors[:3]:
            x.requires_grad_(pass_ == BOTH)
        return vectors


PROBLEMS = (
    Problem(
        (4, 16, 8192, 64), targets={BOTH: 1.0}, others=(FLASH, ADASPLASH_2, ADASPLASH_1, DENSE)
    ),
    Problem((1, 16, 131072, 64), targets={BOTH: 0.4}, max_workspace_mib=1024.0, others=(FLASH,)),
    Problem((4, 16, 4096, 64), targets={BOTH: 1.5}, others=(FLASH,)),
    Problem((2, 16, 8192, 128), targets={BOTH: 1.2}, others=(FLASH,)),
    Problem((8, 16, 2048, 64), causal=False, targets={BOTH: 2.0}),
    Problem((8, 16, 2048, 64), targets={BOTH: 2.0}),
    Problem((1, 16, 32768, 64), targets={FORWARD: 1.3, BOTH: 0.5}),
    *(
        Problem(shape, queries=queries, targets=targets, beats_adasplash=True)
        for shape in ((4, 16, 8192, 64), (1, 16, 32768, 64))
        for queries, targets in (
            ("normal × 0.1", {BOTH: 2.2}),
            ("normal × 4", {}),
            ("local, first key", {}),
        )
    ),
    Problem((4, 16, 8192, 64), others=OTHER_ALPHAS),
)
