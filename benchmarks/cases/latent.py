"""Training steps with a latent variable: what exact expectations cost beside one sample."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from time import perf_counter

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

import fenchel
from fenchel.latent import embed, estimators, marginalize

from ..correctness import WrongAnswerError
from ..results import Row
from ..timing import Contender, race
from .options import Options

BATCH = 64
PIXELS = 784
CATEGORIES = 256
HIDDEN = 512
SUPPORT = 3
"""The size of the supports in a model that has been trained for a while."""
MAX_TO_SAMPLED = 1.5
"""A step, at most, as a multiple of a one-sample step at the same decoder batch."""
MIN_DENSE_RATIO = 20
"""By how much a step must be faster than one with all categories."""
BITS = 128
MAX_SOLVER_SHARE = 0.15
"""The share of a step that SparseMAP may take."""


@dataclass(frozen=True)
class Model:
    """An encoder into scores and a decoder of images; the scores are as given."""

    encoder: nn.Module
    embedding: Tensor
    decoder: nn.Module

    @classmethod
    def of(cls, outputs: int, hidden: int) -> Model:
        encoder = nn.Sequential(nn.Linear(PIXELS, hidden), nn.ReLU(), nn.Linear(hidden, outputs))
        decoder = nn.Sequential(nn.ReLU(), nn.Linear(hidden, PIXELS))
        embedding = torch.randn(outputs, hidden).mul_(0.1).requires_grad_()
        return cls(encoder, embedding, decoder)

    def parameters(self) -> list[Tensor]:
        return [*self.encoder.parameters(), self.embedding, *self.decoder.parameters()]

    def step(self, x: Tensor, shift: Tensor, mapping: object) -> Tensor:
        """Forward and backward; `shift` sets the scores without a change of the work."""
        scores = self.encoder(x)
        scores = scores - scores.detach() + shift

        def loss(item: Tensor, z: Tensor) -> Tensor:
            logits = self.decoder(embed(z, self.embedding))
            return binary_cross_entropy_with_logits(logits, x[item], reduction="none").sum(-1)

        outcome = marginalize(scores, loss, mapping)  # type: ignore[arg-type]
        value = (outcome.value + outcome.kl()).mean()
        torch.autograd.grad(value, self.parameters(), allow_unused=True)
        return value.detach()


def _sparse(generator: torch.Generator, batch: int) -> tuple[Tensor, Tensor]:
    """Images, and scores whose sparsemax has SUPPORT nonzeros."""
    x = torch.rand(batch, PIXELS, generator=generator)
    scores = torch.full((batch, CATEGORIES), -2.0)
    top = torch.rand(batch, CATEGORIES, generator=generator).topk(SUPPORT).indices
    return x, scores.scatter(1, top, 0.2 * torch.rand(batch, SUPPORT, generator=generator))


def _check(model: Model, x: Tensor, scores: Tensor) -> None:
    """Against the sum over all categories, in value."""
    found = model.step(x, scores, fenchel.Sparsemax())
    p = fenchel.sparsemax(scores)
    with torch.no_grad():
        logits = model.decoder(model.embedding)
        pairs = x.unsqueeze(1).expand(-1, CATEGORIES, -1)
        losses = binary_cross_entropy_with_logits(
            logits.expand(len(x), -1, -1), pairs, reduction="none"
        ).sum(-1)
        entropy = torch.special.entr(p).sum(-1)
        ground_truth = ((p * losses).sum(-1) + torch.tensor(CATEGORIES).log() - entropy).mean()
    error = float((found - ground_truth).abs() / ground_truth.abs())
    if not error <= 1e-5:
        raise WrongAnswerError(f"the expectation is wrong by {error:.2g}.")


def _categories(options: Options, threads: int) -> Iterator[Row]:
    generator = torch.Generator().manual_seed(0)
    model = Model.of(CATEGORIES, HIDDEN)
    _check(model, *_sparse(generator, 8))

    def timed(mapping: object) -> Callable[[Tensor, Tensor], Tensor]:
        return lambda x, scores: model.step(x, scores, mapping)

    sampled = estimators.ScoreFunction(samples=SUPPORT)
    contenders = [
        Contender("sampled", timed(sampled)),
        Contender("sparse", timed(fenchel.Sparsemax())),
        Contender("top-k", timed(estimators.TopK(k=8))),
        Contender("dense", timed(fenchel.Softmax()), slow=True),
    ]
    times = race(contenders, partial(_sparse, generator, BATCH), options.rounds)
    base = times["sampled"].median
    for name in ("sparse", "top-k", "dense"):
        ratio, dense = times[name].median / base, times["dense"].median / times[name].median
        yield {
            "latent": f"{CATEGORIES} categories",
            "estimator": name,
            "pairs": BATCH * (CATEGORIES if name == "dense" else SUPPORT),
            "threads": threads,
            "ms": times[name].median * 1e3,
            "sampled ms": base * 1e3,
            "to sampled": ratio,
            "dense to it": dense,
            "solver share": None,
            "met": None
            if name == "dense"
            else ratio <= MAX_TO_SAMPLED and dense >= MIN_DENSE_RATIO,
        }


def _bits(options: Options, threads: int, structure: fenchel.Bits | fenchel.Budget) -> Row:
    """The share of SparseMAP, forward and backward, in a step; scores as at initialization."""
    generator = torch.Generator().manual_seed(0)
    model = Model.of(BITS, 128)
    pairs: list[int] = []

    def fresh() -> tuple[Tensor, Tensor]:
        x = torch.rand(BATCH, PIXELS, generator=generator)
        return x, torch.randn(BATCH, BITS, generator=generator)

    def solve(x: Tensor, scores: Tensor) -> float:
        start = perf_counter()
        leaf = scores.clone().requires_grad_()
        posterior = fenchel.sparsemap(structure, leaf)
        torch.autograd.grad(posterior.weights.sum(), leaf)
        pairs.append(int(posterior.support_size.sum()))
        return perf_counter() - start

    contenders = [
        Contender("step", lambda x, scores: model.step(x, scores, structure)),
        Contender("solver", solve),
    ]
    times = race(contenders, fresh, options.rounds)
    share = times["solver"].median / times["step"].median
    return {
        "latent": f"{BITS} bits",
        "estimator": str(structure),
        "pairs": sum(pairs) // len(pairs),
        "threads": threads,
        "ms": times["step"].median * 1e3,
        "solver share": share,
        "met": share <= MAX_SOLVER_SHARE,
    }


def rows(options: Options) -> Iterator[Row]:
    """One row per estimator and number of threads."""
    torch.manual_seed(0)
    for threads in options.threads:
        torch.set_num_threads(threads)
        yield from _categories(options, threads)
        for structure in (fenchel.Bits(BITS), fenchel.Budget(BITS, BITS // 2)):
            yield _bits(options, threads, structure)
