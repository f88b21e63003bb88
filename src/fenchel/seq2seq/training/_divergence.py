"""When a training has gone wrong: its numbers are none, or far from all that learning has."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .._files import local
from ..models._model import Seq2Seq
from ._callback import DivergenceError
from ._distributed import World

FAR = 1000.0
"""How many times the loss of a guess among all tokens, and at least 1, is no loss of learning."""
VAST = 1e15
"""A weight beyond this has a square that is nearly too large for a float32."""


class Watch:
    """Raises when a training has diverged, before that reaches a file.

    Args:
        model: what is trained.
        world: the processes that do it.
    """

    def __init__(self, model: Seq2Seq, world: World) -> None:
        self._model, self._world = model, world
        scores = torch.zeros(1, model.target.size)
        first = torch.zeros(1, dtype=torch.long)
        self.guess = float(model.config.output.build().loss(scores, first))
        """The loss of a guess among all tokens."""
        self._most = FAR * max(self.guess, 1.0)  # where a small gamma makes that of a guess tiny

    def check_loss(self, loss: float, step: int) -> None:
        """Checks a loss per token."""
        if not math.isfinite(loss):
            self._fail(f"the loss is {loss}", step)
        if loss > self._most:
            self._fail(f"the loss is {loss:.3g}, and a guess has {self.guess:.3g}", step)

    def check_weights(self, losses: Tensor, tokens: int, step: int) -> None:
        """Checks the weights, and this process's losses of some tokens."""
        values = [*map(local, self._model.parameters()), losses]
        wrong = torch.stack([(~(value.abs() < VAST)).sum() for value in values]).sum()
        wrong += losses > self._most * max(tokens, 1)
        if self._world.sum(wrong):
            self._fail("weights or the loss are too large to learn, or not finite", step)

    def _fail(self, what: str, step: int) -> None:
        raise DivergenceError(
            f"{what} at step {step}; lower `training.learning_rate` or `training.max_grad_norm`. "
            "The folder holds what was saved before, and the same command goes on from there."
        )
