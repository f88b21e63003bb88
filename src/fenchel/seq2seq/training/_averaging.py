"""The weights of the best validated models, and their mean."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from .._files import read_tensors
from ..models._folder import save_weights
from ..models._model import Seq2Seq
from ._distributed import World

FOLDER = "checkpoints"


class KeptModels:
    """The files `checkpoints/STEP.safetensors` of a training, each with a model's weights.

    Args:
        folder: of the training.
        world: the processes; rank 0 writes.
    """

    def __init__(self, folder: Path, world: World) -> None:
        self._folder, self._world = folder / FOLDER, world

    def add(self, model: Seq2Seq, step: int, metrics: dict[str, float]) -> None:
        """Writes the weights of a step. Every process must call it."""
        if self._world.is_main:
            self._folder.mkdir(exist_ok=True)
        save_weights(self._folder, model, metrics, self._world.is_main, f"{step}.safetensors")

    def remove_others(self, steps: Sequence[int]) -> None:
        """Removes the weights of all other steps, and the folder if it is empty."""
        if not self._world.is_main or not self._folder.is_dir():
            return
        for path in self._folder.glob("*.safetensors"):
            if path.stem.isdecimal() and int(path.stem) not in steps:
                path.unlink()
        if not any(self._folder.iterdir()):
            self._folder.rmdir()

    def has(self, step: int) -> bool:
        """Whether there are weights of a step."""
        return (self._folder / f"{step}.safetensors").is_file()

    def mean(self, steps: Sequence[int]) -> dict[str, Tensor]:
        """The mean of the weights of some steps, added up in float64; of one step its own."""
        sums: dict[str, Tensor] = {}
        for step in steps:
            tensors, _ = read_tensors(self._folder / f"{step}.safetensors")
            if len(steps) == 1:
                return tensors
            for name, tensor in tensors.items():
                sums[name] = sums.get(name, 0.0) + tensor.to(torch.float64) / len(steps)
        return {name: total.to(torch.float32) for name, total in sums.items()}
