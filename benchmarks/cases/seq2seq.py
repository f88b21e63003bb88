"""Training steps of a sequence-to-sequence model, in target words per second, against softmax.

The same model, weights and batches for every pair of mappings; a step is forward, backward and
Adam. `torch` is softmax with F.cross_entropy, for comparison.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fenchel.seq2seq import Batch, ModelConfig, Seq2Seq, Words

from ..correctness import WrongAnswerError
from ..results import Row
from ..timing import Contender, race
from .options import Options

VOCABULARY = 18_000
ITEMS, LENGTH = 64, 20
HIDDEN = 500
ROUNDS = 7
TOLERANCE = 1e-8
"""On sums of gradients in float64."""
PAD, BOS, EOS = range(3)
FIRST = 4
"""The first id that is not special; 3 is unknown."""


@dataclass(frozen=True)
class Subject:
    """An attention and an output to train with, and the least words per second, in multiples of
    those of softmax."""

    label: str
    attention: Any
    output: Any
    target: float | None = None


def _both(label: str, target: float, **mapping: Any) -> Subject:
    return Subject(f"{label}, both", mapping, mapping, target)


def _attention(name: str, slowdown: float) -> Subject:
    return Subject(f"{name} attention", name, "softmax", 1 / slowdown)


SOFTMAX = Subject("softmax", "softmax", "softmax")
TORCH = Subject("torch", "softmax", "softmax")
SUBJECTS = (
    SOFTMAX,
    TORCH,
    _both("entmax 1.5", 0.97, mapping="entmax", alpha=1.5),
    _both("sparsemax", 0.93, mapping="sparsemax"),
    _both("entmax 1.33", 0.93, mapping="entmax", alpha=1.33),
    _attention("sparsemax", 1.05),
    _attention("fusedmax", 1.15),
    _attention("oscarmax", 1.15),
    _attention("pnormmax", 1.1),
)


def build(subject: Subject, size: int, hidden: int, dropout: float = 0.3) -> Seq2Seq:
    """A model, of the same weights for every subject."""
    torch.manual_seed(0)
    words = Words([str(place) for place in range(FIRST, size)])
    config = ModelConfig(
        embedding=hidden,
        hidden=hidden,
        dropout=dropout,
        attention=subject.attention,
        output=subject.output,
    )
    return Seq2Seq(config, words, words)


def batch(generator: torch.Generator, size: int, items: int = ITEMS, length: int = LENGTH) -> Batch:
    """Words as frequent as in a text, sources of several lengths, and targets to be learnt from
    them: each source word's neighbour in the vocabulary."""
    lengths = torch.randint(length // 2, length + 1, (items,), generator=generator)
    lengths[0] = length
    ranks = torch.rand(items, length, generator=generator).mul(torch.log(torch.tensor(size - 5.0)))
    source = (FIRST - 1 + ranks.exp().long()).clamp(FIRST, size - 2)
    place = torch.arange(length)
    target = torch.full((items, length + 2), PAD)
    target[:, 0] = BOS
    target[:, 1:-1] = torch.where(place < lengths[:, None], source + 1, PAD)
    target[torch.arange(items), lengths + 1] = EOS
    return Batch(torch.where(place < lengths[:, None], source, PAD), lengths, target)


def loss_of(subject: Subject, model: Seq2Seq) -> Callable[[Batch], Tensor]:
    """The model's mean loss, by torch's own function for `torch`."""

    def cross_entropy(pairs: Batch) -> Tensor:
        vectors, *_ = model.core(pairs.source, pairs.source_lengths, pairs.target[:, :-1], False)
        scores = model.output(vectors).flatten(0, 1)
        return functional.cross_entropy(scores, pairs.target[:, 1:].flatten(), ignore_index=PAD)

    return cross_entropy if subject is TORCH else model.loss


def projections(device: str = "cpu") -> dict[str, list[float]]:
    """Of small models, by label, the loss and each gradient times a random vector."""
    found = {}
    pairs = batch(torch.Generator().manual_seed(1), 40, 6, 7).to(device)
    for subject in SUBJECTS:
        model = build(subject, 40, 12, dropout=0.0).to(device, torch.float64)
        loss = loss_of(subject, model)(pairs)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        draw = torch.Generator().manual_seed(2)
        found[subject.label] = [float(loss.detach())] + [
            float((torch.randn(g.shape, generator=draw, dtype=g.dtype) * g.cpu()).sum())
            for g in gradients
        ]
    return found


def check(device: str) -> None:
    """The gradients are those of the reference kernels, and training makes the loss smaller."""
    done = subprocess.run(
        [sys.executable, "-m", __name__],
        env={**os.environ, "FENCHEL_KERNELS": "reference"},
        capture_output=True,
        text=True,
        check=True,
    )
    found = projections(device)
    for label, expected in json.loads(done.stdout).items():
        pairs = zip(found[label], expected, strict=True)
        error = max(abs(one - other) for one, other in pairs)
        if not error <= TOLERANCE:  # NaN too
            raise WrongAnswerError(f"the gradient of {label} is wrong by {error:.2g}.")
    pairs = batch(torch.Generator().manual_seed(1), 40, 8, 8).to(device)
    for subject in SUBJECTS:
        step = Step(subject, 40, 16, device)
        losses = [step(pairs) for _ in range(30)]
        if not sum(losses[-5:]) < sum(losses[:5]):  # NaN too
            raise WrongAnswerError(f"{subject.label} does not learn: {losses[0]} to {losses[-1]}.")


class Step:
    """A training step: forward, backward, the clipping of the gradient, and Adam."""

    def __init__(self, subject: Subject, size: int, hidden: int, device: str) -> None:
        self.model = build(subject, size, hidden).to(device)
        self.loss = loss_of(subject, self.model)
        self.adam = torch.optim.Adam(self.model.parameters(), fused=True)

    def __call__(self, pairs: Batch) -> float:
        self.adam.zero_grad()
        loss = self.loss(pairs)
        loss.backward()
        self.update()
        return float(loss.detach())  # waits for the device

    def update(self) -> None:
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
        self.adam.step()


def measured(
    steps: Mapping[str, Callable[[Batch], float]],
    fresh: Callable[[], Batch],
    rounds: int,
    facts: Row,
) -> Iterator[Row]:
    """One row per subject, by label, in words per second and multiples of softmax's."""
    count = [0, 0]

    def inputs() -> tuple[Batch]:
        pairs = fresh()
        count[0] += int(pairs.count)
        count[1] += 1
        return (pairs,)

    contenders = [Contender(label, step) for label, step in steps.items()]
    timings = race(contenders, inputs, rounds)
    words = count[0] / count[1]
    for subject in (s for s in SUBJECTS if s.label in timings):
        timing = timings[subject.label]
        ratio = timings[SOFTMAX.label].median / timing.median
        yield {
            **facts,
            "mappings": subject.label,
            "words/s": words / timing.median,
            "ms": timing.median * 1e3,
            "quartiles ms": f"{timing.lower * 1e3:.1f}–{timing.upper * 1e3:.1f}",
            "ratio": ratio,
            "target": subject.target,
            "met": None if subject.target is None else ratio >= subject.target,
        }


def rows(options: Options) -> Iterator[Row]:
    """One row per subject and number of threads."""
    torch.set_num_threads(max(options.threads))
    check("cpu")
    size, hidden = (1000, 64) if options.quick else (VOCABULARY, HIDDEN)
    for threads in options.threads:
        torch.set_num_threads(threads)
        generator = torch.Generator().manual_seed(0)
        steps = {subject.label: Step(subject, size, hidden, "cpu") for subject in SUBJECTS}
        rounds = options.rounds if options.quick else ROUNDS
        fresh = partial(batch, generator, size)
        yield from measured(steps, fresh, rounds, {"threads": threads})


if __name__ == "__main__":  # under FENCHEL_KERNELS=reference, for `check`
    print(json.dumps(projections()))
