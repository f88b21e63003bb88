"""Training: steps, validations and checkpoints, from the beginning or from a checkpoint."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from .._files import locked
from ..config._schema import Config
from ..data._corpus import Encoded, shuffled
from ..models._folder import save_config, save_vocabularies, save_weights
from ..models._model import Seq2Seq
from . import _checkpoint
from ._averaging import Averaging
from ._callback import Callback, Summary
from ._changes import DataChanges
from ._distributed import DistributedModel, World, process_group
from ._divergence import DivergenceCheck
from ._fine_tuning import start_from
from ._log import Log
from ._memory import check_memory
from ._optimizer import Schedule, make_optimizer
from ._preparation import NO_TRAINING_PAIR, dropped_pairs, prepare
from ._validation import Metrics, Validator


def train(
    config: Config, callback: Callback | None = None, *, allow_changed_data: bool = False
) -> Summary:
    """Trains a model, or resumes a training that was stopped.

    The same configuration gives the same weights, however often training is stopped on the way: on
    a CPU bit by bit, with the same number of threads. The processes of torchrun train one model
    together, each with `batch_size` pairs of a batch.

    Args:
        config: the whole configuration.
        callback: is told of the progress.
        allow_changed_data: whether to go on if the pairs have changed since training began; else
            that is an error. If the validation pairs have changed, the best model is chosen anew.
    Returns:
        How it ended. The folder holds the best model, the last checkpoint and the log.
    Raises:
        DivergenceError: if the loss is not finite, or far above the loss of a guess.
        ValueError, OSError: if data or the folder cannot be used, or memory is too small.

    >>> import tempfile
    >>> from fenchel.seq2seq import Config
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     verbs = Path(folder) / "english.tsv"
    ...     _ = verbs.write_text("walk\\twalked\\tV;PST\\n" * 8)
    ...     files = {"task": "inflection", "train": [str(verbs)], "validation": [str(verbs)]}
    ...     small = {"embedding": 8, "hidden": 8, "layers": 1}
    ...     plan = {"folder": f"{folder}/model", "epochs": 1, "device": "cpu"}
    ...     summary = train(Config(model=small, data=files, training=plan))
    >>> summary.reason
    '1 epoch is done'

    References: peters2019sparse.
    """
    folder, plan = Path(config.training.folder), config.training
    lock = locked(folder) if int(os.environ.get("RANK", "0")) == 0 else nullcontext()
    with lock, process_group(plan.device) as world, _matmul_precision(plan.precision):
        world.wait()
        return _Training(config, folder, world, callback or Callback(), allow_changed_data).run()


@contextmanager
def _matmul_precision(precision: str) -> Iterator[None]:
    """Sets the precision of float32 matrix products on a GPU, and resets it at the end."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else before)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


