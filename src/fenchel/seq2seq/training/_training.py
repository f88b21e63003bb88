"""Training: steps, validations and checkpoints, from the beginning or from where it was left."""

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
from torch.optim import Adam
from torch.optim.lr_scheduler import ReduceLROnPlateau

from .._files import locked
from ..config._schema import Config
from ..data._corpus import Encoded, shuffled
from ..models._folder import save_config, save_vocabularies, save_weights
from ..models._model import Seq2Seq
from . import _checkpoint
from ._callback import Listener, Summary
from ._changes import Changes
from ._distributed import Together, World, world
from ._divergence import Watch
from ._log import Log
from ._memory import check_memory
from ._preparation import NOTHING, prepare, too_long
from ._validation import Metrics, validate


def train(
    config: Config, listener: Listener | None = None, *, allow_changed_data: bool = False
) -> Summary:
    """Trains a model, or goes on with a training that was stopped.

    The same configuration gives the same weights, bit by bit on a CPU with the same number of
    threads, however often it is stopped on the way. Under torchrun its processes train one model
    together, each with `batch_size` pairs of a batch.

    Args:
        config: the whole configuration.
        listener: hears of the progress.
        allow_changed_data: whether a training may go on with other pairs than it began with, which
            is an error otherwise; if those to validate with changed, the best model is chosen anew.
    Returns:
        How it ended. The folder holds the best model, the last checkpoint and the log.
    Raises:
        DivergenceError: if the loss is no longer a number, or far above that of a guess.
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
    '1 epochs are done'

    References: peters2019sparse.
    """
    folder, plan = Path(config.training.folder), config.training
    lock = locked(folder) if int(os.environ.get("RANK", "0")) == 0 else nullcontext()
    with lock, world(plan.device) as here, _matrix_products(plan.precision):
        here.wait()
        heard = listener or Listener()
        return _Training(config, folder, here, heard, allow_changed_data).run()


