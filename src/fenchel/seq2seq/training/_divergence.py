"""Whether a training has diverged: its numbers are not finite, or too large to be of use."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .._files import local
from ..models._model import Seq2Seq
from ._callback import DivergenceError
from ._distributed import World

MAX_LOSS_RATIO = 1000.0
"""A loss above this times the loss of a guess among all tokens has diverged. A guess counts as 1 if
its loss is less."""
MAX_WEIGHT = 1e15
"""The square of a larger weight nearly overflows in float32."""


class DivergenceCheck:
    """Raises `DivergenceError` when a training has diverged, before a file is written.

    Args:
        model: the model in training.
        world: the processes that train it.
    """

    def __init__(self, model: Seq2Seq, world: World) -> None:
        self._model, self._world = model, world
        scores = torch.zeros(1, model.target.size)
        target = torch.zeros(1, dtype=torch.long)
        self.guess_loss = float(model.config.output.build().loss(scores, target))
        """The loss of a guess among all tokens."""
        # A small gamma makes the loss of a guess tiny.
        self._max_loss = MAX_LOSS_RATIO * max(self.guess_loss, 1.0)

    def check_loss(self, loss: float, step: int) -> None:
        """Checks a loss per token."""
        if not math.isfinite(loss):
            self._fail(f"the loss is {loss}", step)
        if loss > self._max_loss:
            self._fail(f"the loss is {loss:.3g}, and a guess has {self.guess_loss:.3g}", step)

    def check_weights(self, losses: Tensor, tokens: int, step: int) -> None:
        """Checks the weights, and the summed losses of this process over `tokens` tokens."""
        values = [*map(local, self._model.parameters()), losses]
        num_bad = torch.stack([(~(value.abs() < MAX_WEIGHT)).sum() for value in values]).sum()
        num_bad += losses > self._max_loss * max(tokens, 1)
        if self._world.sum(num_bad):
            self._fail("weights or the loss are too large to learn, or not finite", step)

    def _fail(self, what: str, step: int) -> None:
        raise DivergenceError(
            f"{what} at step {step}; lower `training.learning_rate` or `training.max_grad_norm`. "
            "The folder holds what was saved before, and the same command goes on from there."
        )
