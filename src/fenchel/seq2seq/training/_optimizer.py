"""Adam and AdamW, and the learning rate of every step."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Adam, AdamW, Optimizer

from ..config._schema import TrainingConfig
from ..models._lstm import Encoder


def make_optimizer(model: nn.Module, plan: TrainingConfig, device: torch.device) -> Optimizer:
    """Adam, or AdamW with its weight decay on what `decayed` names."""
    chosen = decayed(model)
    named = list(model.named_parameters())
    groups = [
        {"params": [p for name, p in named if (name in chosen) == is_decayed], "weight_decay": w}
        for is_decayed, w in ((True, plan.weight_decay), (False, 0.0))
    ]
    options: dict[str, Any] = {"lr": plan.learning_rate, "fused": device.type == "cuda"}
    if plan.optimizer == "adamw":
        return AdamW(groups, **options)
    return Adam([p for _, p in named], **options)


def decayed(model: nn.Module) -> set[str]:
    """The names of the parameters that weight decay shrinks: the matrices of linear layers and
    LSTMs, but neither embeddings nor an output layer that shares one, nor the encoder LSTM's input
    weights, one column of which closes the gates at padding and must not shrink."""
    kept: list[Tensor] = []
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            kept.append(module.weight)
        elif isinstance(module, Encoder):
            kept += [p for name, p in module.named_parameters() if "weight_ih" in name]
    left_out = set(map(id, kept))
    return {name for name, p in model.named_parameters() if p.ndim > 1 and id(p) not in left_out}


class Schedule:
    """The learning rate of every step: a base, times a warm-up, times a shape.

    The base is `learning_rate`; with "plateau" it is multiplied by `lr_decay` when the validation
    loss stops improving. The warm-up rises linearly from 1/w to 1 over w = `warmup_steps` steps.
    After it the shape falls: as √(w/s) at step s with "inverse_square_root" (w is at least 1), as
    half a cosine from 1 to `min_lr_ratio` at the last step with "cosine". Neither falls below
    `min_lr_ratio`.

    Args:
        plan: of the training.
        max_steps: the number of the last step, for "cosine".
    """

    def __init__(self, plan: TrainingConfig, max_steps: int | None) -> None:
        if plan.lr_schedule == "cosine" and max_steps is None:
            raise ValueError(
                "`training.lr_schedule` is cosine, which ends at the last step; with "
                "`data.streaming` set `training.steps`."
            )
        self.plan, self.max_steps = plan, max_steps
        self.base = plan.learning_rate
        """The learning rate without warm-up and shape."""
        self.best = math.inf
        """The best validation loss."""
        self.num_bad_validations = 0
        """Validations without a better loss, since the best one or the last decay."""

    def rate(self, step: int) -> float:
        """The learning rate of a step, counted from 1."""
        warmup = self.plan.warmup_steps
        return self.base * (step / warmup if step < warmup else self._shape(step))

    def _shape(self, step: int) -> float:
        warmup, lowest = self.plan.warmup_steps, self.plan.min_lr_ratio
        if self.plan.lr_schedule == "inverse_square_root":
            return max(lowest, math.sqrt(max(warmup, 1) / step))
        if self.plan.lr_schedule == "cosine" and self.max_steps is not None:
            share = (step - warmup) / max(self.max_steps - warmup, 1)
            return lowest + (1 - lowest) * (1 + math.cos(math.pi * min(share, 1.0))) / 2
        return 1.0

    def apply(self, optimizer: Optimizer, step: int) -> None:
        """Sets the learning rate of a step."""
        for group in optimizer.param_groups:
            group["lr"] = self.rate(step)

    def validated(self, loss: float) -> None:
        """Takes note of a validation loss."""
        if loss < self.best:
            self.best, self.num_bad_validations = loss, 0
            return
        self.num_bad_validations += 1
        is_over = self.num_bad_validations > self.plan.lr_patience
        if is_over and self.plan.lr_schedule == "plateau":
            floor = self.plan.min_lr_ratio * self.plan.learning_rate
            self.base = max(self.base * self.plan.lr_decay, floor)
            self.num_bad_validations = 0

    def reset(self) -> None:
        """Forgets the validation losses."""
        self.best, self.num_bad_validations = math.inf, 0

    def to_json(self) -> dict[str, Any]:
        """The validations so far; the base is stored beside them."""
        return {"best": self.best, "num_bad_validations": self.num_bad_validations}

    def restore(self, value: dict[str, Any], base: float) -> None:
        """Goes on from what `to_json` returned, with another base."""
        self.best, self.num_bad_validations = value["best"], value["num_bad_validations"]
        self.base = base