@contextmanager
def _matrix_products(precision: str) -> Iterator[None]:
    """Computes float32 matrix products on a GPU as the configuration says."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else before)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


class _Training:
    def __init__(
        self, config: Config, folder: Path, here: World, listener: Listener, allow_changed: bool
    ) -> None:
        self.config, self.plan, self.folder, self.world = config, config.training, folder, here
        self.listener = listener if here.first else Listener()
        self.dump = config.model_dump(mode="json")
        if changed := _checkpoint.check(folder, self.dump, here):
            keys = ", ".join(f"training.{key}" for key in changed)
            self.listener.note(f"the training in {folder} goes on with other values of {keys}")
        torch.manual_seed(self.plan.seed)
        source, target, self.corpus, self.validation = prepare(
            config, folder, here, self.listener.note
        )
        divided = here.size > 1 and self.plan.distributed == "fsdp"
        check_memory(config.model, source, target, here, divided)
        self.model = Seq2Seq(config.model, source, target).to(here.device)
        self.watch = Watch(self.model, here)
        self.together = Together(self.model, here, self.plan.distributed, self.plan.cuda_graphs)
        self.optimizer = Adam(
            self.model.parameters(),
            lr=self.plan.learning_rate,
            fused=here.device.type == "cuda",
        )
        self.scheduler = ReduceLROnPlateau(
            self.optimizer,
            factor=self.plan.lr_decay,
            patience=self.plan.lr_patience,
            min_lr=self.plan.min_lr_ratio * self.plan.learning_rate,
            threshold=0.0,
            eps=0.0,
        )
        torch.manual_seed(self.plan.seed + here.rank)  # each process drops other units
        self.losses = torch.zeros((), dtype=torch.float64, device=here.device)
        self.progress = _checkpoint.restore(
            folder, self.model, self.optimizer, self.scheduler, self.losses, self.dump, here
        )
        kept = [each for each in (self.corpus.kept, self.validation) if each is not None]
        self.changes = Changes(folder, self.progress, allow_changed, self.listener.note)
        self.changes.check_numbers([len(each) for each in kept])
        if self.corpus.kept is not None:
            self.changes.check(self.corpus.kept, 0)
        if self.changes.check(self.validation):
            self._choose_anew()
        if here.first:
            save_config(folder, self.dump)
            save_vocabularies(folder, source, target)
        self.log = Log(folder, self.progress.step) if here.first else None
        self._spent, self._since = self.progress.seconds, time.monotonic()
        self._logged = self._since

    def run(self) -> Summary:
        """Trains to the end."""
        progress = self.progress
        self.listener.started(progress, self._most_steps())
        while not (reason := self._reason()):
            self._epoch()
        if progress.validated != progress.step:
            self._validate(due=False)
        if self.log is not None:
            self.log.close()
        best = dict(progress.best)
        if best["loss"] > self.watch.guess:
            self.listener.note(
                f"the best model has a loss of {best['loss']:.3g}, and a guess among all tokens "
                f"{self.watch.guess:.3g}; lower `training.learning_rate`, or train longer"
            )
        best_step = int(best.pop("best_step"))
        metrics = Metrics(**best)
        return Summary(self.folder, reason, metrics, best_step, progress.step, progress.seconds)

    def _epoch(self) -> None:
        """Trains to the end of the epoch, or of the training."""
        progress = self.progress
        size = self.plan.batch_size * self.world.size
        seen = progress.buffer > 0
        for number, pairs in self.corpus.buffers(progress.buffer):
            self.changes.check(pairs, number)
            seed = (self.plan.seed, progress.epoch, number)
            batches = shuffled(pairs, size, seed)
            while progress.batch < len(batches):
                group = batches[progress.batch : progress.batch + self.plan.gradient_accumulation]
                self._step(pairs, group)
                progress.batch += len(group)
                self._after_step()
                if self._reason():
                    return
            seen |= bool(batches)
            progress.buffer, progress.batch = number + 1, 0
        if not seen:
            raise ValueError(NOTHING)
        if self.corpus.kept is None and progress.epoch == 0 and self.corpus.dropped:
            self.listener.note(too_long(self.corpus.dropped, self.config.data))
        progress.epoch, progress.buffer = progress.epoch + 1, 0
        if self.plan.validate_unit == "epochs" and progress.epoch % self.plan.validate_every == 0:
            self._validate()

    def _choose_anew(self) -> None:
        """Forgets how good models were on other validation pairs."""
        self.progress.best, self.progress.worse, self.progress.validated = {}, 0, -1
        self.scheduler.best, self.scheduler.num_bad_epochs = math.inf, 0

    def _step(self, pairs: Encoded, group: list[np.ndarray]) -> None:
        """One step of Adam on a group of batches, of each of which this process has its part."""
        self.model.train()
        tokens = sum(pairs.count(rows) for rows in group)
        # Gradients are averaged over processes, while the mean is over all their tokens.
        factor = self.world.size / tokens
        for place, rows in enumerate(group):
            batch = pairs.batch(rows[self.world.rank :: self.world.size]).to(self.world.device)
            last = place == len(group) - 1
            with self.together.synchronized(last), self._autocast():
                self.losses += self.together.backward(batch, factor)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.plan.max_grad_norm)
        self.optimizer.step()
        self.together.zero_grad()
        self.progress.tokens += tokens
        self.progress.step += 1

    def _autocast(self) -> torch.autocast:
        half = self.plan.precision == "bfloat16"
        return torch.autocast(self.world.device.type, torch.bfloat16, enabled=half)

    def _after_step(self) -> None:
        progress, plan = self.progress, self.plan
        progress.seconds = self._spent + time.monotonic() - self._since
        if progress.step % plan.log_every == 0:
            self._log()
        if plan.validate_unit == "steps" and progress.step % plan.validate_every == 0:
            self._validate()
        elif progress.step % plan.checkpoint_every == 0:
            self._save()

    def _reason(self) -> str:
        """Why training is over, or nothing."""
        progress, plan = self.progress, self.plan
        if progress.epoch >= plan.epochs:
            return f"{plan.epochs} epochs are done"
        if plan.steps is not None and progress.step >= plan.steps:
            return f"{plan.steps} steps are done"
        if progress.worse >= plan.early_stopping_patience:
            return f"{plan.metric} has not improved in {progress.worse} validations"
        # Processes must agree on the time, which costs something.
        ask = self.world.size == 1 or progress.step % plan.log_every == 0
        limit = math.inf if plan.minutes is None else 60 * plan.minutes
        if limit < math.inf and ask and self.world.agree(progress.seconds) >= limit:
            return f"{plan.minutes:g} minutes are over"
        return ""

    def _most_steps(self) -> int | None:
        """How many steps there can be, where the data are in memory."""
        if self.corpus.kept is None:
            return self.plan.steps
        size = self.plan.batch_size * self.world.size
        batches = math.ceil(len(self.corpus.kept) / size)
        most = self.plan.epochs * math.ceil(batches / self.plan.gradient_accumulation)
        return min(most, self.plan.steps or most)

    def _log(self) -> None:
        """Writes what the steps since the last line were like."""
        progress = self.progress
        loss = float(self.world.sum(self.losses)) / max(progress.tokens, 1)
        self.watch.check_loss(loss, progress.step)
        now = time.monotonic()
        rate = progress.tokens / max(now - self._logged, 1e-9)
        self._logged = now
        if self.log is not None:
            values = {"epoch": progress.epoch, "seconds": progress.seconds, "loss": loss}
            learning_rate = float(self.optimizer.param_groups[0]["lr"])
            values |= {"learning_rate": learning_rate, "tokens_per_second": rate}
            self.log.write(progress.step, values)
        self.listener.stepped(replace(progress), loss, rate)
        self.losses.zero_()
        progress.tokens = 0

    def _validate(self, due: bool = True) -> None:
        """Validates, keeps the best model, lowers the learning rate on a plateau, and saves.

        A validation that is not due, at the end, leaves no trace in a training that goes on.
        """
        progress = self.progress
        self.watch.check_weights(self.losses, progress.tokens, progress.step)
        with self._autocast():
            metrics = validate(
                self.model, self.validation, self.config.search.batch_size, self.world
            )
        self.watch.check_loss(metrics.loss, progress.step)
        if due:
            self.scheduler.step(metrics.loss)
        found = metrics.to_json()
        best = not progress.best or self._goodness(found) > self._goodness(progress.best)
        if best:
            progress.best = {**found, "best_step": progress.step}
            progress.worse = 0
            save_weights(self.folder, self.model, progress.best, self.world.first)
        elif due:
            progress.worse += 1
        progress.validated = progress.step
        if self.log is not None:
            found["validation_loss"] = found.pop("loss")
            self.log.write(progress.step, {"epoch": progress.epoch, **found})
        self.listener.validated(replace(progress), metrics, best)
        self._save()

    def _goodness(self, metrics: dict[str, float]) -> tuple[float, float]:
        """What the best model has the most of; the loss decides among equals."""
        loss = -metrics["loss"]
        return (loss if self.plan.metric == "loss" else metrics[self.plan.metric]), loss

    def _save(self) -> None:
        """Writes the last checkpoint."""
        self.watch.check_weights(self.losses, self.progress.tokens, self.progress.step)
        self.progress.seconds = self._spent + time.monotonic() - self._since
        _checkpoint.save(
            self.folder,
            self.model,
            self.optimizer,
            self.scheduler,
            self.losses,
            self.progress,
            self.dump,
            self.world,
        )
