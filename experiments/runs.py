"""A training run: a folder with options, history and weights, from which a killed run resumes."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from .files import write

OPTIONS, STATE, BEST = "options.json", "state.safetensors", "best.safetensors"
HISTORY = "history.json"
"""The history alone, for tables; the state holds it, too."""
History = list[dict[str, Any]]


def fit(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    epochs: int,
    seed: int,
    train: Callable[[], float],
    evaluate: Callable[[], dict[str, float]],
    measure: str,
    decay: float = 1.0,
    minutes: float | None = None,
) -> History:
    """Trains up to an epoch, from the folder's state on, and loads the best model at the end.

    Args:
        folder: of the run; `open_run` makes it.
        model, optimizer: as at the start of the run.
        epochs: how many in all, with those of earlier calls.
        seed: every epoch starts from its own random state, so a resumed run equals one that was
            never killed.
        train: one epoch, its mean loss; the model is in training mode.
        evaluate: figures on the development data; no gradients are kept.
        measure: which of these figures decides what model is best.
        decay: multiplies the learning rate after an epoch that is not the best so far.
        minutes: the call ends after the epoch in which they pass; None for no limit.
    Returns:
        One record per epoch: the loss, the figures, the time of training, and its processor time,
        which does not depend on other programs.
    Raises:
        ValueError: for less than one epoch, or no time; if the loss is not finite.
    """
    if epochs < 1:
        raise ValueError(f"`epochs` must be at least 1, got {epochs}.")
    if minutes is not None and not minutes > 0:
        raise ValueError(f"`minutes` must be greater than 0, got {minutes}.")
    run_start = time.monotonic()
    history = _resume(folder, model, optimizer)
    for epoch in range(len(history) + 1, epochs + 1):
        torch.manual_seed(1_000_003 * seed + epoch)
        model.train()
        start, start_cpu = time.perf_counter(), time.process_time()
        loss = train()
        seconds, cpu = time.perf_counter() - start, time.process_time() - start_cpu
        if not math.isfinite(loss):
            raise ValueError(
                f"the loss of epoch {epoch} is {loss} in {folder}, which keeps the epochs before; "
                "use a smaller learning rate."
            )
        model.eval()
        with torch.no_grad():
            figures = evaluate()
        improved = all(figures[measure] > old[measure] for old in history)
        times = {"seconds": seconds, "cpu_seconds": cpu}
        history.append({"epoch": epoch, "loss": loss, **times, **figures})
        if improved:
            write(folder / BEST, to_bytes(dict(model.state_dict())))
        else:
            for group in optimizer.param_groups:
                group["lr"] *= decay
        _save(folder, model, optimizer, history)
        shown = "  ".join(f"{name} {value:.4g}" for name, value in history[-1].items())
        print(shown + ("  *" if improved else ""), file=sys.stderr, flush=True)
        if minutes is not None and time.monotonic() - run_start > 60 * minutes:
            break
    load_best(folder, model)
    return history


def open_run(folder: Path, options: dict[str, Any]) -> None:
    """Makes the folder of a run, or checks that the one there has the same options.

    Raises:
        ValueError: if the folder holds another run.
    """
    path = folder / OPTIONS
    if path.exists():
        found = read_options(folder)
        names = found.keys() | options.keys()
        other = sorted(name for name in names if found.get(name) != options.get(name))
        if other:
            raise ValueError(f"{folder} holds a run with other {', '.join(other)}; name another.")
        return
    folder.mkdir(parents=True, exist_ok=True)
    write(path, json.dumps(options, ensure_ascii=False, indent=1).encode())


def read_options(folder: Path) -> dict[str, Any]:
    """The options that a run was opened with.

    Raises:
        ValueError: if their file is damaged.
    """
    path = folder / OPTIONS
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path} is damaged: it must be an object.")
    return found


def read_history(folder: Path) -> History:
    """One record per finished epoch of a run; none if there is no state yet.

    A run that was copied without its weights still has its history.
    """
    path = folder / STATE
    if path.exists():
        with safe_open(path, "pt") as file:
            return json.loads(file.metadata()["history"])
    alone = folder / HISTORY
    return json.loads(alone.read_text(encoding="utf-8")) if alone.exists() else []


def gather(folders: Iterable[Path]) -> list[dict[str, Any]]:
    """Options and history of every run that has finished an epoch; other folders are skipped.

    Raises:
        ValueError: if none has.
    """
    found = [
        {**read_options(folder), "history": read_history(folder)}
        for folder in sorted(folders)
        if (folder / OPTIONS).exists()
    ]
    finished = [run for run in found if run["history"]]
    if not finished:
        raise ValueError("no run has finished an epoch.")
    return finished


def load_best(folder: Path, model: nn.Module) -> None:
    """Loads the weights of the epoch that was best on the development data.

    Raises:
        FileNotFoundError: if no epoch is finished.
    """
    if not (folder / BEST).exists():
        raise FileNotFoundError(f"{folder} must hold a run with a finished epoch; train it first.")
    model.load_state_dict(_tensors(folder / BEST))
    model.eval()


def batches(lengths: Sequence[int], size: int, shuffle: bool = True) -> Iterator[list[int]]:
    """Batches of indices of similar lengths, each index once; in random order, or by length."""
    order = torch.randperm(len(lengths)).tolist() if shuffle else list(range(len(lengths)))
    pool = 20 * size if shuffle else max(1, len(order))
    cut: list[list[int]] = []
    for start in range(0, len(order), pool):
        near = sorted(order[start : start + pool], key=lambda index: lengths[index])
        cut += [near[first : first + size] for first in range(0, len(near), size)]
    places = torch.randperm(len(cut)).tolist() if shuffle else range(len(cut))
    yield from (cut[place] for place in places)


def padded(rows: Iterable[Sequence[int]], value: int = 0) -> Tensor:
    """Rows of integers as one tensor (rows, longest), filled up with a value."""
    tensors = [torch.tensor(row, dtype=torch.int64) for row in rows]
    return nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=value)


def with_progress(batches: Iterable[Any], every: int = 10) -> Iterator[Any]:
    """The batches; on a terminal their number is shown."""
    for count, batch in enumerate(batches, 1):
        yield batch
        if sys.stderr.isatty() and count % every == 0:
            print(f"\r{count} batches ", end="\r", file=sys.stderr, flush=True)


def _tensors(path: Path) -> dict[str, Tensor]:
    with safe_open(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def _save(
    folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, history: History
) -> None:
    """Weights, optimizer and history as one file, so that they always fit together; the history
    also alone, for tables without the weights."""
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    for index, slots in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{name}": value for name, value in slots.items()}
    rates = [group["lr"] for group in optimizer.param_groups]
    about = {"history": json.dumps(history), "rates": json.dumps(rates)}
    write(folder / STATE, to_bytes(tensors, metadata=about))
    write(folder / HISTORY, (json.dumps(history, indent=1) + "\n").encode())


def _resume(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> History:
    path = folder / STATE
    if not path.exists():
        return []
    weights, slots = {}, {}
    for name, value in _tensors(path).items():
        owner, rest = name.split(".", 1)
        if owner == "model":
            weights[rest] = value
        else:
            index, slot = rest.split(".", 1)
            slots.setdefault(int(index), {})[slot] = value
    model.load_state_dict(weights)
    groups = optimizer.state_dict()["param_groups"]
    with safe_open(path, "pt") as file:
        about = file.metadata()
    for group, rate in zip(groups, json.loads(about["rates"]), strict=True):
        group["lr"] = rate
    optimizer.load_state_dict({"state": slots, "param_groups": groups})
    return json.loads(about["history"])
