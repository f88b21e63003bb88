"""The losses, forward with backward, against F.cross_entropy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product

import torch
from torch import Tensor
from torch.nn import functional

from .. import subjects
from ..correctness import check_loss
from ..results import Row
from ..timing import Contender, race
from .comparison import comparison
from .options import Options

SCALES = (1, 5)
SHAPES = ((2048, 1024), (64, 32000), (16, 128000))
TARGET = 0.8


def _timed(loss: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    def run(x: Tensor, target: Tensor) -> Tensor:
        return torch.autograd.grad(loss(x, target), x)[0]

    return run


def _inputs(
    generator: torch.Generator, shape: tuple[int, int], scale: float
) -> tuple[Tensor, Tensor]:
    """Scores, and a class for each row."""
    x = torch.randn(shape, generator=generator).mul_(scale).requires_grad_()
    return x, torch.randint(shape[1], shape[:1], generator=generator)


def rows(options: Options) -> Iterator[Row]:
    """One row per loss, shape, scale of the scores and number of threads."""
    generator = torch.Generator().manual_seed(0)
    cells = list(product(subjects.LOSSES, SHAPES[:1] if options.quick else SHAPES, SCALES))
    torch.set_num_threads(max(options.threads))
    for subject, shape, scale in cells:
        check_loss(subject, *_inputs(generator, shape, scale))

    for subject, shape, scale in cells:
        contenders = [
            Contender("torch", _timed(functional.cross_entropy)),
            Contender("fenchel", _timed(subject.function)),
        ]
        if not options.quick and subject.baseline is not None:
            contenders.append(Contender("entmax", _timed(subject.baseline), slow=True))
        fresh = partial(_inputs, generator, shape, scale)
        for threads in options.threads:
            torch.set_num_threads(threads)
            yield {
                "loss": subject.label,
                "shape": f"{shape[0]}x{shape[1]}",
                "scale": scale,
                "threads": threads,
                **comparison(race(contenders, fresh, options.rounds), TARGET),
            }
