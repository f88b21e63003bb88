"""The weights of the best validated models, and their mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .._files import fill, read_tensors
from ..models._folder import save_weights
from ..models._model import Seq2Seq
from ._checkpoint import Progress
from ._distributed import World

FOLDER = "checkpoints"


class Averaging:
    """The files `checkpoints/STEP.safetensors` of a training, with the weights of its best models.

    Args:
        folder: of the training.
        count: how many models are kept; one or none keeps nothing.
        model: the one in training.
        world: the processes; all call the methods, and rank 0 writes.
    """

    def __init__(self, folder: Path, count: int, model: Seq2Seq, world: World) -> None:
        self._folder, self._count, self._model, self._world = folder, count, model, world

    def keep(
        self, progress: Progress, found: dict[str, Any], rank: Callable[[dict[str, Any]], Any]
    ) -> None:
        """Keeps the weights of the model if it is one of the best.

        Args:
            progress: whose `kept` lists the models.
            found: the metrics of the model, and its step as `best_step`.
            rank: what is largest for the best metrics.
        """
        models = sorted([*progress.kept, found], key=rank, reverse=True)
        progress.kept = models[: self._count] if self._count > 1 else []
        if found in progress.kept:
            path = self._path(progress.step)
            if self._world.is_main:
                path.parent.mkdir(exist_ok=True)
            save_weights(path.parent, self._model, found, self._world.is_main, path.name)

    def remove_others(self, progress: Progress) -> None:
        """Removes what is not kept any more; call it when the checkpoint is written."""
        folder = self._folder / FOLDER
        if not self._world.is_main or not folder.is_dir():
            return
        kept = {self._path(each["best_step"]) for each in progress.kept}
        for path in folder.glob("*.safetensors"):
            if path.stem.isdecimal() and path not in kept:
                path.unlink()
        if not any(folder.iterdir()):
            folder.rmdir()

    def finish(
        self,
        progress: Progress,
        metrics: Callable[[], dict[str, Any]],
        rank: Callable[[dict[str, Any]], Any],
    ) -> tuple[dict[str, Any], int]:
        """Makes the mean of the kept models the model if it is better; else the best of them.

        Args:
            progress: of the training, which does not change.
            metrics: returns those of the model.
            rank: as for `keep`.
        Returns:
            The metrics of the best model with its `best_step`, and how many models it is the mean
            of.
        """
        best, count = dict(progress.best), 1
        paths = [self._path(each["best_step"]) for each in progress.kept]
        paths = [path for path in paths if path.is_file()]
        if len(paths) < 2:
            return best, count
        parameters = dict(self._model.named_parameters())
        fill(parameters, _mean(paths), self._folder)
        mean = {**metrics(), "best_step": best["best_step"]}
        if rank(mean) > rank(best):
            best, count = mean, len(paths)
        else:
            fill(parameters, read_tensors(paths[0])[0], paths[0])
        save_weights(self._folder, self._model, best, self._world.is_main)
        return best, count

    def _path(self, step: float) -> Path:
        return self._folder / FOLDER / f"{int(step)}.safetensors"


def _mean(paths: Sequence[Path]) -> dict[str, Tensor]:
    """The mean of the tensors of some files, added up in float64."""
    sums: dict[str, Tensor] = {}
    for path in paths:
        for name, tensor in read_tensors(path)[0].items():
            sums[name] = sums.get(name, 0.0) + tensor.to(torch.float64) / len(paths)
    return {name: total.to(torch.float32) for name, total in sums.items()}