class _Training:
    """A training in progress: all of its state, and the loop over epochs and steps."""

    def __init__(
        self, config: Config, folder: Path, world: World, callback: Callback, allow_changed: bool
    ) -> None:
        self.config, self.plan, self.folder, self.world = config, config.training, folder, world
        self.callback = callback if world.is_main else Callback()
        self.config_json = config.model_dump(mode="json")
        if changed := _checkpoint.check(folder, self.config_json, world):
            keys = ", ".join(f"training.{key}" for key in changed)
            self.callback.note(f"the training in {folder} goes on with other values of {keys}")
        torch.manual_seed(self.plan.seed)
        source, target, self.corpus, self.validation, texts = prepare(
            config, folder, world, self.callback.note
        )
        self.validator = Validator(config, source, target, texts, self.validation)
        is_sharded = world.size > 1 and self.plan.distributed == "fsdp"
        check_memory(config.model, source, target, world, is_sharded)
        self.model = Seq2Seq(config.model, source, target)
        if self.plan.start_from is not None and not (folder / _checkpoint.NAME).exists():
            start_from(Path(self.plan.start_from), self.model)
        self.model.to(world.device)
        self.divergence = DivergenceCheck(self.model, world)
        self.distributed_model = DistributedModel(
            self.model,
            world,
            self.plan.distributed,
            self.plan.cuda_graphs,
            self.plan.label_smoothing,
        )
        self.optimizer = make_optimizer(self.model, self.plan, world.device)
        self.schedule = Schedule(self.plan, self._max_steps())
        torch.manual_seed(self.plan.seed + world.rank)  # dropout differs between processes
        self.losses = torch.zeros((), dtype=torch.float64, device=world.device)
        self.progress = _checkpoint.restore(
            folder, self.model, self.optimizer, self.schedule, self.losses, self.config_json, world
        )
        count = self.plan.average_checkpoints
        self.averaging = Averaging(folder, count, self.model, world)
        in_memory = [each for each in (self.corpus.kept, self.validation) if each is not None]
        self.changes = DataChanges(folder, self.progress, allow_changed, self.callback.note)
        self.changes.check_counts([len(each) for each in in_memory])
        if self.corpus.kept is not None:
            self.changes.check(self.corpus.kept, 0)
        if self.changes.check(self.validation):
            self._reset_best()
        if world.is_main:
            save_config(folder, self.config_json)
            save_vocabularies(folder, source, target)
        self.log = Log(folder, self.progress.step, self.validator.names) if world.is_main else None
        self._seconds_before, self._start_time = self.progress.seconds, time.monotonic()
        self._log_time = self._start_time

    def run(self) -> Summary:
        """Trains to the end."""
        progress = self.progress
        self.callback.started(progress, self._max_steps())
        while not (reason := self._stop_reason()):
            self._epoch()
        if progress.last_validation != progress.step:
            self._validate(is_scheduled=False)
        best, averaged = self.averaging.finish(
            progress, lambda: self._metrics().to_json(), self.validator.rank
        )
        if self.log is not None:
            self.log.close()
        if best["loss"] > self.divergence.guess_loss:
            self.callback.note(
                f"the best model has a loss of {best['loss']:.3g}, and a guess among all tokens "
                f"{self.divergence.guess_loss:.3g}; lower `training.learning_rate`, or train longer"
            )
        best_step = int(best.pop("best_step"))
        metrics = Metrics(**best)
        total = progress.step, progress.seconds
        return Summary(self.folder, reason, metrics, best_step, *total, averaged)

    def _epoch(self) -> None:
        """Trains until the epoch or the training ends."""
        progress = self.progress
        size = self.plan.batch_size * self.world.size
        has_batches = progress.buffer > 0
        for number, pairs in self.corpus.buffers(progress.buffer):
            self.changes.check(pairs, number)
            seed = (self.plan.seed, progress.epoch, number)
            batches = shuffled(pairs, size, seed)
            while progress.batch < len(batches):
                group = batches[progress.batch : progress.batch + self.plan.gradient_accumulation]
                self._step(pairs, group)
                progress.batch += len(group)
                self._after_step()
                if self._stop_reason():
                    return
            has_batches |= bool(batches)
            progress.buffer, progress.batch = number + 1, 0
        if not has_batches:
            raise ValueError(NO_TRAINING_PAIR)
        if self.corpus.kept is None and progress.epoch == 0 and self.corpus.dropped:
            self.callback.note(dropped_pairs(self.corpus.dropped, self.config.data))
        progress.epoch, progress.buffer = progress.epoch + 1, 0
        if self.plan.validate_unit == "epochs" and progress.epoch % self.plan.validate_every == 0:
            self._validate()

    def _reset_best(self) -> None:
        """Forgets the metrics of models on the earlier validation pairs."""
        progress = self.progress
        progress.best, progress.num_bad_validations, progress.last_validation = {}, 0, -1
        progress.kept = []
        self.schedule.reset()

    def _step(self, pairs: Encoded, group: list[np.ndarray]) -> None:
        """Takes one step on a group of batches; this process computes its part of each."""
        self.model.train()
        tokens = sum(pairs.count(rows) for rows in group)
        # Gradients are averaged over processes, and the loss over the tokens of all of them.
        factor = self.world.size / tokens
        for number, rows in enumerate(group):
            batch = pairs.batch(rows[self.world.rank :: self.world.size]).to(self.world.device)
            is_last = number == len(group) - 1
            with self.distributed_model.gradient_sync(is_last), self._autocast():
                self.losses += self.distributed_model.backward(batch, factor)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.plan.max_grad_norm)
        self.schedule.apply(self.optimizer, self.progress.step + 1)
        self.optimizer.step()
        self.distributed_model.zero_grad()
        self.progress.tokens += tokens
        self.progress.step += 1

    def _autocast(self) -> torch.autocast:
        enabled = self.plan.precision == "bfloat16"
        return torch.autocast(self.world.device.type, torch.bfloat16, enabled=enabled)

    def _after_step(self) -> None:
        """Logs, validates and saves, where the number of steps says so."""
        progress, plan = self.progress, self.plan
        progress.seconds = self._seconds_before + time.monotonic() - self._start_time
        if progress.step % plan.log_every == 0:
            self._log()
        if plan.validate_unit == "steps" and progress.step % plan.validate_every == 0:
            self._validate()
        elif progress.step % plan.checkpoint_every == 0:
            self._save()

    def _stop_reason(self) -> str:
        """Why training is over, or an empty text if it is not."""
        progress, plan = self.progress, self.plan
        if progress.epoch >= plan.epochs:
            return "1 epoch is done" if plan.epochs == 1 else f"{plan.epochs} epochs are done"
        if plan.steps is not None and progress.step >= plan.steps:
            return "1 step is done" if plan.steps == 1 else f"{plan.steps} steps are done"
        if progress.num_bad_validations >= plan.early_stopping_patience:
            return f"{plan.metric} has not improved in {progress.num_bad_validations} validations"
        # All processes go by the time of rank 0, which they ask for only now and then.
        is_asked = self.world.size == 1 or progress.step % plan.log_every == 0
        if plan.minutes is None or not is_asked:
            return ""
        is_over = self.world.broadcast(progress.seconds) >= 60 * plan.minutes
        return f"{plan.minutes:g} minutes are over" if is_over else ""

    def _max_steps(self) -> int | None:
        """The largest possible number of steps, if it is known."""
        if self.corpus.kept is None:
            return self.plan.steps
        size = self.plan.batch_size * self.world.size
        batches = math.ceil(len(self.corpus.kept) / size)
        max_steps = self.plan.epochs * math.ceil(batches / self.plan.gradient_accumulation)
        return min(max_steps, self.plan.steps or max_steps)

    def _log(self) -> None:
        """Logs the steps since the last line of the log."""
        progress = self.progress
        loss = float(self.world.sum(self.losses)) / max(progress.tokens, 1)
        self.divergence.check_loss(loss, progress.step)
        now = time.monotonic()
        rate = progress.tokens / max(now - self._log_time, 1e-9)
        self._log_time = now
        if self.log is not None:
            values = {"epoch": progress.epoch, "seconds": progress.seconds, "loss": loss}
            learning_rate = float(self.optimizer.param_groups[0]["lr"])
            values |= {"learning_rate": learning_rate, "tokens_per_second": rate}
            self.log.write(progress.step, values)
        self.callback.stepped(replace(progress), loss, rate)
        self.losses.zero_()
        progress.tokens = 0

    def _validate(self, is_scheduled: bool = True) -> None:
        """Validates, saves the model if it is the best, updates the learning rate, and saves.

        A validation at the end that is not scheduled does not change how training resumes.
        """
        progress = self.progress
        self.divergence.check_weights(self.losses, progress.tokens, progress.step)
        metrics = self._metrics()
        self.divergence.check_loss(metrics.loss, progress.step)
        if is_scheduled:
            self.schedule.validated(metrics.loss)
        values = metrics.to_json()
        rank = self.validator.rank
        self.averaging.keep(progress, {**values, "best_step": progress.step}, rank)
        is_best = not progress.best or rank(values) > rank(progress.best)
        if is_best:
            progress.best = {**values, "best_step": progress.step}
            progress.num_bad_validations = 0
            save_weights(self.folder, self.model, progress.best, self.world.is_main)
        elif is_scheduled:
            progress.num_bad_validations += 1
        progress.last_validation = progress.step
        if self.log is not None:
            values["validation_loss"] = values.pop("loss")
            values = {**values.pop("scores"), **values}
            self.log.write(progress.step, {"epoch": progress.epoch, **values})
        self.callback.validated(replace(progress), metrics, is_best)
        self._save()
        self.averaging.remove_others(progress)

    def _metrics(self) -> Metrics:
        """The metrics of the model as it is now, on the validation pairs."""
        return self.validator.metrics(self.model, self.world, self._autocast())

    def _save(self) -> None:
        """Writes the checkpoint."""
        self.divergence.check_weights(self.losses, self.progress.tokens, self.progress.step)
        self.progress.seconds = self._seconds_before + time.monotonic() - self._start_time
        _checkpoint.save(
            self.folder,
            self.model,
            self.optimizer,
            self.schedule,
            self.losses,
            self.progress,
            self.config_json,
            self.world,
        )
